# SPDX-License-Identifier: Apache-2.0
"""How torch._inductor compiles in tests; it reads these variables when it is imported."""

from __future__ import annotations

CACHE = "TORCHINDUCTOR_CACHE_DIR"
VECTORS = "TORCHINDUCTOR_VEC_ISA_OK"
"""Whether kernels have vector instructions.

Here they have none: to find out which work, torch compiles six programs, for 10 seconds. The code blocks
of docs/ and the example streams.py are compiled with vector instructions.
"""
WRAPPER = "AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL"
"""How a library's code around its kernels is optimized.

Not at all here: optimizing it takes a seventh of a library's CPU time.
"""
SETTINGS = {VECTORS: "0", WRAPPER: "O0"}
