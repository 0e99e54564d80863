// SPDX-License-Identifier: Apache-2.0
//
// Suppression of overlapping boxes.
#include "cases.h"
#include "xkernels.h"

namespace recorded {
namespace {

const Runner nms("nms", [](Case& c) {
  return xk_nms(c.data<void>("boxes"), c.array("boxes").width == 8, c.array("order").count,
                c.data<int64_t>("order"), c.data<int64_t>("starts"), c.array("starts").count - 1,
                c.number("threshold"), c.data<uint8_t>("kept"));
});

}  // namespace
}  // namespace recorded
