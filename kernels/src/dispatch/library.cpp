// SPDX-License-Identifier: Apache-2.0
#include "xkernels/library.h"

int32_t xk_abi_version(void) { return XK_ABI_VERSION; }
