// SPDX-License-Identifier: Apache-2.0
//
// The instruction sets that operators are compiled for, the one that this process uses, and the
// functions that each has of an operator.
#pragma once

#include "xkernels/library.h"

// X(suffix, name, argument) for each, worst first. CMakeLists.txt has the compiler's flags for each
// suffix.
#if defined(__x86_64__)
#define XK_EACH_ISA(X, argument) \
  X(v2, "v2", argument) X(v3, "v3", argument) X(v4, "v4", argument) X(v4_bf16, "v4-bf16", argument)
#elif defined(__aarch64__)
#define XK_EACH_ISA(X, argument) X(base, "base", argument) X(bf16, "bf16", argument)
#else
#define XK_EACH_ISA(X, argument) X(base, "base", argument)
#endif

namespace xkernels {

#define XK_SUFFIX(suffix, name, argument) suffix,
enum class Isa : int { kNone = -1, XK_EACH_ISA(XK_SUFFIX, ) };
#undef XK_SUFFIX

// The instruction set to use.
Isa isa_in_use();

// What an instruction set implements of an operator: a struct of functions, which the operator's
// kernels.h names to XK_DECLARE_KERNELS. NAME.isa.inc gives the functions to XK_REGISTER, at its
// end.
template <typename Kernels, Isa isa>
const Kernels& kernels_on();

#define XK_DECLARE_KERNELS(Kernels) XK_EACH_ISA(XK_DECLARE_ONE, Kernels)
#define XK_DECLARE_ONE(suffix, name, Kernels) \
  template <>                                 \
  const Kernels& kernels_on<Kernels, Isa::suffix>();

#define XK_REGISTER(Kernels, ...)                       \
  template <>                                           \
  const Kernels& kernels_on<Kernels, Isa::XK_ISA>() {   \
    static constexpr Kernels functions = {__VA_ARGS__}; \
    return functions;                                   \
  }

// Those of the instruction set in use; nullptr without one.
template <typename Kernels>
const Kernels* kernels_in_use() {
#define XK_CASE(suffix, name, argument) \
  case Isa::suffix:                     \
    return &kernels_on<Kernels, Isa::suffix>();
  switch (isa_in_use()) {
    XK_EACH_ISA(XK_CASE, )
    default:
      return nullptr;
  }
#undef XK_CASE
}

// The code of what is wrong with the arguments; XK_NO_ISA if they are valid and there are no
// functions.
template <typename Kernels>
int32_t checked(int32_t problem) {
  return problem == 0 && kernels_in_use<Kernels>() == nullptr ? XK_NO_ISA : problem;
}

}  // namespace xkernels
