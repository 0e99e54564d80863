# SPDX-License-Identifier: Apache-2.0
"""A package whose compiler links libstdc++ statically."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile

import pytest
import torch
from tests.runtime_ext.stream_threads import call_in_thread

from xruntime.aoti.compiling import compile_package
from xruntime.aoti.package import load_package

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("compiler")]


def test_library_with_a_standard_library_of_its_own(tmp_path) -> None:
    """The compiler links libstdc++ statically: kept in, or locales are half the process's."""
    compiler = tmp_path / "g++"
    real = shutil.which(os.environ.get("CXX", "g++"))
    compiler.write_text(
        "#!/bin/sh\n"
        f'case " $* " in *" -shared "*) exec {real} "$@" -static-libstdc++;; esac\n'
        f'exec {real} "$@"\n'
    )
    compiler.chmod(0o700)
    with torch._inductor.config.patch({"cpp.cxx": (None, str(compiler))}):
        path = compile_package(
            torch.nn.Tanh().eval(), torch.eye(3), tmp_path / "own.pt2", threads=1
        )
    (library,) = (name for name in zipfile.ZipFile(path).namelist() if name.endswith(".so"))
    extracted = zipfile.ZipFile(path).extract(library, tmp_path)
    command = ["readelf", "-d", extracted]
    needed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "libtorch_cpu" in needed
    assert "libstdc++" not in needed
    with load_package(path, runners=1) as package:
        got = call_in_thread(lambda: package(torch.eye(3)), team=1)
    assert torch.allclose(got, torch.eye(3).tanh())
