// SPDX-License-Identifier: Apache-2.0
//
// Operators of DLRM for torch's dispatcher, so that code which torch compiled runs them without
// Python and its lock.
//
// `python -m xruntime kernels --build` compiles this file. It uses torch's stable ABI alone, as
// of 2.11: what is built with one torch runs with every newer one. xruntime.nn defines the
// operators, with their derivatives. Here stands only what libxkernels.so does not see: whether
// shapes and dtypes agree. xruntime.nn.native_operators.call finds the full messages.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <sstream>
#include <stdexcept>
#include <vector>

#include "xkernels.h"

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Tensors = std::vector<Tensor>;

// The number of a dtype in xkernels.h, or -1.
int32_t value_type(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Float:
      return XK_FLOAT32;
    case ScalarType::BFloat16:
      return XK_BFLOAT16;
    case ScalarType::Half:
      return XK_FLOAT16;
    default:
      return -1;
  }
}

int32_t index_type(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Int:
      return XK_INT32;
    case ScalarType::Long:
      return XK_INT64;
    default:
      return -1;
  }
}

Tensor dense(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
}

// A new dense tensor, by a direct call: through the dispatcher it takes several times as long.
Tensor new_tensor(std::initializer_list<int64_t> sizes, int32_t dtype) {
  const int64_t strides[] = {std::end(sizes)[-1], 1};
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.begin(),
                                                  std::end(strides) - sizes.size(), dtype,
                                                  aoti_torch_device_type_cpu(), 0, &handle));
  return Tensor(handle);
}

int32_t dtype_of(const Tensor& tensor) {
  int32_t dtype = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &dtype));
  return dtype;
}

// Throws what torch raises as RuntimeError. STD_TORCH_CHECK would put this file's name in front.
template <typename... Parts>
void require(bool holds, const Parts&... parts) {
  if (!holds) {
    std::ostringstream text;
    (text << ... << parts);
    throw std::runtime_error(text.str());
  }
}

const char kDisagree[] = ": shapes or dtypes of the tensors do not agree";

void check_result(const char* name, int32_t result) {
  require(result != XK_NO_ISA, name, ": no instruction set: see python -m xruntime kernels");
  require(result != XK_REFUSED, name, ": no memory");
  require(result == 0, name, ": the arguments are refused (", result, ")");
}

// The arguments of xk_bags_forward, less the results. It keeps the tensors.
class Bags {
 public:
  Bags(const char* name, Tensors weights, Tensors indices, Tensors offsets, Tensors factors,
       int64_t mode, bool include_last_offset)
      : tables(weights.size()),
        name_(name),
        weights_(std::move(weights)),
        indices_(std::move(indices)),
        offsets_(std::move(offsets)),
        factors_(std::move(factors)) {
    const size_t count = tables.size();
    if (count == 0) return;
    require(indices_.size() == count && (offsets_.empty() || offsets_.size() == count) &&
                (factors_.empty() || factors_.size() == count),
            name_, kDisagree);
    bags_.count = static_cast<int64_t>(count);
    bags_.tables = tables.data();
    bags_.value_type = value_type(weights_[0].scalar_type());
    bags_.index_type = index_type(indices_[0].scalar_type());
    bags_.mode = static_cast<int32_t>(mode);
    bags_.include_last_offset = include_last_offset;
    for (size_t at = 0; at < count; ++at) fill(at);
  }

  // The dtype of the tables, as torch numbers it.
  int32_t dtype() const { return dtype_of(weights_[0]); }

  void run() {
    xk_bag_problem problem{};
    const int32_t result = xk_bags_forward(&bags_, &problem);
    require(result > XK_INVALID_INDEX || result < XK_INVALID_LAST_OFFSET, name_, ": table ",
            problem.table, result == XK_INVALID_INDEX ? ": index " : ": offset ", problem.value,
            " at position ", problem.position, " is invalid");
    check_result(name_, result);
  }

  std::vector<xk_bag_table> tables;

 private:
  // Sets the arguments of a table. The library checks what they say of it.
  void fill(size_t at) {
    Tensor &weight = weights_[at] = dense(weights_[at]),
           &index = indices_[at] = dense(indices_[at]);
    const auto index_dtype = indices_[0].scalar_type();
    bool agree = weight.dim() == 2 && weight.scalar_type() == weights_[0].scalar_type() &&
                 index.dim() == (offsets_.empty() ? 2 : 1) && index.scalar_type() == index_dtype;
    xk_bag_table& table = tables[at];
    if (!offsets_.empty()) {
      Tensor& offset = offsets_[at] = dense(offsets_[at]);
      agree = agree && offset.dim() == 1 && offset.scalar_type() == index_dtype;
      table.offsets = offset.const_data_ptr();
      table.bags = offset.numel() - bags_.include_last_offset;
    }
    if (!factors_.empty()) {
      Tensor& factor = factors_[at] = dense(factors_[at]);
      agree = agree && factor.dim() == index.dim() && factor.numel() == index.numel() &&
              factor.scalar_type() == weight.scalar_type();
      table.factors = factor.const_data_ptr();
    }
    require(agree && table.bags >= 0, name_, kDisagree);
    table.rows = weight.size(0);
    table.dim = weight.size(1);
    table.index_count = index.numel();
    if (offsets_.empty()) table.bags = index.size(0);
    table.weights = const_cast<void*>(weight.const_data_ptr());  // only read
    table.indices = index.const_data_ptr();
  }

  const char* name_;
  xk_bags bags_{};
  Tensors weights_, indices_, offsets_, factors_;
};

// What the dispatcher gives: a list of the results, then of the positions of maxima.
Tensors merged_embedding_bag(Tensors weights, bool /*sparse*/, Tensors indices, Tensors offsets,
                             Tensors factors, int64_t mode, bool include_last_offset) {
  Bags bags("merged_embedding_bag", std::move(weights), std::move(indices), std::move(offsets),
            std::move(factors), mode, include_last_offset);
  Tensors results, positions;
  for (xk_bag_table& table : bags.tables) {
    results.push_back(new_tensor({table.bags, table.dim}, bags.dtype()));
    table.output = results.back().mutable_data_ptr();
    if (mode != XK_BAG_MAX) continue;
    positions.push_back(new_tensor({table.bags, table.dim}, aoti_torch_dtype_int32()));
    table.max_positions = static_cast<int32_t*>(positions.back().mutable_data_ptr());
  }
  bags.run();
  results.insert(results.end(), positions.begin(), positions.end());
  return results;
}

// All results in one tensor, one after another, without positions.
Tensor merged_embedding_bag_packed(Tensors weights, Tensors indices, Tensors offsets,
                                   Tensors factors, int64_t mode, bool include_last_offset) {
  Bags bags("merged_embedding_bag_packed", std::move(weights), std::move(indices),
            std::move(offsets), std::move(factors), mode, include_last_offset);
  require(!bags.tables.empty(), "merged_embedding_bag_packed: no tables");
  int64_t size = 0;
  for (const xk_bag_table& table : bags.tables) size += table.bags * table.dim;
  Tensor packed = new_tensor({size}, bags.dtype());
  char* output = static_cast<char*>(packed.mutable_data_ptr());
  for (xk_bag_table& table : bags.tables) {
    table.output = output;
    output += table.bags * table.dim * packed.element_size();
  }
  bags.run();
  return packed;
}

Tensor interaction(Tensors tensors) {
  require(!tensors.empty(), "interaction: no tensors");
  const Tensor first = tensors[0];
  const int32_t type = value_type(first.scalar_type());
  require(first.dim() == 2 && first.size(1) <= INT32_MAX && type >= 0, "interaction", kDisagree);
  const int64_t batch = first.size(0), features = first.size(1);
  const auto count = static_cast<int64_t>(tensors.size());
  std::vector<const void*> inputs;
  std::vector<int64_t> strides;
  for (Tensor& tensor : tensors) {
    require(tensor.dim() == 2 && tensor.size(0) == batch && tensor.size(1) == features &&
                tensor.scalar_type() == first.scalar_type(),
            "interaction", kDisagree);
    if (tensor.stride(1) != 1) tensor = dense(tensor);
    inputs.push_back(tensor.const_data_ptr());
    strides.push_back(tensor.stride(0));
  }
  Tensor output = new_tensor({batch, features + count * (count - 1) / 2}, dtype_of(first));
  check_result("interaction", xk_interaction(inputs.data(), strides.data(), count, batch, features,
                                             type, output.mutable_data_ptr()));
  return output;
}

// Tensors of handles that stay the caller's.
Tensors tensors_of(const AtenTensorHandle* handles, int64_t count) {
  Tensors tensors;
  tensors.reserve(count);
  for (int64_t at = 0; at < count; ++at) {
    AtenTensorHandle handle = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(handles[at], &handle));
    tensors.emplace_back(handle);
  }
  return tensors;
}

AOTITorchError new_handle(const Tensor& tensor, AtenTensorHandle* result) {
  return aoti_torch_new_tensor_handle(tensor.get(), result);
}

}  // namespace

// Functions that compiled code calls directly. Inductor derives names and arguments from the
// schemas; operator_library.py declares the functions to it. They throw: for AOTI_TORCH_FAILURE the
// code, which is C++, would throw an error of its own without the message. It catches exceptions
// before it returns to C, since torch's aoti_torch_check throws them, too.
extern "C" {

AOTI_TORCH_EXPORT AOTITorchError aoti_torch_cpu_interaction(const AtenTensorHandle* tensors,
                                                            int64_t count,
                                                            AtenTensorHandle* result) {
  return new_handle(interaction(tensors_of(tensors, count)), result);
}

AOTI_TORCH_EXPORT AOTITorchError aoti_torch_cpu_merged_embedding_bag_packed(
    const AtenTensorHandle* weights, int64_t weight_count, const AtenTensorHandle* indices,
    int64_t index_count, const AtenTensorHandle* offsets, int64_t offset_count,
    const AtenTensorHandle* factors, int64_t factor_count, int64_t mode,
    int32_t include_last_offset, AtenTensorHandle* result) {
  return new_handle(merged_embedding_bag_packed(
                        tensors_of(weights, weight_count), tensors_of(indices, index_count),
                        tensors_of(offsets, offset_count), tensors_of(factors, factor_count), mode,
                        include_last_offset != 0),
                    result);
}

}  // extern "C"

STABLE_TORCH_LIBRARY_IMPL(xruntime, CPU, library) {
  library.impl("merged_embedding_bag", TORCH_BOX(&merged_embedding_bag));
  library.impl("merged_embedding_bag_packed", TORCH_BOX(&merged_embedding_bag_packed));
  library.impl("interaction", TORCH_BOX(&interaction));
}
