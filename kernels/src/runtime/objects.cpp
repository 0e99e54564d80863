// SPDX-License-Identifier: Apache-2.0
#include "xkernels/objects.h"

#include <string.h>

#include <initializer_list>

namespace {

constexpr int kEqual = 2;  // Py_EQ

bool classes_hold(const xk_object_functions& python, const xk_objects& held) {
  for (int64_t i = 0; i < held.instance_count; ++i) {
    void* type = python.class_of(held.instances[i]);
    python.release(type);
    if (type != held.classes[i]) return false;
  }
  return true;
}

bool dicts_hold(const xk_object_functions& python, const xk_objects& held) {
  void* const* entries = held.entries;
  for (int64_t i = 0; i < held.dict_count; ++i) {
    ptrdiff_t position = 0;
    void *key, *value;
    while (python.next(held.dicts[i], &position, &key, &value) != 0) {
      if (entries[0] != key || (entries[1] != nullptr && entries[1] != value)) return false;
      entries += 2;
    }
    if (*entries++ != nullptr) return false;
  }
  return true;
}

bool tensors_hold(const xk_object_functions& python, const xk_objects& held) {
  const int64_t* form = held.forms;
  for (int64_t i = 0; i < held.tensor_count; ++i) {
    xk_tensor_view now;
    if (python.read(held.tensors[i], &now) != 0) return false;
    const int64_t address = reinterpret_cast<int64_t>(now.data + now.offset);
    if (form[0] != address || form[1] != now.dims || form[2] != now.dtype) return false;
    form += 3;
    for (const int64_t* numbers : {now.sizes, now.strides}) {
      for (int32_t dim = 0; dim < now.dims; ++dim) {
        if (*form++ != numbers[dim]) return false;
      }
    }
  }
  return true;
}

bool attributes_hold(const xk_object_functions& python, const xk_objects& held) {
  for (int64_t i = 0; i < held.owner_count; ++i) {
    void* value = python.attribute(held.owners[i], held.name);
    if (value == nullptr) return false;
    const bool same = python.compare(value, held.values[i], kEqual) == 1;
    python.release(value);
    if (!same) return false;
  }
  return true;
}

bool words_hold(const xk_objects& held) {
  for (int64_t i = 0; i < held.word_count; ++i) {
    const xk_word& word = held.words[i];
    uint64_t value = 0;
    memcpy(&value, word.address, word.size);
    if (value != word.value) return false;
  }
  return true;
}

}  // namespace

int32_t xk_objects_hold(const xk_object_functions* functions, const xk_objects* held) {
  if (functions == nullptr || held == nullptr) return 0;
  const xk_object_functions& python = *functions;
  return classes_hold(python, *held) && dicts_hold(python, *held) && tensors_hold(python, *held) &&
         attributes_hold(python, *held) && words_hold(*held);
}
