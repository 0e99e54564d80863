# SPDX-License-Identifier: Apache-2.0
"""Linker options with which each package uses its own copy of the functions that it defines.

A package's library parses a device's name with std::regex, whose code is compiled into every library
that uses it, under the same names. The loader binds all of them to the first that it finds; compiled by
another version of GCC, that crashes (seen with GCC 13 and a torch 2.11 for CUDA 13, also in torch's own
loader). -Bsymbolic binds a library's calls to its own definitions.

A compiler without a shared libstdc++ links the static one into the library. Its unique symbols are shared
with the process in spite of -Bsymbolic: half of the library's locale would be the process's, and parsing
the name ends in bad_cast or a crash (seen on Ubuntu 24.04). So names from the static libstdc++ are hidden.

torch has no setting for linker options, but one for the compiler: a script that adds the options when a
library is linked.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys

_OPTIONS = "-Wl,-Bsymbolic -Wl,--exclude-libs,libstdc++.a"

_SCRIPT = """\
#!/bin/sh
for argument in "$@"; do
    [ "$argument" = -shared ] && exec {compiler} "$@" {options}
done
exec {compiler} "$@"
"""


def linking_settings() -> dict[str, object]:
    """Return the settings of Inductor for these linker options; none on other systems than Linux.

    The script is in torch's cache directory, under a path that changes only with its text, because the
    path is part of the key of torch's cache.
    """
    if sys.platform != "linux":
        return {}
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    compiler = get_cpp_compiler()
    text = _SCRIPT.format(compiler=shlex.quote(compiler), options=_OPTIONS)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    directory = os.path.join(cache_dir(), "xruntime", name)
    # torch distinguishes GCC and Clang by the name.
    script = os.path.join(directory, os.path.basename(compiler))
    os.makedirs(directory, mode=0o700, exist_ok=True)
    partial = f"{script}.{os.getpid()}"
    with open(partial, "w") as file:
        file.write(text)
    os.chmod(partial, 0o700)
    os.replace(partial, script)
    return {"cpp.cxx": (None, script)}
