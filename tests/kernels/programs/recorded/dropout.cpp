// SPDX-License-Identifier: Apache-2.0
//
// Dropout, of values and in place.
#include "cases.h"
#include "xkernels.h"

namespace recorded {
namespace {

const Runner dropout("dropout", [](Case& c) {
  const uint64_t* seed = c.data<uint64_t>("seed");
  const Array& input = c.array("input");
  return xk_dropout(input.bytes(), input.count, type_of(input), c.number("probability"), seed[0],
                    seed[1], c.has("output") ? c.array("output").bytes() : input.bytes());
});

}  // namespace
}  // namespace recorded
