/* SPDX-License-Identifier: Apache-2.0 */
/* Version, error codes and instruction set of the library. */
#pragma once

#include <stdint.h>

#if defined(__GNUC__)
#define XK_VISIBLE __attribute__((visibility("default")))
#else
#define XK_VISIBLE
#endif

/* Begins the declaration of each function. */
#ifdef __cplusplus
#define XK_API extern "C" XK_VISIBLE
#else
#define XK_API XK_VISIBLE
#endif

/* The version of this interface. Callers compare it with xk_abi_version() first. */
#define XK_ABI_VERSION 5

/* Error codes of the functions, all below zero. */
#define XK_INVALID_ARGUMENT (-1) /* an argument violates the contract; nothing was done */
#define XK_REFUSED (-2)          /* the system refused; errno has the reason */
#define XK_CLOSED (-3)           /* the mailbox is closed and empty */
#define XK_INTERRUPTED (-4)      /* a signal was handled during the sleep: call again */
#define XK_TIMED_OUT (-5)        /* the timeout has passed */
#define XK_NO_ISA (-6)           /* operators: xk_isa_name() is NULL; nothing was done */

/* Operators return one of these for a wrong argument, XK_NO_ISA, or XK_REFUSED without memory.
 * After an error nothing has changed. */
#define XK_INVALID_TYPE (-10)         /* unknown, or none that the function takes */
#define XK_INVALID_SIZE (-11)         /* negative or too large, or sizes that do not fit together */
#define XK_INVALID_POINTER (-12)      /* NULL, or not aligned to its elements */
#define XK_INVALID_MODE (-13)         /* bags: unknown, or not together with factors */
#define XK_INVALID_INDEX (-14)        /* bags: not from 0 to rows - 1 */
#define XK_INVALID_FIRST_OFFSET (-15) /* bags: not 0 */
#define XK_DECREASING_OFFSET (-16)    /* bags: less than the one before */
#define XK_LARGE_OFFSET (-17)         /* bags: larger than index_count */
#define XK_INVALID_LAST_OFFSET (-18)  /* bags, include_last_offset: not index_count */
#define XK_INVALID_IMAGE (-19)        /* roi_align: a box has the number of no image */
#define XK_NO_PIXELS (-20)            /* roi_align: images without pixels have regions */
#define XK_INVALID_GROUPS (-21)       /* nms: they do not begin one after another */
#define XK_INVALID_ORDER (-22)        /* nms: the number of no box */
#define XK_INVALID_PROBABILITY (-23)  /* dropout: not from 0 to 1 */

/* Types of values in memory. */
#define XK_FLOAT32 0
#define XK_BFLOAT16 1
#define XK_FLOAT16 2

/* Returns the XK_ABI_VERSION that the library was built with. It changes when the meaning of a
 * function or the layout of a struct changes, not when functions are added. */
XK_API int32_t xk_abi_version(void);

/* ---- Instruction sets ----
 *
 * The library has each operator once for each of several instruction sets, and runs those of the
 * best one that the CPU and the operating system support. x86-64: "v2", "v3" (AVX2), "v4"
 * (AVX-512), "v4-bf16" (AVX-512 with bf16 and VNNI
 * instructions); aarch64, which has been tested under
 * emulation only: "base", "bf16". Every one computes the same bits, unless the operator's header
 * says otherwise. The variable XKERNELS_ISA names another; it is read once, when the library is
 * loaded. The team and the mailbox do not depend on it. */

/* Returns the name of the instruction set that the operators run on. NULL if XKERNELS_ISA names one
 * that does not exist or that this CPU does not support, or if this CPU supports none: operators
 * then return XK_NO_ISA. */
XK_API const char* xk_isa_name(void);

/* Returns the names of the instruction sets that this CPU supports, worst first, with a comma
 * between two. */
XK_API const char* xk_isa_supported(void);
