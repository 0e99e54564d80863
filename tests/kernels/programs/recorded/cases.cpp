// SPDX-License-Identifier: Apache-2.0
//
// Runs recorded calls of operators on this process's instruction set:
//
//   recorded CASES THREADS...
//
// Each case runs once for each number of OpenMP threads. Its results must be those recorded, within
// its tolerances, and have equal bits with every number of threads. Prints the instruction set, and
// for each case a checksum of all arrays: equal lines are equal bits.
#include "cases.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include <cmath>

#include "xkernels.h"

namespace recorded {
namespace {

std::map<std::string, Run>& runners() {
  static std::map<std::string, Run> all;
  return all;
}

// Reads the records of a file; see cases.py for their layout.
class Reader {
 public:
  explicit Reader(const char* path) : file_(fopen(path, "rb")) {
    if (file_ == nullptr) fail(std::string("cannot open ") + path);
  }
  ~Reader() { fclose(file_); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  std::vector<Case> cases() {
    std::vector<Case> found;
    for (int kind = fgetc(file_); kind != EOF; kind = fgetc(file_)) {
      const std::string name = text();
      if (kind == 'c') {
        found.emplace_back().name = name;
        continue;
      }
      if (found.empty()) fail("a record before the first case");
      Case& last = found.back();
      if (kind == 'n') {
        last.numbers[name] = number<double>();
      } else if (kind == 'a') {
        last.arrays[name] = array();
      } else if (kind == 'e') {
        Expectation expectation;
        expectation.array = name;
        expectation.rtol = number<double>();
        expectation.atol = number<double>();
        expectation.wanted = array();
        last.expectations.push_back(expectation);
      } else {
        fail("an unknown kind of record");
      }
    }
    return found;
  }

 private:
  void read(void* to, size_t size) {
    if (fread(to, 1, size, file_) != size) fail("the file ends within a record");
  }

  template <typename Number>
  Number number() {
    Number value;
    read(&value, sizeof(value));
    return value;
  }

  std::string text() {
    std::string value(number<uint8_t>(), ' ');
    read(value.data(), value.size());
    return value;
  }

  Array array() {
    const std::string type = text();
    Array value(type, number<int64_t>());
    read(value.bytes(), static_cast<size_t>(value.count * value.width));
    return value;
  }

  FILE* file_;
};

double value_of_fp16(uint16_t bits) {
  const int exponent = bits >> 10 & 31, digits = bits & 1023;
  double size =
      std::ldexp(exponent == 0 ? digits : digits + 1024, exponent == 0 ? -24 : exponent - 25);
  if (exponent == 31) size = digits == 0 ? HUGE_VAL : std::nan("");
  return bits >> 15 == 0 ? size : -size;
}

// Exits unless the array holds what is expected. No difference may be a NaN but between two NaNs.
void compare(Case& done, const Expectation& expectation) {
  const Array& actual = done.array(expectation.array);
  const Array& wanted = expectation.wanted;
  if (actual.count != wanted.count) fail(done.name + ": another number of elements");
  for (int64_t i = 0; i < wanted.count; ++i) {
    const double is = actual.value(i), want = wanted.value(i);
    const double limit = expectation.atol + expectation.rtol * std::fabs(want);
    if (is == want || std::fabs(is - want) <= limit || (std::isnan(is) && std::isnan(want))) {
      continue;
    }
    char text[160];
    snprintf(text, sizeof(text), "[%lld] is %.9g, expected %.9g with a difference of at most %.3g",
             static_cast<long long>(i), is, want, limit);
    fail(done.name + ": " + expectation.array + text);
  }
}

// FNV-1a over all bytes of all arrays.
uint64_t checksum(const Case& done) {
  uint64_t sum = 0xcbf29ce484222325u;
  for (const auto& [name, array] : done.arrays) {
    for (int64_t i = 0; i < array.count * array.width; ++i) {
      sum = (sum ^ array.bytes()[i]) * 0x100000001b3u;
    }
  }
  return sum;
}

uint64_t run(const Case& recorded) {
  const auto runner = runners().find(recorded.name.substr(0, recorded.name.find('/')));
  if (runner == runners().end()) fail(recorded.name + ": no runner");
  Case done = recorded.copy();
  const int32_t result = runner->second(done);
  if (result != 0) fail(recorded.name + ": the operator returned " + std::to_string(result));
  if (done.expectations.empty()) fail(recorded.name + ": nothing is expected");
  for (const Expectation& expectation : done.expectations) compare(done, expectation);
  return checksum(done);
}

}  // namespace

void fail(const std::string& what) {
  fprintf(stderr, "%s\n", what.c_str());
  exit(1);
}

Runner::Runner(const char* name, Run run) { runners()[name] = run; }

Array::Array(std::string type_of_elements, int64_t count_of_elements)
    : type(std::move(type_of_elements)), count(count_of_elements) {
  if (type.size() != 3) fail("an unknown type: " + type);
  width = type[2] - '0';
  memory.reset(new unsigned char[static_cast<size_t>((count + 1) * width)]);
}

Array Array::copy() const {
  Array made(type, count);
  memcpy(made.bytes(), bytes(), static_cast<size_t>(count * width));
  return made;
}

double Array::value(int64_t index) const {
  const unsigned char* from = bytes() + index * width;
  const auto as = [from](auto zero) {
    memcpy(&zero, from, sizeof(zero));
    return static_cast<double>(zero);
  };
  if (type == "<f8") return as(double{});
  if (type == "<f4") return as(float{});
  if (type == "<f2") return value_of_fp16(static_cast<uint16_t>(from[0] | from[1] << 8));
  if (type == "<i8") return as(int64_t{});
  if (type == "<i4") return as(int32_t{});
  if (type == "<i2") return as(int16_t{});
  if (type == "|i1") return as(int8_t{});
  if (type == "|u1") return as(uint8_t{});
  if (type != "<u2") fail("an unknown type: " + type);
  unsigned char four[4] = {0, 0, from[0], from[1]};  // bf16
  float value;
  memcpy(&value, four, sizeof(value));
  return static_cast<double>(value);
}

Parts::~Parts() {
  for (const auto& [first, part] : parts_) {
    memcpy(whole_.bytes() + first * whole_.width, part.bytes(),
           static_cast<size_t>(part.count * part.width));
  }
}

void* Parts::take(int64_t count, int64_t gap) {
  Array part(whole_.type, count);
  if (taken_ + count + gap > whole_.count) fail("too few elements in an array");
  memcpy(part.bytes(), whole_.bytes() + taken_ * whole_.width,
         static_cast<size_t>(count * whole_.width));
  parts_.emplace_back(taken_, part);
  taken_ += count + gap;
  return part.bytes();
}

Case Case::copy() const {
  Case made = *this;
  for (auto& [key, value] : made.arrays) value = value.copy();
  return made;
}

double Case::number(const std::string& name_of_number) const {
  const auto found = numbers.find(name_of_number);
  if (found == numbers.end()) fail(name + ": no number " + name_of_number);
  return found->second;
}

Array& Case::array(const std::string& name_of_array) {
  const auto found = arrays.find(name_of_array);
  if (found == arrays.end()) fail(name + ": no array " + name_of_array);
  return found->second;
}

int32_t type_of(const Array& array) {
  if (array.type == "<f4") return XK_FLOAT32;
  if (array.type == "<u2") return XK_BFLOAT16;
  if (array.type != "<f2") fail("no type of values: " + array.type);
  return XK_FLOAT16;
}

void add_masters(Case& c) {
  const Array& weights = c.array("weights");
  Array masters("<f4", weights.count);
  for (int64_t i = 0; i < weights.count; ++i) {
    uint32_t bits = 0;
    memcpy(reinterpret_cast<unsigned char*>(&bits) + 4 - weights.width,
           weights.bytes() + i * weights.width, static_cast<size_t>(weights.width));
    if (c.has("remainders")) {
      const int32_t remainder = c.data<int16_t>("remainders")[i];
      const uint32_t joined = bits + static_cast<uint32_t>(remainder);
      // One that makes a NaN of a number is of another value, and ignored.
      if ((joined & 0x7fffffff) <= 0x7f800000) bits = joined;
    }
    memcpy(masters.bytes() + 4 * i, &bits, 4);
  }
  c.arrays["masters"] = masters;
}

}  // namespace recorded

int main(int count, char** arguments) {
  using recorded::fail;
  if (count < 3) fail("usage: recorded CASES THREADS...");
  if (xk_abi_version() != XK_ABI_VERSION) fail("the library has another interface");
  if (xk_isa_name() == nullptr) {
    fail(std::string("no instruction set; supported: ") + xk_isa_supported());
  }
  printf("instruction set %s of %s\n", xk_isa_name(), xk_isa_supported());
  for (const recorded::Case& each : recorded::Reader(arguments[1]).cases()) {
    uint64_t first = 0;
    for (int at = 2; at < count; ++at) {
      omp_set_num_threads(atoi(arguments[at]));
      const uint64_t sum = recorded::run(each);
      if (at == 2) first = sum;
      if (sum != first) fail(each.name + ": other bits with " + arguments[at] + " threads");
    }
    printf("%s %016llx\n", each.name.c_str(), static_cast<unsigned long long>(first));
  }
  return 0;
}
