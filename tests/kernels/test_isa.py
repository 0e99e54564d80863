# SPDX-License-Identifier: Apache-2.0
"""The choice of an instruction set, and what objects compiled for one contain."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from xruntime import native

KERNELS = Path(__file__).parents[2] / "kernels"
OPERATORS = sorted((KERNELS / "src" / "ops").glob("*/*.isa.inc"))

Needs = Callable[[object, str], None]


REPORTS = """
import json, os, sys
import torch
from xruntime.cli import main
told = []
for options, isa in json.loads(sys.argv[1]):
    streams = [os.memfd_create(name) for name in ("out", "err")]
    child = os.fork()
    if child == 0:
        for number, stream in enumerate(streams, 1):
            os.dup2(stream, number)
        if isa is not None:
            os.environ["XKERNELS_ISA"] = isa
        try:
            main(["kernels", *options])
        except SystemExit as ended:
            os._exit(ended.code)  # the end of an interpreter with torch takes half a second
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    told.append((code, *[os.pread(stream, 100_000, 0).decode() for stream in streams]))
print(json.dumps(told))
"""


def reports(*cases: tuple[list[str], str | None]) -> list[tuple[int, str, str]]:
    """Code, output and errors of `xruntime kernels` with options and XKERNELS_ISA, which may be unset.

    Each runs in a fork of one interpreter that has imported torch.
    """
    inherited = {name: value for name, value in os.environ.items() if name != native.ISA_VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", REPORTS, json.dumps(cases)],
        env=inherited,
        stdout=subprocess.PIPE,
        check=True,
    )
    return [tuple(told) for told in json.loads(done.stdout)]


def test_the_instruction_set_is_the_best_one_or_that_of_the_variable(
    built_library: Path, needs: Needs
) -> None:
    needs(importlib.util.find_spec("torch"), "torch")
    isas = native.supported_isas()
    unset, empty, forced, unknown = reports(
        (["--json"], None), (["--json"], ""), ([], isas[0]), ([], "v9")
    )
    answer = json.loads(unset[1])
    assert answer["path"] == str(built_library)
    assert (answer["isa"], answer["isa_forced"]) == (isas[-1], False)
    assert answer["isas_supported"] == isas
    assert json.loads(empty[1]) == answer
    assert forced[0] == 0, forced
    assert f"{isas[0]} (set by XKERNELS_ISA)" in forced[1]
    code, out, err = unknown
    assert code != 0
    assert (out, err.count("\n")) == ("", 1)
    assert f"XKERNELS_ISA=v9: this CPU supports {', '.join(isas)};" in err


def flags_by_isa() -> dict[str, list[str]]:
    """The flags that CMakeLists.txt has for this architecture's instruction sets."""
    text = (KERNELS / "CMakeLists.txt").read_text()
    found = dict(re.findall(r"set\(XKERNELS_FLAGS_(\w+) (.*)\)", text))
    flags = {
        name: value.replace("${XKERNELS_FLAGS_v4}", found["v4"]) for name, value in found.items()
    }
    ours = {name.replace("-", "_") for name in native.supported_isas()}
    return {name: value.split() for name, value in flags.items() if name in ours}


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(
            path, id=path.parent.name, marks=() if path.parent.name == "nms" else pytest.mark.long
        )
        for path in OPERATORS
    ],
)
def test_objects_share_no_function_with_each_other(
    built_library: Path, needs: Needs, source: Path, tmp_path: Path
) -> None:
    """The linker keeps one copy of a shared inline function, perhaps the one for AVX-512.

    Without optimisation every inline function is a symbol.
    """
    compiler = shutil.which("g++")
    needs(compiler, "g++")
    needs(shutil.which("nm"), "nm (binutils)")
    seen: set[str] = set()
    for isa, flags in flags_by_isa().items():
        made = tmp_path / f"{isa}.o"
        subprocess.run(
            [
                *(
                    str(compiler),
                    "-std=c++17",
                    "-O0",
                    "-fopenmp",
                    "-fPIC",
                    *flags,
                    f"-DXK_ISA={isa}",
                ),
                *("-I", KERNELS / "include", "-I", KERNELS / "src", "-x", "c++", "-c", source),
                *("-o", made),
            ],
            check=True,
        )
        names = subprocess.run(
            ["nm", "--extern-only", "--defined-only", "--format=posix", made],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        symbols = {line.split()[0] for line in names.splitlines()}
        assert symbols, "the table of implementations"
        assert not symbols & seen
        seen |= symbols
