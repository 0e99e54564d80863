// SPDX-License-Identifier: Apache-2.0
//
// The instruction sets that operators are compiled for, and the one that this process uses.
#ifndef XKERNELS_DISPATCH_ISA_H
#define XKERNELS_DISPATCH_ISA_H

// X(suffix, name) for each, worst first. CMakeLists.txt has the compiler's flags for each suffix.
#if defined(__x86_64__)
#define XK_EACH_ISA(X) X(v2, "v2") X(v3, "v3") X(v4, "v4") X(v4_bf16, "v4-bf16")
#elif defined(__aarch64__)
#define XK_EACH_ISA(X) X(base, "base") X(bf16, "bf16")
#else
#define XK_EACH_ISA(X) X(base, "base")
#endif

// Pastes the suffix of an instruction set to a name, also if the suffix is a macro.
#define XK_WITH_SUFFIX(name, suffix) XK_WITH_SUFFIX_OF(name, suffix)
#define XK_WITH_SUFFIX_OF(name, suffix) name##_##suffix

namespace xkernels {

// Position among XK_EACH_ISA of the instruction set to use; -1 if there is none.
int isa_index();

}  // namespace xkernels

#endif  // XKERNELS_DISPATCH_ISA_H
