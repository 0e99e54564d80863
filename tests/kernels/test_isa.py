# SPDX-License-Identifier: Apache-2.0
"""The choice of an instruction set, and what objects compiled for one contain."""

from __future__ import annotations

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


def report(*options: str, isa: str | None = None) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != native.ISA_VARIABLE}
    return subprocess.run(
        [sys.executable, "-m", "xruntime", "kernels", *options],
        env=inherited if isa is None else inherited | {native.ISA_VARIABLE: isa},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_best_supported_one_is_chosen(built_library: Path) -> None:
    answer = json.loads(report("--json").stdout)
    assert answer["path"] == str(built_library)
    assert answer["isa"] == answer["isas_supported"][-1]
    assert answer["isa_forced"] is False
    assert answer["isas_supported"] == native.supported_isas()


def test_a_supported_one_can_be_forced(built_library: Path) -> None:
    worst = native.supported_isas()[0]
    answer = report(isa=worst)
    assert answer.returncode == 0, answer.stderr
    assert f"{worst} (set by XKERNELS_ISA)" in answer.stdout


def test_an_empty_variable_forces_nothing(built_library: Path) -> None:
    assert json.loads(report("--json", isa="").stdout)["isa"] == native.supported_isas()[-1]


def test_an_unknown_one_is_one_line_that_names_the_supported_ones(built_library: Path) -> None:
    answer = report(isa="v9")
    assert answer.returncode != 0
    assert answer.stdout == ""
    assert len(answer.stderr.splitlines()) == 1
    assert f"XKERNELS_ISA=v9: this CPU supports {', '.join(native.supported_isas())};" in (
        answer.stderr
    )


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
