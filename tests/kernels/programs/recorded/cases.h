// SPDX-License-Identifier: Apache-2.0
//
// Recorded calls of operators, as tests/kernels/recorded/cases.py writes them. An operator's file
// defines a Runner for each kind of call:
//
//   const Runner scale("scale", [](Case& c) {
//     return xk_scale(c.data<float>("x"), c.array("x").count, c.number("factor"));
//   });
#ifndef RECORDED_CASES_H
#define RECORDED_CASES_H

#include <stdint.h>
#include <stdio.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace recorded {

// Elements of one of numpy's types, little-endian: "<f4", "<i8" and so on; "<u2" is bf16.
//
// They are aligned to one element and nothing more, and their memory ends with the last one.
struct Array {
  std::string type;
  int64_t width = 0;  // bytes of an element
  int64_t count = 0;
  std::shared_ptr<unsigned char[]> memory;

  Array() = default;
  Array(std::string type_of_elements, int64_t count_of_elements);
  Array copy() const;
  unsigned char* bytes() const { return memory.get() + width; }
  double value(int64_t index) const;
};

// Copies of parts of an array, one after another, each of which ends where its memory ends. They
// are written back in the end.
class Parts {
 public:
  explicit Parts(Array& whole) : whole_(whole) {}
  ~Parts();
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  // The next `count` elements; `gap` elements after them are in no part.
  void* take(int64_t count, int64_t gap = 0);

 private:
  Array& whole_;
  int64_t taken_ = 0;
  std::vector<std::pair<int64_t, Array>> parts_;  // with their first elements
};

// What an array must hold after the call: |actual - wanted| <= atol + rtol |wanted|.
struct Expectation {
  std::string array;
  double rtol = 0, atol = 0;
  Array wanted;
};

struct Case {
  std::string name;  // "adam/split/bf16": its operator, then what tells it from the others
  std::map<std::string, double> numbers;
  std::map<std::string, Array> arrays;
  std::vector<Expectation> expectations;

  Case copy() const;
  double number(const std::string& name_of_number) const;
  Array& array(const std::string& name_of_array);
  bool has(const std::string& name_of_array) const { return arrays.count(name_of_array) != 0; }

  // The elements of an array; nullptr if the case has none of that name.
  template <typename Element>
  Element* data(const std::string& name_of_array) {
    return has(name_of_array) ? reinterpret_cast<Element*>(array(name_of_array).bytes()) : nullptr;
  }
};

using Run = int32_t (*)(Case&);

// Calls an operator with what a case holds; the result is the operator's, 0 if it succeeded.
struct Runner {
  Runner(const char* name, Run run);
};

// XK_FLOAT32, XK_BFLOAT16 or XK_FLOAT16.
int32_t type_of(const Array& array);

// Adds "masters", the weights in fp32: "weights", of bf16 perhaps with "remainders".
void add_masters(Case& c);

// Prints what is wrong, and ends the program with status 1.
[[noreturn]] void fail(const std::string& what);

}  // namespace recorded

#endif  // RECORDED_CASES_H
