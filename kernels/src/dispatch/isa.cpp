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

#define XK_NAME(suffix, name, argument) name,
constexpr const char* kNames[] = {XK_EACH_ISA(XK_NAME, )};
#undef XK_NAME
constexpr int kCount = sizeof(kNames) / sizeof(kNames[0]);

#if defined(__x86_64__)
// The levels of the x86-64 ABI, by their features: GCC knows the levels' names from 12 on only.
// GCC's checks include XCR0, the registers that the operating system saves.
#define XK_HAS(feature) __builtin_cpu_supports(feature)

bool has_v2() {
  return XK_HAS("cmpxchg16b") && XK_HAS("lahf_lm") && XK_HAS("popcnt") && XK_HAS("sse3") &&
         XK_HAS("ssse3") && XK_HAS("sse4.1") && XK_HAS("sse4.2");
}

bool has_v3() {
  return has_v2() && XK_HAS("avx") && XK_HAS("avx2") && XK_HAS("bmi") && XK_HAS("bmi2") &&
         XK_HAS("f16c") && XK_HAS("fma") && XK_HAS("lzcnt") && XK_HAS("movbe");
}

bool has_v4() {
  return has_v3() && XK_HAS("avx512f") && XK_HAS("avx512bw") && XK_HAS("avx512cd") &&
         XK_HAS("avx512dq") && XK_HAS("avx512vl");
}
#endif

// Whether the CPU has the instructions and the operating system saves their registers.
bool supported(int isa) {
#if defined(__x86_64__)
  switch (isa) {
    case 0:
      return has_v2();
    case 1:
      return has_v3();
    case 2:
      return has_v4();
    default:
      return has_v4() && XK_HAS("avx512bf16") && XK_HAS("avx512vnni");
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

xkernels::Isa xkernels::isa_in_use() { return static_cast<Isa>(choice.isa); }

int32_t xk_abi_version(void) { return XK_ABI_VERSION; }

const char* xk_isa_name(void) { return choice.isa < 0 ? nullptr : kNames[choice.isa]; }

const char* xk_isa_supported(void) { return choice.supported_names; }
