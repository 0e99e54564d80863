# SPDX-License-Identifier: Apache-2.0
"""Compare OpenMP profiles: throughput under `xlaunch --omp PROFILE`.

    python -m benchmarks.launching.openmp
    python -m benchmarks.launching.openmp --profile auto --profile intel --work bert-bf16-64 --launches 8

One process on all allowed cores, eager torch. The first profile, `auto`, leaves the program's own
runtime and is the peer of the others. Several launches of each profile are alive and work in turns.
"""

import sys

from benchmarks.launching.profiles import compare_profiles

PROFILES = ["auto", "gnu", "intel", "llvm"]

RULE = "the program's own runtime, unless another is faster"

if __name__ == "__main__":
    sys.exit(compare_profiles(__doc__, "--omp", PROFILES, auto="auto", rule=RULE, least=1.0))
