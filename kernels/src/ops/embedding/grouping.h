// SPDX-License-Identifier: Apache-2.0
//
// The positions of all tables, grouped by the row that they name, so that each row has one owner.
#pragma once

#include <stdint.h>

#include "ops/embedding/bags.h"

namespace xkernels {

// A range of a table's rows with the positions that name them: one task.
struct Part {
  int64_t table;
  int64_t begin, end;  // of its entries
  int64_t row_count;   // distinct rows
};

// A radix sort in two steps. First, every table's positions are divided among parts, which are
// ranges of rows: pieces of the positions are counted and then moved, each by one thread. Second,
// each part is sorted, by one thread and in its cache. All steps keep the order of positions, so
// the result does not depend on the number of threads.
class Grouping {
 public:
  // False without memory.
  bool make(const xk_bags& bags);

  int64_t part_count() const { return part_count_; }
  const Part& part(int64_t number) const { return parts_[number]; }
  int64_t row(int64_t entry) const { return static_cast<int64_t>(entries_[entry] >> 32); }
  int64_t position(int64_t entry) const {
    return static_cast<int64_t>(static_cast<uint32_t>(entries_[entry]));
  }
  // The bags that the positions of entries are in, from one on.
  const int32_t* bags(int64_t entry) const { return &bags_[entry]; }

 private:
  // One table.
  struct Source {
    int64_t first_entry, end;  // positions [0, end) are in bags
    int64_t first_part, parts;
    int64_t first_count, pieces, piece_size;
    int shift;  // a row's part is row >> shift
  };

  bool allocate(const xk_bags& bags);
  void set_parts();
  template <typename Visit>
  void visit_pieces(bool parallel, const Visit& visit);
  void sort(Part& part);

  int64_t tables_ = 0, part_count_ = 0, piece_count_ = 0, entry_count_ = 0;
  Buffer<Source> sources_;
  Buffer<Part> parts_;
  Buffer<uint32_t> counts_;   // for each piece, of each part of its table; then where to write
  Buffer<uint64_t> entries_;  // row and position
  Buffer<uint64_t> scratch_;
  Buffer<int32_t> bag_of_;  // of each position
  Buffer<int32_t> bags_;    // of each entry
};

}  // namespace xkernels
