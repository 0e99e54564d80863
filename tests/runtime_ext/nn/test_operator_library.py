# SPDX-License-Identifier: Apache-2.0
"""libxoperators.so: built on request, called without Python, and the same results and errors."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.runtime_ext.interpreters import python, start_python

from xruntime import operator_library
from xruntime.native import LIBRARY_VARIABLE, library_path

DIRECTORY = Path(__file__).parent
ROOT = DIRECTORY.parents[2]
TORCH_MINOR = int(importlib.metadata.version("torch").split(".")[1])

# What it prints: what ran in Python while compiled code ran, and the errors of bad arguments. Eager calls
# fail if they need the Python kernels.
PROGRAM = """
import json
import sys
import torch
from torch import nn
from xruntime.nn import MergedEmbeddingBag, embedding_call, interaction, interaction_operator
from xruntime.nn.native_operators import LIBRARY

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(50, 33, mode="sum") for _ in range(3))
        self.merged = MergedEmbeddingBag.from_embeddingbag_list(self.tables)

    def forward(self, *indices):
        return interaction(*self.merged(list(indices)))

class Python:
    def __getattr__(self, name):
        raise AssertionError(f"{name} was called through Python")

def call(function, *arguments):
    with torch.inference_mode():
        return function(*arguments)

model = Model().eval()
indices = [torch.randint(50, (4, 5)) for _ in range(3)]
bags = torch.stack([table(at) for table, at in zip(model.tables, indices)], 1)
products = bags @ bags.transpose(1, 2)
rows, columns = torch.tril_indices(3, 3, -1)
expected = torch.cat([bags[:, 0], products[:, rows, columns]], 1)
compiled = torch.compile(model, fullgraph=True, options={"cpp_wrapper": True})
torch.testing.assert_close(call(compiled, *indices), expected)

native = embedding_call.native, interaction_operator.native
embedding_call.native = interaction_operator.native = Python()
torch.testing.assert_close(call(compiled, *indices), expected)
torch.testing.assert_close(call(model, *indices), expected)

events = []
def note(frame, event, argument):
    name = argument.__name__ if event.startswith("c_") else frame.f_code.co_qualname
    events.append((event, name))
sys.setprofile(note)
call(compiled, *indices)
sys.setprofile(None)
entered = events.index(("c_call", "inductor_entry_cpp"))
left = events.index(("c_return", "inductor_entry_cpp"))

wrong = [indices[0], torch.full((4, 5), 50), indices[2]]
try:
    call(compiled, *wrong)
except RuntimeError as error:
    of_compiled = str(error)
embedding_call.native, interaction_operator.native = native
try:
    call(model, *wrong)
except IndexError as error:
    of_eager = str(error)
found = {"path": str(LIBRARY.path), "python": events[entered + 1 : left]}
print(json.dumps({**found, "compiled": of_compiled, "eager": of_eager}))
"""

# It prints whether the library is loaded, and its error.
WRONG_INDEX = """
import torch
from xruntime.nn.native_operators import LIBRARY

rows, indices = torch.zeros(50, 8), torch.zeros(4, 5, dtype=torch.int64)
try:
    torch.ops.xruntime.merged_embedding_bag_packed(
        [rows, rows], [indices, indices + 50], [], [], 0, False
    )
except RuntimeError as error:
    print(LIBRARY.path is not None, str(error).splitlines()[0])
"""

# A model whose bags are given in all forms. It prints what is said of its code, and of a call of that code.
KEPT = """
import json
import os
import sys
import torch
from torch import nn
from xruntime import compile_for_streams
from xruntime.nn import MergedEmbeddingBag, interaction
from xruntime.threads.team import team_of

class Model(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        sizes = [(50, 33), (9, 33)]
        self.sums = MergedEmbeddingBag(sizes, dtype=dtype)
        self.means = MergedEmbeddingBag(sizes, mode="mean", dtype=dtype)
        self.maxima = MergedEmbeddingBag(sizes, mode="max", include_last_offset=True, dtype=dtype)

    def forward(self, table, indices, offsets, limits, factors):
        bags = [
            *self.sums([table, table[:, :2]]),
            *self.sums([indices] * 2, [offsets] * 2, [factors] * 2),
            *self.means([indices] * 2, [offsets] * 2),
            *self.maxima([indices] * 2, [limits] * 2),
        ]
        return interaction(*bags) / 2

def arguments(items, dtype):
    limits = torch.arange(0, 4 * items + 1, 4)
    indices = torch.randint(9, (4 * items,))
    table = torch.randint(9, (items, 3))
    return table, indices, limits[:-1], limits, torch.rand(4 * items).to(dtype)

found = {"said": [], "files": [], "errors": []}
os.dup2(1, 2)  # where the code of torch 2.11 writes the reasons of its failures
for dtype in (torch.float32, torch.bfloat16):
    torch.manual_seed(0)
    model = Model(dtype).eval()
    compiled = compile_for_streams(model, arguments(2, dtype), threads=1, dynamic=True)
    with team_of(1), torch.inference_mode():
        for items in (2, 3, 7):
            given = arguments(items, dtype)
            torch.testing.assert_close(compiled(*given), model(*given))
        found["said"].append(compiled.describe())
        files = set()
        sys.setprofile(lambda frame, *_: files.add(frame.f_code.co_filename))
        compiled(*given)
        sys.setprofile(None)
        found["files"] += sorted(files)
        given[1][5] = 9
        try:
            compiled(*given)
        except RuntimeError as error:
            found["errors"].append(str(error))
print(json.dumps(found), flush=True)
"""


def command(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return start_python("-m", "xruntime", "kernels", *options, **variables)


@pytest.fixture(scope="module")
def variables(
    native: None, compiler: None, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """The variables under which a newly built libxoperators.so is used, in a directory of its own."""
    directory = tmp_path_factory.mktemp("libraries")
    kernels = Path(shutil.copy(library_path(), directory))
    older = Path(directory, "libxoperators-1-00000000.so")
    older.touch()
    variables = {LIBRARY_VARIABLE: str(kernels)}
    answer = command("--build", "--json", **variables)
    assert answer.returncode == 0, answer.stderr
    built = json.loads(answer.stdout)["operators"]["path"]
    assert Path(built).parent == directory
    assert not older.exists()
    return variables


@pytest.mark.long
def test_no_call_passes_python(variables: dict[str, str], tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    found: dict[str, Any] = json.loads(python(program, cwd=ROOT, **variables).splitlines()[-1])
    assert found["path"].startswith(str(Path(variables[LIBRARY_VARIABLE]).parent))
    # The C++ wrapper of torch 2.11 calls all operators but torch's own through Python.
    if TORCH_MINOR >= 13:
        assert found["python"] == []
    wrong = "table 1: index 50 at position 0 is invalid"
    assert found["compiled"] == f"merged_embedding_bag_packed: {wrong}"
    assert found["eager"].startswith("table 1: index 50 at position 0: allowed are 0 to 49")


@pytest.mark.long
def test_libraries_that_are_kept_call_its_c_functions(
    variables: dict[str, str], tmp_path: Path
) -> None:
    program, store = tmp_path / "program.py", tmp_path / "optimized"
    program.write_text(KEPT)
    store.mkdir(mode=0o700)
    for origin, further in (("compiled", {}), ("found", {"CXX": "/absent/g++"})):
        given = variables | {"XRUNTIME_CACHE_DIR": str(store)} | further
        *printed, last = python(program, cwd=ROOT, **given).splitlines()
        found: dict[str, Any] = json.loads(last)
        for text in found["said"]:
            assert f"{origin} graph 1, a library for ?x3, ?, " in text
            assert text.endswith("graphs compiled so far, for all shapes: 1")
        # Neither the operators of xruntime.nn nor torch's way to call them from C++ ran in Python.
        inside = ("xruntime/nn/", "torch/_ops.py", "torch/_library/", "torch/_inductor/")
        assert any("xruntime/aoti/runners.py" in file for file in found["files"])
        assert not [file for file in found["files"] if any(it in file for it in inside)]
        assert len(found["said"]) == len(found["errors"]) == 2
        for error in found["errors"]:
            text = "\n".join(printed) if "the reason is on standard error" in error else error
            assert "merged_embedding_bag_packed: table 1: index 9 at position 5 is invalid" in text


@pytest.mark.long
def test_its_messages_are_whole_with_a_static_libstdcxx(
    native: None, compiler: None, tmp_path: Path
) -> None:
    script = tmp_path / "g++"
    script.write_text('#!/bin/sh\nexec g++ "$@" -O0 -static-libstdc++\n')
    script.chmod(0o700)
    kernels = Path(shutil.copy(library_path(), tmp_path))
    variables = {LIBRARY_VARIABLE: str(kernels)}
    answer = command("--build", CXX=str(script), **variables)
    assert answer.returncode == 0, answer.stderr
    program = tmp_path / "program.py"
    program.write_text(WRONG_INDEX)
    wrong = "table 1: index 50 at position 0 is invalid"
    said = python(program, cwd=ROOT, **variables)
    assert said == f"True merged_embedding_bag_packed: {wrong}\n"


@pytest.mark.long
def test_the_operators_pass_their_quick_tests_with_it(variables: dict[str, str]) -> None:
    names = (
        "test_merged_embedding_bag.py",
        "test_interaction.py",
        "test_compiled_embedding_bag.py",
    )
    options = ("-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not long and not full")
    summary = python(
        "-m", "pytest", *options, *(DIRECTORY / name for name in names), cwd=ROOT, **variables
    )
    assert " passed" in summary


def test_a_variable_leaves_it_unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(operator_library.VARIABLE, "python")
    assert operator_library.load() == (None, "XRUNTIME_OPERATORS=python")
