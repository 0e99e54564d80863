/* SPDX-License-Identifier: Apache-2.0 */
/* Embedding bags of many tables in one call. xkernels.h has what holds for every function. */
#pragma once

#include "xkernels/library.h"

/* How the rows of a bag are reduced to one. An empty bag gives zeros. */
#define XK_BAG_SUM 0
#define XK_BAG_MEAN 1
#define XK_BAG_MAX 2 /* of each column; the first of equal values, NaN only if it comes first */

/* Types of indices and offsets. */
#define XK_INT32 0
#define XK_INT64 1

/* One table and the bags of rows that are looked up in it.
 *
 * Bag b holds the indices at positions offsets[b] to offsets[b + 1] - 1; the last one ends at
 * index_count. Without offsets all bags have index_count / bags indices, which must be a whole
 * number. Matrices are contiguous, with `dim` columns. Pointers are aligned to their elements and
 * may be NULL if there are no elements. Functions say which of the fields after `bags` they use. */
typedef struct xk_bag_table {
  int64_t rows; /* 0 to 2^31 - 1, like index_count and bags */
  int64_t dim;  /* at least 1 */
  int64_t index_count;
  int64_t bags;
  void* weights;          /* rows x dim, of value_type */
  const void* indices;    /* of index_type */
  const void* offsets;    /* of index_type, or NULL */
  const void* factors;    /* of value_type, one for each index, or NULL: 1. Not for the mean
                           * and the maximum */
  void* output;           /* bags x dim, of value_type: results, or their gradients */
  int32_t* max_positions; /* bags x dim, XK_BAG_MAX: positions of the largest values; -1. Forward
                           * does without: NULL */
  void* gradients;        /* what the function computes, of value_type */
  int64_t* gradient_rows; /* rows of sparse gradients */
  int64_t gradient_row_count; /* their number, set by the function */
  int16_t* remainders;        /* rows x dim, with XK_BFLOAT16: weights are XK_WEIGHTS_SPLIT */
  float* state;               /* rows x dim: momentum or sum of squares */
} xk_bag_table;

typedef struct xk_bags {
  int64_t count; /* of tables */
  xk_bag_table* tables;
  int32_t value_type;          /* XK_FLOAT32, XK_BFLOAT16 or XK_FLOAT16 */
  int32_t index_type;          /* XK_INT32 or XK_INT64 */
  int32_t mode;                /* XK_BAG_... */
  int32_t include_last_offset; /* 1: `offsets` has bags + 1 entries; the last is index_count */
} xk_bags;

/* Where the first invalid table, index or offset is. */
typedef struct xk_bag_problem {
  int64_t table;
  int64_t position; /* in its indices or offsets, if one of them is invalid */
  int64_t value;
} xk_bag_problem;

/* Every function checks all arguments, indices and offsets before it reads a row or writes. It runs
 * on the calling thread's OpenMP team; small calls run on the calling thread alone. Sums are
 * computed in fp32, of each column in the order of positions, and rounded once; so results do not
 * depend on the number of threads or the instruction set. Returns 0; XK_INVALID_MODE;
 * XK_INVALID_INDEX or one of the codes of offsets; or a code that is common to all operators. The
 * place is written to `problem`, which may be NULL. No written block may overlap with another block
 * of the call. */

/* Reduces each bag: output (written), and max_positions of XK_BAG_MAX (written). */
XK_API int32_t xk_bags_forward(const xk_bags* bags, xk_bag_problem* problem);

/* Gradients with respect to the weights, from those of the results in `output`: `gradients` is
 * rows x dim; rows that no index names are not written. */
XK_API int32_t xk_bags_dense_gradients(const xk_bags* bags, xk_bag_problem* problem);

/* The same for named rows only: `gradient_rows` (ascending) and the first gradient_row_count rows
 * of `gradients`. Both have room for the smaller one of `rows` and `index_count`. */
XK_API int32_t xk_bags_sparse_gradients(const xk_bags* bags, xk_bag_problem* problem);

/* Gradients with respect to the factors: `gradients` has one for each index; 0 without
 * bags. XK_BAG_SUM only. */
XK_API int32_t xk_bags_factor_gradients(const xk_bags* bags, xk_bag_problem* problem);

/* Update `weights` (fp32, or bf16 with remainders) by the gradients G with respect to them, one row
 * at a time and without a tensor of gradients. Rows that no index names are left alone, and so is
 * their state. The formulas are those of xk_sgd and xk_adagrad without dampening and decay of lr;
 * the state begins with zeros. SGD uses it only if momentum is not 0. */
XK_API int32_t xk_bags_sgd(const xk_bags* bags, double lr, double momentum, double weight_decay,
                           xk_bag_problem* problem);
XK_API int32_t xk_bags_adagrad(const xk_bags* bags, double lr, double eps, xk_bag_problem* problem);
