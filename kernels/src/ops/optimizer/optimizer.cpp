// SPDX-License-Identifier: Apache-2.0
//
// Optimizer steps: checks, per-tensor numbers, and the division of all tensors among the team.
#include "ops/optimizer/kernels.h"
#include "ops/team.h"

namespace {

using namespace xkernels;

// A chunk is run by one thread. Sums over a tensor are added chunk by chunk, so this number is part
// of the result.
constexpr int64_t kChunkSize = 32 * kBlockSize;

// Steps of fewer elements run on the calling thread: waking a team takes longer.
constexpr int64_t kGrain = 32768;

// Bytes of a stored weight, or its upper half.
int weight_width(const xk_tensors& t) { return t.weight_format == XK_WEIGHTS_FLOAT32 ? 4 : 2; }

template <typename Pointer>
bool all_usable(const xk_tensors& tensors, Pointer const* pointers, int width) {
  if (pointers == nullptr) return false;
  for (int64_t i = 0; i < tensors.count; ++i) {
    if (!usable(pointers[i], width, tensors.sizes[i])) return false;
  }
  return true;
}

// What an optimizer needs of its tensors.
struct Needs {
  bool first, second, steps, fresh;
};

int32_t problem_of(const xk_tensors* tensors, Needs needs) {
  if (tensors == nullptr) return XK_INVALID_POINTER;
  const xk_tensors& t = *tensors;
  if (t.weight_format < XK_WEIGHTS_FLOAT32 || t.weight_format > XK_WEIGHTS_STOCHASTIC ||
      (t.gradient_type != XK_FLOAT32 && t.gradient_type != XK_BFLOAT16) ||
      (t.state_type != XK_FLOAT32 && t.state_type != XK_BFLOAT16)) {
    return XK_INVALID_TYPE;
  }
  if (t.count < 0) return XK_INVALID_SIZE;
  if (t.count == 0) return 0;
  if (t.sizes == nullptr) return XK_INVALID_POINTER;
  for (int64_t i = 0; i < t.count; ++i) {
    if (t.sizes[i] < 0 || t.sizes[i] > INT64_MAX / 8) return XK_INVALID_SIZE;
  }
  const bool split = t.weight_format == XK_WEIGHTS_SPLIT;
  if (!all_usable(t, t.weights, weight_width(t)) || (split && !all_usable(t, t.remainders, 2)) ||
      !all_usable(t, t.gradients, width_of(t.gradient_type)) ||
      (needs.first && !all_usable(t, t.first, width_of(t.state_type))) ||
      (needs.second && !all_usable(t, t.second, width_of(t.state_type))) ||
      (needs.fresh && t.fresh == nullptr) || (needs.steps && t.steps == nullptr)) {
    return XK_INVALID_POINTER;
  }
  for (int64_t i = 0; needs.steps && i < t.count; ++i) {
    if (!usable(t.steps[i], 4)) return XK_INVALID_POINTER;
  }
  return 0;
}

void* advance(void* pointer, int64_t bytes) {
  return pointer == nullptr ? nullptr : static_cast<char*>(pointer) + bytes;
}

Chunk chunk_of(const xk_tensors& t, Needs needs, int64_t entry, int64_t start) {
  const int64_t left = t.sizes[entry] - start;
  const int64_t state = start * width_of(t.state_type);
  Chunk chunk;
  chunk.weight = advance(t.weights[entry], start * weight_width(t));
  chunk.remainder = t.weight_format == XK_WEIGHTS_SPLIT ? t.remainders[entry] + start : nullptr;
  chunk.gradient = static_cast<const char*>(t.gradients[entry]) + start * width_of(t.gradient_type);
  chunk.first = needs.first ? advance(t.first[entry], state) : nullptr;
  chunk.second = needs.second ? advance(t.second[entry], state) : nullptr;
  chunk.count = left < kChunkSize ? left : kChunkSize;
  chunk.first_block = start / kBlockSize;
  // The kernels mix it with the number of each block.
  chunk.key = t.seed + 0x9e3779b97f4a7c15u * (static_cast<uint64_t>(entry) + 1);
  chunk.weight_format = t.weight_format;
  chunk.gradient_type = t.gradient_type;
  chunk.state_type = t.state_type;
  chunk.maximize = t.maximize != 0;
  return chunk;
}

// A share of all chunks: calls visit(entry, number of the chunk, chunk) for the chunks that begin
// at or after element `begin` of all tensors' elements, and before `end`.
template <typename Visit>
void visit_share(const xk_tensors& t, Needs needs, int64_t begin, int64_t end, const Visit& visit) {
  int64_t before = 0;  // elements of the tensors before this one
  int64_t number = 0;
  for (int64_t entry = 0; entry < t.count && before < end; ++entry) {
    const int64_t size = t.sizes[entry];
    const int64_t chunks = divide_up(size, kChunkSize);
    if (before + size > begin) {
      const int64_t skipped = begin <= before ? 0 : divide_up(begin - before, kChunkSize);
      for (int64_t at = skipped; at < chunks && before + at * kChunkSize < end; ++at) {
        visit(entry, number + at, chunk_of(t, needs, entry, at * kChunkSize));
      }
    }
    before += size;
    number += chunks;
  }
}

// Visits every chunk once, each thread those of an equal share of all elements: many small tensors
// and few large ones are balanced alike.
template <typename Visit>
void visit_all(const xk_tensors& t, Needs needs, const Visit& visit) {
  int64_t total = 0;
  for (int64_t entry = 0; entry < t.count; ++entry) total += t.sizes[entry];
  run_on_team(total >= kGrain, [&](int64_t thread, int64_t threads) {
    const Share share = share_of(total, thread, threads);
    visit_share(t, needs, share.begin, share.end, visit);
  });
}

void count_steps(const xk_tensors& t) {
  for (int64_t entry = 0; entry < t.count; ++entry) {
    if (entry == 0 || t.steps[entry] != t.steps[entry - 1]) *t.steps[entry] += 1;
  }
}

// base^exponent for a whole exponent, without the mathematical library.
double power(double base, float exponent) {
  double result = 1;
  for (int64_t left = static_cast<int64_t>(exponent); left > 0; left >>= 1) {
    if (left & 1) result *= base;
    base *= base;
  }
  return result;
}

void no_longer_fresh(const xk_tensors& t, Needs needs) {
  if (!needs.fresh) return;
  for (int64_t entry = 0; entry < t.count; ++entry) t.fresh[entry] = 0;
}

// Norms of the chunks of all tensors, then a rate for each tensor.
class Norms {
 public:
  explicit Norms(const xk_tensors& t) : tensors_(t) {
    int64_t chunks = 0;
    for (int64_t entry = 0; entry < t.count; ++entry) {
      chunks += divide_up(t.sizes[entry], kChunkSize);
    }
    allocated_ = chunks_.allocate_zeros(chunks) && rates_.allocate_zeros(t.count);
  }

  bool allocated() const { return allocated_; }
  void set(int64_t chunk, SquaredNorms norms) { chunks_[chunk] = norms; }
  double rate(int64_t entry) const { return rates_[entry]; }

  template <typename Rate>
  void compute_rates(Rate rate) {
    int64_t chunk = 0;
    for (int64_t entry = 0; entry < tensors_.count; ++entry) {
      SquaredNorms sum = {0, 0};
      for (int64_t start = 0; start < tensors_.sizes[entry]; start += kChunkSize, ++chunk) {
        sum.weights += chunks_[chunk].weights;
        sum.updates += chunks_[chunk].updates;
      }
      const double weights = __builtin_sqrt(sum.weights), updates = __builtin_sqrt(sum.updates);
      rates_[entry] = weights == 0 || updates == 0 ? 1 : rate(weights, updates);
    }
  }

 private:
  const xk_tensors& tensors_;
  Buffer<SquaredNorms> chunks_;
  Buffer<double> rates_;
  bool allocated_;
};

}  // namespace

int32_t xk_sgd(const xk_tensors* tensors, double lr, double momentum, double dampening,
               double weight_decay, int32_t nesterov) {
  return xk_lars(tensors, lr, momentum, dampening, weight_decay, nesterov, 0, 0, 0);
}

int32_t xk_lars(const xk_tensors* tensors, double lr, double momentum, double dampening,
                double weight_decay, int32_t nesterov, double trust, double eps, int32_t adaptive) {
  const bool remembers = momentum != 0;
  const Needs needs = {remembers, false, false, remembers};
  const int32_t problem = checked<OptimizerKernels>(problem_of(tensors, needs));
  if (problem != 0) return problem;
  const OptimizerKernels* kernels = kernels_in_use<OptimizerKernels>();
  const xk_tensors& t = *tensors;
  const Sgd shared = {fp32(lr),      fp32(momentum), fp32(1 - dampening), fp32(weight_decay), 1.0F,
                      nesterov != 0, false};
  const auto update = [&](int64_t entry, const Chunk& chunk, double scale) {
    Sgd sgd = shared;
    sgd.gradient_scale = fp32(scale);
    sgd.fresh = remembers && t.fresh[entry] != 0;
    kernels->sgd(chunk, sgd);
  };
  if (adaptive == 0) {
    visit_all(t, needs,
              [&](int64_t entry, int64_t, const Chunk& chunk) { update(entry, chunk, 1); });
  } else {
    Norms norms(t);
    if (!norms.allocated()) return XK_REFUSED;
    visit_all(t, needs, [&](int64_t, int64_t number, const Chunk& chunk) {
      norms.set(number, kernels->norms(chunk));
    });
    norms.compute_rates([&](double weights, double gradients) {
      return trust * weights / (gradients + weight_decay * weights + eps);
    });
    visit_all(t, needs, [&](int64_t entry, int64_t, const Chunk& chunk) {
      update(entry, chunk, norms.rate(entry));
    });
  }
  no_longer_fresh(t, needs);
  return 0;
}

int32_t xk_adagrad(const xk_tensors* tensors, double lr, double lr_decay, double weight_decay,
                   double eps) {
  const Needs needs = {true, false, true, false};
  const int32_t problem = checked<OptimizerKernels>(problem_of(tensors, needs));
  if (problem != 0) return problem;
  const OptimizerKernels* kernels = kernels_in_use<OptimizerKernels>();
  const xk_tensors& t = *tensors;
  count_steps(t);
  visit_all(t, needs, [&](int64_t entry, int64_t, const Chunk& chunk) {
    const double rate = lr / (1 + (static_cast<double>(*t.steps[entry]) - 1) * lr_decay);
    kernels->adagrad(chunk, {fp32(rate), fp32(weight_decay), fp32(eps)});
  });
  return 0;
}

int32_t xk_adam(const xk_tensors* tensors, double lr, double beta1, double beta2, double eps,
                double weight_decay, int32_t decoupled) {
  const Needs needs = {true, true, true, false};
  const int32_t problem = checked<OptimizerKernels>(problem_of(tensors, needs));
  if (problem != 0) return problem;
  const OptimizerKernels* kernels = kernels_in_use<OptimizerKernels>();
  const xk_tensors& t = *tensors;
  count_steps(t);
  visit_all(t, needs, [&](int64_t entry, int64_t, const Chunk& chunk) {
    const double correction1 = 1 - power(beta1, *t.steps[entry]);
    const double correction2 = 1 - power(beta2, *t.steps[entry]);
    const Adam adam = {fp32(lr / correction1),
                       fp32(beta2),
                       fp32(1 - beta1),
                       fp32(1 - beta2),
                       fp32(1 / __builtin_sqrt(correction2)),
                       fp32(eps),
                       decoupled ? 0.0F : fp32(weight_decay),
                       decoupled ? fp32(1 - lr * weight_decay) : 1.0F};
    kernels->adam(chunk, adam);
  });
  return 0;
}

int32_t xk_lamb(const xk_tensors* tensors, double lr, double beta1, double beta2, double eps,
                double weight_decay, int32_t adaptive) {
  const Needs needs = {true, true, true, false};
  const int32_t problem = checked<OptimizerKernels>(problem_of(tensors, needs));
  if (problem != 0) return problem;
  const OptimizerKernels* kernels = kernels_in_use<OptimizerKernels>();
  const xk_tensors& t = *tensors;
  Norms norms(t);
  if (!norms.allocated()) return XK_REFUSED;
  count_steps(t);
  const auto numbers_of = [&](int64_t entry) {
    return Lamb{fp32(beta2),
                fp32(1 - beta1),
                fp32(1 - beta2),
                fp32(1 / (1 - power(beta1, *t.steps[entry]))),
                fp32(1 / (1 - power(beta2, *t.steps[entry]))),
                fp32(eps),
                fp32(weight_decay)};
  };
  visit_all(t, needs, [&](int64_t entry, int64_t number, const Chunk& chunk) {
    norms.set(number, kernels->lamb_moments(chunk, numbers_of(entry)));
  });
  norms.compute_rates(
      [&](double weights, double updates) { return adaptive != 0 ? weights / updates : 1; });
  visit_all(t, needs, [&](int64_t entry, int64_t, const Chunk& chunk) {
    kernels->lamb_weights(chunk, numbers_of(entry), fp32(lr * norms.rate(entry)));
  });
  return 0;
}
