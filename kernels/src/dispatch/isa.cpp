// SPDX-License-Identifier: Apache-2.0
//
// Chooses the instruction set once, when the library is loaded.
#include "dispatch/isa.h"

#include <stdlib.h>
#include <string.h>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "xkernels/library.h"

namespace {

#define XK_NAME(suffix, name) name,
constexpr const char* kNames[] = {XK_EACH_ISA(XK_NAME)};
#undef XK_NAME
constexpr int kCount = sizeof(kNames) / sizeof(kNames[0]);

// Whether the CPU has the instructions and the operating system saves their registers.
bool supported(int isa) {
#if defined(__x86_64__)
  // GCC's checks include XCR0, the registers that the operating system saves.
  switch (isa) {
    case 0:
      return __builtin_cpu_supports("x86-64-v2");
    case 1:
      return __builtin_cpu_supports("x86-64-v3");
    case 2:
      return __builtin_cpu_supports("x86-64-v4");
    default:
      return __builtin_cpu_supports("x86-64-v4") && __builtin_cpu_supports("avx512bf16");
  }
#elif defined(__aarch64__)
  constexpr unsigned long kBf16 = 1UL << 14;  // HWCAP2_BF16, which old headers lack
  return isa == 0 || (getauxval(AT_HWCAP2) & kBf16) != 0;
#else
  return isa == 0;
#endif
}

struct Choice {
  int isa = -1;
  char supported_names[64] = "";  // of all kNames with commas, and more
};
Choice choice;

__attribute__((constructor)) void choose() {
#if defined(__x86_64__)
  __builtin_cpu_init();
#endif
  const char* wanted = getenv("XKERNELS_ISA");
  if (wanted != nullptr && *wanted == '\0') wanted = nullptr;
  for (int isa = 0; isa < kCount; ++isa) {
    if (!supported(isa)) continue;
    if (choice.supported_names[0] != '\0') strcat(choice.supported_names, ",");
    strcat(choice.supported_names, kNames[isa]);
    if (wanted == nullptr || strcmp(wanted, kNames[isa]) == 0) choice.isa = isa;
  }
}

}  // namespace

int xkernels::isa_index() { return choice.isa; }

const char* xk_isa_name(void) { return choice.isa < 0 ? nullptr : kNames[choice.isa]; }

const char* xk_isa_supported(void) { return choice.supported_names; }
