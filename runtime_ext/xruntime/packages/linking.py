# SPDX-License-Identifier: Apache-2.0
"""Links packages of compiled code so that each uses its own copy of the functions that it defines.

A package's library parses a device's name with std::regex, whose code is made anew in every library
that uses it, under the same names. The loader gives all of them the first that it finds; made by
another version of GCC, that is a crash (seen with GCC 13 beside a torch for CUDA 13, 2.11, in torch's own
loader as well). -Bsymbolic binds a library's calls to what it defines itself.

Where the compiler has no shared libstdc++ to link, it takes the static one, and the library defines all of
that, too. Its unique symbols are the process's in spite of -Bsymbolic: half of the library's locale
would be another's, and parsing the name a bad_cast or a crash (seen on Ubuntu 24.04). So names that come
from the static libstdc++ are kept inside.

torch has no setting for linker options, but one for the compiler: it is given a script that adds the
options where a library is linked.
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
    """Settings of Inductor with which the libraries of packages are linked so; none off Linux.

    The script lies in torch's cache folder, under a path that only changes with what it says: the path is
    part of the key of what torch caches.
    """
    if sys.platform != "linux":
        return {}
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    compiler = get_cpp_compiler()
    text = _SCRIPT.format(compiler=shlex.quote(compiler), options=_OPTIONS)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    folder = os.path.join(cache_dir(), "xruntime", name)
    # torch tells GCC from Clang by the name.
    script = os.path.join(folder, os.path.basename(compiler))
    os.makedirs(folder, mode=0o700, exist_ok=True)
    partial = f"{script}.{os.getpid()}"
    with open(partial, "w") as file:
        file.write(text)
    os.chmod(partial, 0o700)
    os.replace(partial, script)
    return {"cpp.cxx": (None, script)}
