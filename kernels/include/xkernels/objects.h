/* SPDX-License-Identifier: Apache-2.0 */
/* Compares what objects of Python hold with what they held. xkernels.h has what holds for every
 * function. */
#pragma once

#include <stddef.h>

#include "xkernels/library.h"

/* DLTensor of DLPack 1. */
typedef struct {
  char* data;
  int32_t device_type, device;
  int32_t dims;
  uint32_t dtype;
  const int64_t *sizes, *strides;
  uint64_t offset;
} xk_tensor_view;

/* Functions of Python's stable ABI, and the one of DLPack's exchange API that reads a tensor.
 * Objects are PyObject*. The library is built without Python: the caller passes their addresses. */
typedef struct {
  int (*next)(void* dict, ptrdiff_t* position, void** key, void** value); /* PyDict_Next */
  void* (*class_of)(void* object);                                        /* PyObject_Type */
  void* (*attribute)(void* object, void* name);                           /* PyObject_GetAttr */
  int (*compare)(void* one, void* other, int operation); /* PyObject_RichCompareBool */
  void (*release)(void* object);                         /* Py_DecRef */
  int (*read)(void* tensor, xk_tensor_view* view); /* dltensor_from_py_object_no_sync, or NULL */
} xk_object_functions;

/* Up to 8 bytes in memory. */
typedef struct {
  const void* address;
  uint64_t size;
  uint64_t value; /* the other bytes are 0 */
} xk_word;

/* What objects held. Objects are compared by address, but `values` as Python's == compares them. */
typedef struct {
  int64_t instance_count, dict_count, tensor_count, owner_count, word_count;
  void* const* instances;
  void* const* classes; /* of the instances */
  void* const* dicts;
  /* The key and the value of each entry of the first dict, in their order, then NULL, the entries
   * of the second dict, then NULL, and so on. Any value is as good as a NULL value. */
  void* const* entries;
  void* const* tensors;
  /* The address of the first element of each tensor, its number of dimensions, its dtype as DLPack
   * has it, its sizes and its strides. */
  const int64_t* forms;
  void* const* owners;
  void* name;
  void* const* values;  /* the attribute `name` of each owner */
  const xk_word* words; /* read last, if all tensors are where they were */
} xk_objects;

/* Returns 1 if the objects hold what they held, else 0; 0 with an exception set if Python raised
 * one.
 *
 * The caller holds the GIL, and keeps everything alive that has an address here. Returns 0 if a
 * pointer is NULL. */
XK_API int32_t xk_objects_hold(const xk_object_functions* functions, const xk_objects* held);
