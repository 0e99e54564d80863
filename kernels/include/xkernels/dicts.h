/* SPDX-License-Identifier: Apache-2.0 */
/* Compares what dicts of Python hold. xkernels.h has what holds for every function. */
#pragma once

#include <stddef.h>

#include "xkernels/library.h"

/* PyDict_Next of Python's stable ABI, whose address the caller passes. */
typedef int xk_dict_next(void* dict, ptrdiff_t* position, void** key, void** value);

/* Returns 1 if each dict has the entries that `entries` lists, in that order, and no others; else
 * 0.
 *
 * `entries` has the key and the value of each entry of the first dict, then NULL, the entries of
 * the second dict, then NULL, and so on. Objects are compared by address; any value is as good as a
 * NULL value. The caller holds the GIL, and keeps the dicts and the listed objects alive. Returns 0
 * if a pointer is NULL. */
XK_API int32_t xk_dicts_hold(xk_dict_next* next, void* const* dicts, int64_t count,
                             void* const* entries);
