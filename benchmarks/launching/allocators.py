# SPDX-License-Identifier: Apache-2.0
"""Compare allocator profiles: throughput, peak memory and resting memory.

    python -m benchmarks.launching.allocators
    python -m benchmarks.launching.allocators --profile glibc --profile glibc-tuned --work resnet50-bf16-64 --launches 8

One process on all allowed cores, under `xlaunch --allocator PROFILE`, eager torch. The first
profile, untuned glibc, is the peer: what plain python uses. Several launches of each profile
are alive and work in turns of half a second (turns.py).
"""

import sys

from benchmarks.launching.profiles import compare_profiles

PROFILES = [
    *("glibc", "glibc-tuned", "glibc-one-arena", "glibc-frugal"),
    *("jemalloc", "tcmalloc", "mimalloc"),
]

RULE = "within 3 % of the best profile on every row"

if __name__ == "__main__":
    sys.exit(
        compare_profiles(__doc__, "--allocator", PROFILES, auto="tcmalloc", rule=RULE, least=0.97)
    )
