# SPDX-License-Identifier: Apache-2.0
"""`compile_package`: compiles a module into an AOTInductor package."""

from __future__ import annotations

import hashlib
import inspect
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from xlaunch.files import write_whole
from xruntime.aoti.inputs import memory_format
from xruntime.aoti.package_file import own_description
from xruntime.compilation.inductor import (
    compiling,
    eager_module,
    explaining,
    inductor_options,
    mend_compiler,
)
from xruntime.compilation.samples import Sample, checked_count, sample_call
from xruntime.errors import CompilationError
from xruntime.operator_library import LINK_OPTIONS
from xruntime.pytrees import with_tensors
from xruntime.threads.team import team_of

_SCRIPT = """\
#!/bin/sh
for argument in "$@"; do
    [ "$argument" = -shared ] && exec {compiler} "$@" {options}
done
exec {compiler} "$@"
"""


def compile_package(
    model: torch.nn.Module,
    sample: object,
    path: str | os.PathLike[str],
    *,
    threads: int,
    freezing: bool = True,
    dynamic: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Path:
    """Compile an eager module into the package `path` (.pt2), for streams of `threads` cores.

    `sample`, `freezing`, `dynamic` and `options` are as for compile_for_streams; the precision is the
    module's own, so convert it first, for example by .to(torch.bfloat16). The package runs only the
    sample's shape; with `dynamic`, dimension 0 of a tensor may vary unless the module fixes it. It runs
    on CPUs with the instructions of this one.

    Raises CompilationError, SampleError, ThreadCountError, KernelsUnavailableError.
    """
    import torch._inductor as inductor

    call = _dense(sample_call(sample))
    module = eager_module(model)
    checked_count("threads", threads, "the number of cores of each stream")
    path = os.path.abspath(os.fspath(path))
    if not path.endswith(".pt2") or not os.path.isdir(os.path.dirname(path)):
        raise CompilationError(
            f"{path}: a package needs a name that ends in .pt2, in a directory that exists"
        )
    settings = inductor_options(options, threads=threads, freezing=freezing)
    mend_compiler()
    with compiling, team_of(threads), explaining(module, only_compiles=True), torch.no_grad():
        settings = library_settings(settings)
        exported = torch.export.export(
            module,
            call.args,
            call.kwargs,
            dynamic_shapes=_varying(module, call) if dynamic else None,
        )
        if dynamic and not exported.range_constraints:
            raise CompilationError(
                f"dynamic=True: dimension 0 of no tensor of the sample can vary in"
                f" {type(module).__name__}. Give a sample of at least 2 items; TORCH_LOGS=+dynamic shows"
                " what fixes the size"
            )
        written: str = inductor.aoti_compile_and_package(
            exported, package_path=path, inductor_configs=settings
        )
    return Path(written)


def _dense(call: Sample) -> Sample:
    """Return the same call with tensors without gaps, so that the package expects such."""

    def dense(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous() if memory_format(tensor) is None else tensor

    return Sample(*with_tensors(dense, tuple(call)))


def _varying(module: torch.nn.Module, call: Sample) -> dict[str, Any]:
    """torch.export's dynamic_shapes that let dimension 0 of each tensor vary, by parameter."""

    def vary(value: Any) -> dict[int, Any] | None:
        tensor = isinstance(value, torch.Tensor) and value.dim()
        return {0: torch.export.Dim.AUTO} if tensor else None

    bound = inspect.signature(module.forward).bind(*call.args, **call.kwargs)
    return {name: pytree.tree_map(vary, value) for name, value in bound.arguments.items()}


def library_settings(given: Mapping[str, Any], linked: Path | None = None) -> dict[str, Any]:
    """Return these settings of Inductor for building a library, which needs the library `linked` if it uses it.

    torch's headers are not precompiled: that takes 8 seconds of CPU time in an empty cache, and would save 2 in
    each later build. On Linux, each library uses its own copy of the functions that it defines: LINK_OPTIONS.

    torch has no setting for linker options, but one for the compiler: a script that adds the options when a
    library is linked.

    The script is in torch's cache directory, under a path that changes only with its text, because the
    path is part of the key of torch's cache.
    """
    from torch._inductor import config

    metadata = own_description(given["cpp.threads"], torch.__version__)
    settings = {**given, "aot_inductor.metadata": metadata | given.get("aot_inductor.metadata", {})}
    del settings["cpp_wrapper"]  # such a library always has one
    if hasattr(config.aot_inductor, "precompile_headers"):
        settings.setdefault("aot_inductor.precompile_headers", False)
    if sys.platform != "linux":
        return settings
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    compiler = get_cpp_compiler()
    options = " ".join(LINK_OPTIONS)
    if linked is not None:
        path = shlex.quote(str(linked))
        options += f" -Wl,--push-state,--as-needed {path} -Wl,--pop-state"
    text = _SCRIPT.format(compiler=shlex.quote(compiler), options=options)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    directory = os.path.join(cache_dir(), "xruntime", name)
    # torch distinguishes GCC and Clang by the name.
    script = os.path.join(directory, os.path.basename(compiler))
    os.makedirs(directory, mode=0o700, exist_ok=True)
    write_whole(script, text.encode(), mode=0o700)
    return {"cpp.cxx": (None, script)} | settings
