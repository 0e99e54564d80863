// SPDX-License-Identifier: Apache-2.0
#include "xkernels/dicts.h"

int32_t xk_dicts_hold(xk_dict_next* next, void* const* dicts, int64_t count, void* const* entries) {
  if (next == nullptr || dicts == nullptr || entries == nullptr) return 0;
  for (int64_t i = 0; i < count; ++i) {
    ptrdiff_t position = 0;
    void *key, *value;
    while (next(dicts[i], &position, &key, &value) != 0) {
      if (entries[0] != key || (entries[1] != nullptr && entries[1] != value)) return 0;
      entries += 2;
    }
    if (*entries++ != nullptr) return 0;
  }
  return 1;
}
