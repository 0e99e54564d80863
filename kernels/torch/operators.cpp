// SPDX-License-Identifier: Apache-2.0
//
// Operators of DLRM for torch's dispatcher, so that code which torch compiled runs them without
// Python and its lock.
//
// `python -m xruntime kernels --build` compiles this file. It uses torch's stable ABI alone, as
// of 2.11: what is built with one torch runs with every newer one. xruntime.nn defines the
// operators, with their derivatives. Arguments are checked as far as memory is concerned;
// xruntime.nn has the full messages.

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

// A new matrix, by a direct call: through the dispatcher it takes several times as long.
Tensor new_matrix(int64_t rows, int64_t columns, int32_t dtype) {
  const int64_t sizes[] = {rows, columns}, strides[] = {columns, 1};
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(2, sizes, strides, dtype, aoti_torch_device_type_cpu(), 0, &handle));
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

void check_result(int32_t result) {
  require(result != XK_NO_ISA, "no instruction set to run on: see python -m xruntime kernels");
  require(result != XK_REFUSED, "no memory for a native operator");
  require(result == 0, "a native operator refuses its arguments (", result, ")");
}

// What the dispatcher gives: a list of the results, then of the positions of maxima.
Tensors merged_embedding_bag(Tensors weights, bool /*sparse*/, Tensors indices, Tensors offsets,
                             Tensors factors, int64_t mode, bool include_last_offset) {
  const size_t count = weights.size();
  if (count == 0) {
    return {};
  }
  require(indices.size() == count && (offsets.empty() || offsets.size() == count) &&
              (factors.empty() || factors.size() == count),
          "merged_embedding_bag: give indices, offsets and per-sample weights for each of ", count,
          " tables");
  require(mode >= XK_BAG_SUM && mode <= XK_BAG_MAX && (factors.empty() || mode == XK_BAG_SUM),
          "merged_embedding_bag: reduction ", mode, ", or per-sample weights with it");
  const ScalarType dtype = weights[0].scalar_type(), index_dtype = indices[0].scalar_type();
  std::vector<xk_bag_table> tables(count);
  xk_bags bags{};
  bags.count = static_cast<int64_t>(count);
  bags.tables = tables.data();
  bags.value_type = value_type(dtype);
  bags.index_type = index_type(index_dtype);
  bags.mode = static_cast<int32_t>(mode);
  bags.include_last_offset = include_last_offset;
  Tensors results(mode == XK_BAG_MAX ? 2 * count : count);

  for (size_t at = 0; at < count; ++at) {
    Tensor& weight = weights[at] = dense(weights[at]);
    Tensor& index = indices[at] = dense(indices[at]);
    require(weight.dim() == 2 && weight.size(1) > 0 && weight.scalar_type() == dtype &&
                bags.value_type >= 0,
            "merged_embedding_bag: table ", at, " has another shape or dtype");
    require(index.dim() == (offsets.empty() ? 2 : 1) && index.scalar_type() == index_dtype &&
                bags.index_type >= 0 && (!offsets.empty() || !include_last_offset),
            "merged_embedding_bag: indices of table ", at, " have another shape or dtype");
    xk_bag_table& table = tables[at];
    table.rows = weight.size(0);
    table.dim = weight.size(1);
    table.index_count = index.numel();
    table.weights = const_cast<void*>(weight.const_data_ptr());  // only read
    table.indices = index.const_data_ptr();
    table.bags = index.size(0);
    if (!offsets.empty()) {
      Tensor& offset = offsets[at] = dense(offsets[at]);
      require(offset.dim() == 1 && offset.scalar_type() == index_dtype &&
                  offset.numel() >= include_last_offset,
              "merged_embedding_bag: offsets of table ", at, " have another shape or dtype");
      table.offsets = offset.const_data_ptr();
      table.bags = offset.numel() - include_last_offset;
    }
    if (!factors.empty()) {
      Tensor& factor = factors[at] = dense(factors[at]);
      require(factor.dim() == index.dim() && factor.numel() == index.numel() &&
                  factor.scalar_type() == dtype,
              "merged_embedding_bag: per-sample weights of table ", at,
              " have another shape or dtype");
      table.factors = factor.const_data_ptr();
    }
    results[at] = new_matrix(table.bags, table.dim, dtype_of(weight));
    table.output = results[at].mutable_data_ptr();
    if (mode == XK_BAG_MAX) {
      results[count + at] = new_matrix(table.bags, table.dim, aoti_torch_dtype_int32());
      table.max_positions = static_cast<int32_t*>(results[count + at].mutable_data_ptr());
    }
  }

  xk_bag_problem problem{};
  const int32_t result = xk_bags_forward(&bags, &problem);
  require(result > XK_INVALID_INDEX || result < XK_INVALID_LAST_OFFSET,
          "merged_embedding_bag: table ", problem.table,
          result == XK_INVALID_INDEX ? ": index " : ": offset ", problem.value, " at position ",
          problem.position, " is invalid");
  check_result(result);
  return results;
}

Tensor interaction(Tensors tensors) {
  require(!tensors.empty(), "interaction: no tensors");
  const Tensor first = tensors[0];
  const int32_t type = value_type(first.scalar_type());
  require(first.dim() == 2 && first.size(1) <= INT32_MAX && type >= 0,
          "interaction: tensor 0 has another shape or dtype");
  const int64_t batch = first.size(0), features = first.size(1);
  const auto count = static_cast<int64_t>(tensors.size());
  std::vector<const void*> inputs;
  std::vector<int64_t> strides;
  for (Tensor& tensor : tensors) {
    require(tensor.dim() == 2 && tensor.size(0) == batch && tensor.size(1) == features &&
                tensor.scalar_type() == first.scalar_type(),
            "interaction: tensor ", inputs.size(), " has another shape or dtype than tensor 0");
    if (tensor.stride(1) != 1) {
      tensor = dense(tensor);
    }
    inputs.push_back(tensor.const_data_ptr());
    strides.push_back(tensor.stride(0));
  }
  Tensor output = new_matrix(batch, features + count * (count - 1) / 2, dtype_of(first));
  check_result(xk_interaction(inputs.data(), strides.data(), count, batch, features, type,
                              output.mutable_data_ptr()));
  return output;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(xruntime, CPU, library) {
  library.impl("merged_embedding_bag", TORCH_BOX(&merged_embedding_bag));
  library.impl("interaction", TORCH_BOX(&interaction));
}
