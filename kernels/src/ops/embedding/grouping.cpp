// SPDX-License-Identifier: Apache-2.0
#include "ops/embedding/grouping.h"

#include <string.h>

namespace xkernels {
namespace {

// Positions of a part on average: its entries fit into the second-level cache.
constexpr int64_t kPartSize = 1024;
constexpr int64_t kMaxParts = 4096;  // of a table

// Positions of a piece, at least, and pieces of a table, at most.
constexpr int64_t kPieceSize = 8192;
constexpr int64_t kMaxPieces = 64;

// Fewer entries are sorted by insertion.
constexpr int64_t kFew = 32;
constexpr int kMaxDigitBits = 11;

void sort_few(uint64_t* entries, int64_t count) {
  for (int64_t i = 1; i < count; ++i) {
    const uint64_t entry = entries[i];
    int64_t at = i;
    for (; at > 0 && entries[at - 1] > entry; --at) entries[at] = entries[at - 1];
    entries[at] = entry;
  }
}

// Moves entries to the order of one digit of their rows; equal ones keep their order.
void sort_by_digit(const uint64_t* from, int64_t count, int first_bit, int bits, uint64_t* to) {
  uint32_t starts[1 << kMaxDigitBits];
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  memset(starts, 0, sizeof(uint32_t) << bits);
  for (int64_t i = 0; i < count; ++i) ++starts[(from[i] >> first_bit) & mask];
  uint32_t before = 0;
  for (uint64_t digit = 0; digit <= mask; ++digit) {
    const uint32_t here = starts[digit];
    starts[digit] = before;
    before += here;
  }
  for (int64_t i = 0; i < count; ++i) to[starts[(from[i] >> first_bit) & mask]++] = from[i];
}

}  // namespace

bool Grouping::allocate(const xk_bags& bags) {
  tables_ = bags.count;
  if (!sources_.allocate(tables_)) return false;
  int64_t counts = 0;
  for (int64_t number = 0; number < tables_; ++number) {
    const Table table(bags, number);
    Source& source = sources_[number];
    source.first_entry = entry_count_;
    source.end = table.end();
    const int64_t even = divide_up(source.end, kMaxPieces);
    source.piece_size = even < kPieceSize ? kPieceSize : even;
    source.pieces = divide_up(source.end, source.piece_size);
    int64_t wanted = source.end / kPartSize;
    wanted = wanted < 1 ? 1 : wanted < kMaxParts ? wanted : kMaxParts;
    source.shift = 0;
    while (((table.fields.rows - 1) >> source.shift) >= wanted) ++source.shift;
    source.parts = source.end == 0 ? 0 : ((table.fields.rows - 1) >> source.shift) + 1;
    source.first_part = part_count_;
    source.first_count = counts;
    entry_count_ += source.end;
    part_count_ += source.parts;
    piece_count_ += source.pieces;
    counts += source.pieces * source.parts;
  }
  return counts_.allocate_zeros(counts) && parts_.allocate(part_count_) &&
         entries_.allocate(entry_count_) && scratch_.allocate(entry_count_) &&
         bag_of_.allocate(entry_count_) && bags_.allocate(entry_count_);
}

// Calls visit(number of the table, begin, end, counts of the piece) for every piece.
template <typename Visit>
void Grouping::visit_pieces(bool parallel, const Visit& visit) {
  run_tasks(piece_count_, parallel, [&](int64_t task, int64_t) {
    int64_t number = 0;
    for (; task >= sources_[number].pieces; ++number) task -= sources_[number].pieces;
    const Source& source = sources_[number];
    const int64_t begin = task * source.piece_size;
    const int64_t left = source.end - begin;
    const int64_t end = begin + (left < source.piece_size ? left : source.piece_size);
    visit(number, begin, end, &counts_[source.first_count + task * source.parts]);
  });
}

// Makes parts of the counts, and of each count the entry at which a piece begins to write.
void Grouping::set_parts() {
  for (int64_t number = 0; number < tables_; ++number) {
    const Source& source = sources_[number];
    uint32_t within = 0;
    for (int64_t at = 0; at < source.parts; ++at) {
      Part& part = parts_[source.first_part + at];
      part = {number, source.first_entry + within, 0, 0};
      for (int64_t piece = 0; piece < source.pieces; ++piece) {
        uint32_t& count = counts_[source.first_count + piece * source.parts + at];
        const uint32_t here = count;
        count = within;
        within += here;
      }
      part.end = source.first_entry + within;
    }
  }
}

void Grouping::sort(Part& part) {
  uint64_t* entries = &entries_[part.begin];
  uint64_t* scratch = &scratch_[part.begin];
  const int64_t count = part.end - part.begin;
  if (count <= kFew) {
    sort_few(entries, count);
  } else {
    const int bits = sources_[part.table].shift;
    const int digits = (bits + kMaxDigitBits - 1) / kMaxDigitBits;
    for (int digit = 0; digit < digits; ++digit) {
      const int first = bits * digit / digits, end = bits * (digit + 1) / digits;
      sort_by_digit(entries, count, 32 + first, end - first, scratch);
      uint64_t* sorted = scratch;
      scratch = entries;
      entries = sorted;
    }
    if (digits % 2 == 1) memcpy(scratch, entries, sizeof(uint64_t) * static_cast<size_t>(count));
  }
  for (int64_t entry = part.begin; entry < part.end; ++entry) {
    part.row_count += entry == part.begin || row(entry) != row(entry - 1);
    bags_[entry] = bag_of_[sources_[part.table].first_entry + position(entry)];
  }
}

bool Grouping::make(const xk_bags& bags) {
  if (!allocate(bags)) return false;
  const bool parallel = is_large(bags);
  visit_pieces(parallel, [&](int64_t number, int64_t begin, int64_t end, uint32_t* counts) {
    const Table table(bags, number);
    const int shift = sources_[number].shift;
    for (int64_t at = begin; at < end; ++at) ++counts[table.row(at) >> shift];
  });
  set_parts();
  visit_pieces(parallel, [&](int64_t number, int64_t begin, int64_t end, uint32_t* next) {
    const Table table(bags, number);
    const Source& source = sources_[number];
    uint64_t* entries = &entries_[source.first_entry];
    int32_t* bag_of = &bag_of_[source.first_entry];
    // The last bag that begins at `begin` or before.
    int64_t bag = table.first_bag(begin + 1, [&](int64_t one) { return table.begin(one); }) - 1;
    int64_t bag_end = table.begin(bag + 1);
    for (int64_t at = begin; at < end; ++at) {
      while (at >= bag_end) bag_end = table.begin(++bag + 1);
      bag_of[at] = static_cast<int32_t>(bag);
      const uint64_t row = static_cast<uint64_t>(table.row(at));
      entries[next[row >> source.shift]++] = row << 32 | static_cast<uint64_t>(at);
    }
  });
  run_tasks(part_count_, parallel, [&](int64_t number, int64_t) { sort(parts_[number]); });
  return true;
}

}  // namespace xkernels
