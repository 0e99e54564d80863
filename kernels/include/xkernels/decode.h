/* SPDX-License-Identifier: Apache-2.0 */
/* One decode step of a language model. xkernels.h has what holds for every function. */
#pragma once

#include "xkernels/library.h"
#include "xkernels/weights.h"

/* Values over the root of their mean square, or less their mean and over their standard deviation;
 * then times the weight and plus the bias, if there is one. Without a weight they stay. */
typedef struct xk_decode_norm {
  const void *weight, *bias;
} xk_decode_norm;

enum { XK_ROOT_MEAN_SQUARE, XK_MEAN_AND_DEVIATION }; /* what a norm divides by */
enum { XK_SILU, XK_GELU, XK_GELU_BY_TANH, XK_RELU }; /* activations */

/* A layer: x += attention_post_norm(attention(input_norm(x))), then
 * x += mlp_post_norm(down(activation(gate(mlp_norm(x))) * up(mlp_norm(x)))).
 *
 * A bias may be NULL. Without values of `gate`, it is
 * down(activation(up(x))). Without values of `key` and `value`, the outputs of `query` are a query,
 * a key and a value for each head. query_norm and key_norm have head_dim values and are applied to
 * each head before the rotary embedding. */
typedef struct xk_decode_layer {
  xk_decode_norm input_norm, attention_post_norm, mlp_norm, mlp_post_norm, query_norm, key_norm;
  xk_weights query, key, value, output, gate, up, down;
  const void *query_bias, *key_bias, *value_bias, *output_bias, *gate_bias, *up_bias, *down_bias;
  void *keys, *values;  /* cached positions; the step writes number `position` */
  int64_t batch_stride; /* elements from one sequence's keys and values to the next one's */
  int64_t head_stride;  /* elements from one head's to the next one's; positions are dense */
  int64_t position;     /* how many positions are cached before this one */
  int64_t window;       /* how many positions attend, this one included; 0: all */
  int64_t rotary;       /* which of `cosines` and `sines` it has */
} xk_decode_layer;

typedef struct xk_decode {
  const xk_decode_layer* layers;
  int64_t layer_count, batch, hidden, heads, kv_heads, head_dim, intermediate, vocabulary;
  int64_t rotary_size;   /* how many elements of a head are turned, the first ones; even */
  int32_t weight_type;   /* of the embedding and the biases of linears */
  int32_t norm_type;     /* of the norms' weights */
  int32_t cache_type;    /* of keys and values */
  int32_t norm_kind;     /* XK_ROOT_MEAN_SQUARE or XK_MEAN_AND_DEVIATION */
  int32_t activation;    /* XK_SILU and so on */
  int32_t parallel;      /* not 0: both parts of a layer see the same x, and are added at its end */
  float epsilon;         /* of the norms */
  float norm_offset;     /* is added to the weights of norms */
  float scale;           /* of the products of queries and keys */
  float score_cap;       /* c: these become c * tanh(product / c); 0: they stay */
  float logit_cap;       /* likewise of logits */
  float embedding_scale; /* of the rows of `embedding` */
  const void* embedding; /* (vocabulary, hidden) */
  const float* addends;  /* (batch, hidden), added to these rows: of positions; or NULL */
  xk_decode_norm norm;   /* before the head */
  xk_weights head;       /* (vocabulary, hidden) */
  const void* head_bias; /* or NULL */
  const int64_t* tokens; /* (batch), each below vocabulary */
  const float *cosines, *sines; /* (rotary embeddings, batch, rotary_size) */
  const int64_t* starts;        /* (batch): how many of `positions` are padding, at the left */
  int64_t positions;            /* cached positions of a sequence before this one, also those that a
                                   layer has dropped */
  void* logits;                 /* (batch, vocabulary), of logits_type */
  int32_t logits_type;
  int32_t threads; /* how many of the team compute, the others sleep; 0: all */
} xk_decode;

/* Computes the logits of the next token of each sequence, and adds this token to the cache.
 *
 * Types are XK_FLOAT32 or XK_BFLOAT16; weights of linears may be packed, or stored as (inputs,
 * outputs). Everything between the
 * stored values is computed in fp32; keys and values are rounded when they are stored. The rotary
 * embedding turns element i of a head with element i + rotary_size / 2. Results do not depend on
 * the number of threads; their last bits depend on the instruction set.
 *
 * Runs one parallel region on the calling thread's OpenMP team. Several calls may run at once if
 * their caches differ. Returns 0 or a code that is common to all operators, and XK_INVALID_INDEX
 * for a token that is not in the vocabulary. */
XK_API int32_t xk_decode_step(const xk_decode* step);
