// SPDX-License-Identifier: Apache-2.0
#include "cases.h"
#include "xkernels.h"

namespace recorded {
namespace {

const Runner linear_rows("linear_rows", [](Case& c) {
  const auto size = [&](const char* name) { return static_cast<int64_t>(c.number(name)); };
  const bool packed = c.has("scales");
  const int32_t type =
      packed ? static_cast<int32_t>(c.number("format")) : type_of(c.array("weights"));
  const int64_t first = size("first_weight") * (packed ? 1 : c.array("weights").width);
  const xk_weights weights = {c.data<unsigned char>("weights") + first, c.data<void>("scales"),
                              type, static_cast<int32_t>(size("weight_stride"))};
  return xk_linear_rows(c.data<void>("input"), size("rows"), size("stride"),
                        type_of(c.array("input")), &weights, c.data<void>("bias"),
                        packed ? XK_FLOAT32 : type, size("inputs"), size("outputs"),
                        c.data<void>("output"));
});

}  // namespace
}  // namespace recorded
