# SPDX-License-Identifier: Apache-2.0
"""Code that takes over while a model is used, and is found again by the next process."""

from __future__ import annotations

import copy
import math
import shutil
import stat
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from tests.project.test_architecture import check_order, steps
from tests.runtime_ext.interpreters import python
from torch import Tensor, nn
from torch.nn import functional

import xruntime
from xruntime.errors import OptimizationError
from xruntime.kept import store as stores
from xruntime.kept.fingerprint import Fingerprint, fingerprint
from xruntime.kept.making import CompilePriority
from xruntime.optimization import PassOutcome, SlowCallWarning, explain, optimize
from xruntime.optimization.optimized_code import optimized_code
from xruntime.optimization.runner import CallRunner
from xruntime.threads.team import team_of

WAIT_S = 300.0


class Model(nn.Module):
    """Two matrix products of one input, large enough to be worth compiling."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(64, 64), nn.Linear(64, 64)
        self.factor = 2.0
        self.eval()

    def forward(self, values: Tensor, scale: int = 1) -> dict[str, Any]:
        hidden = self.one(values).relu() + self.other(values).tanh() * self.factor
        for _ in range(8):
            hidden = hidden + (hidden * 0.5).tanh() * 0.1
        return {"hidden": hidden * scale, "count": 3, "none": None}


SAMPLE = torch.randn(8, 64)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of the test's own. Only `call_until` has something compiled in the background.

    Else code that a test has no use for would be compiled while the next ones wait.
    """
    path = tmp_path / "optimized"
    path.mkdir(mode=0o700)
    monkeypatch.setenv(stores.VARIABLE, str(path))
    monkeypatch.setattr("xruntime.kept.call_libraries.START_AFTER_S", math.inf)
    # On a busy machine a child of low priority may take minutes.
    monkeypatch.setattr(
        "xruntime.optimization.optimized_code.compile_priority", lambda *_: CompilePriority(0)
    )
    # What is measured here is no reason to leave the code that a test is about.
    monkeypatch.setattr("xruntime.compilation.judge.Trial.is_faster", True)
    return path


def test_slow_first_calls_of_the_input_are_no_gain_of_the_passes(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of a gain the compiler would take CPU time from the program.
    monkeypatch.setattr("xruntime.compilation.judge.Trial.is_faster", None)
    pauses_s, linear = [0.2, 0.2], functional.linear

    def prepared_linear(*args: Tensor) -> Tensor:
        """Takes longer in its first calls, as where torch prepares for sizes."""
        if pauses_s:
            time.sleep(pauses_s.pop())
        return linear(*args)

    monkeypatch.setattr(functional, "linear", prepared_linear)
    code = optimized_code(optimize(nn.Linear(64, 64).eval(), sample_input=SAMPLE))
    assert not pauses_s
    assert code is not None
    assert code.speedup < 10.0


def graph(model: nn.Module) -> str:
    return explain(model).step("graph").reason


def call_until(model: nn.Module, done: Callable[[str], bool], *sizes: int) -> str:
    """Call the model, with each of the sizes in turn, until `done` of what explain() says.

    Compiling begins at the second call.
    """
    deadline = time.monotonic() + WAIT_S
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xruntime.kept.call_libraries.START_AFTER_S", 0.0)
        while not done(graph(model)):
            assert time.monotonic() < deadline, graph(model)
            for size in sizes or (8,):
                model(torch.randn(size, 64))
            time.sleep(0.02)
    return graph(model)


def takes_over(model: nn.Module, *sizes: int) -> str:
    return call_until(model, lambda text: "takes over" in text, *sizes)


def agree(model: nn.Module, original: nn.Module, *sizes: int) -> None:
    for size in sizes:
        values = torch.randn(size, 64)
        found, expected = model(values), original(values)
        assert list(found) == list(expected)
        assert torch.allclose(found["hidden"], expected["hidden"], atol=1e-5)
        assert (found["count"], found["none"]) == (3, None)


def entries(store: Path) -> list[Path]:
    return [it for it in store.iterdir() if it.is_dir() and not it.name.startswith(".")]


def calls_of(run: Callable[[], object]) -> list[str]:
    """The functions of xruntime that `run` calls, in the order of their first calls."""
    root, order = f"{Path(xruntime.__file__).parent}/", dict[str, None]()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(root):
            order.setdefault(f"{frame.f_code.co_filename[len(root) :]}:{frame.f_code.co_qualname}")

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return list(order)


def test_code_takes_over_and_is_kept_for_the_next_process(store: Path) -> None:
    original = Model()
    model = optimize(original, sample_input=SAMPLE)
    assert graph(model) == "compiled in the background; until then the modules are called"
    said = takes_over(model)
    assert said.startswith("compiled in the background in ")
    agree(model, original, 8, 8)
    (entry,) = entries(store)
    assert {it.name for it in entry.iterdir()} == {"model.so", "description.json"}
    assert stat.S_IMODE(entry.stat().st_mode) == 0o700
    assert [it for it in store.iterdir() if it != entry] == []  # neither locks nor unfinished work

    again = optimize(copy.deepcopy(original), sample_input=SAMPLE)
    again(SAMPLE)
    assert graph(again).startswith("code that was kept for 8x64 takes over")
    agree(again, original, 8, 5)
    check_order(steps("A model through `xruntime.optimize`"), calls_of(lambda: again(SAMPLE)))
    # Tensors of these sizes were checked. They may lie in memory in another way.
    for values in (
        torch.randn(64, 8).t(),
        torch.randn(8, 128)[:, ::2],
        torch.randn(1, 64).expand(8, 64),
    ):
        assert torch.allclose(again(values)["hidden"], original(values)["hidden"], atol=1e-5)

    # Another weight, even by one bit, is another model.
    with torch.no_grad():
        original.one.weight.view(torch.int32)[0, 0] ^= 1
    other = optimize(original, sample_input=SAMPLE)
    other(SAMPLE)
    assert graph(other) == "compiled in the background; until then the modules are called"


@pytest.mark.long
def test_calls_leave_a_core_only_while_code_is_compiled(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    eager = CallRunner.eager

    def recorded(*args: Any, **options: Any) -> Any:
        threads.append(torch.get_num_threads())
        return eager(*args, **options)

    monkeypatch.setattr(CallRunner, "eager", recorded)
    monkeypatch.setattr(
        "xruntime.optimization.optimized_code.compile_priority", lambda *_: CompilePriority(0, True)
    )
    original = Model()
    with team_of(3):
        model = optimize(original, sample_input=SAMPLE)
        threads.clear()
        takes_over(model)
        assert torch.get_num_threads() == 3
        agree(model, original, 8, 5)  # the modules are called for five rows
    assert threads[-1] == 3
    first, last = threads.index(2), len(threads) - 1 - threads[::-1].index(2)
    assert set(threads[first : last + 1]) == {2}
    assert set(threads[:first] + threads[last + 1 :]) == {3}


@pytest.mark.long
def test_sizes_that_vary_are_compiled_once(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Model()
    model = optimize(original, sample_input=SAMPLE)
    said = takes_over(model, 8, 5, 13)
    assert "for ?x64" in said
    assert len(entries(store)) == 1
    # Where that code is found again, nobody has to know what the passes gain.
    with monkeypatch.context() as patch:
        patch.delattr("xruntime.optimization.inference.compared_speed")
        again = optimize(copy.deepcopy(original), sample_input=SAMPLE)
    agree(again, original, 8, 5)
    assert graph(again).startswith("code that was kept for ?x64 takes over")
    agree(model, original, 8, 2, 100, 1)
    assert "compiled in the background" in graph(model)
    # One row is computed by the modules, until it is compiled on its own.
    call_until(model, lambda text: text.count("compiled in the background") == 2, 1)
    agree(model, original, 1, 2, 8)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory, native: None) -> tuple[nn.Module, Path]:
    """A model, and a directory with its code."""
    path = tmp_path_factory.mktemp("kept")
    torch.manual_seed(1)
    original = Model()
    with pytest.MonkeyPatch.context() as patch, team_of(1):
        patch.setenv(stores.VARIABLE, str(path))
        patch.setattr("xruntime.compilation.judge.Trial.is_faster", True)
        optimize(original, sample_input=SAMPLE, wait=True)
    return original, path


@pytest.fixture
def kept(compiled: tuple[nn.Module, Path], store: Path) -> nn.Module:
    """That model; its code is in the test's store."""
    original, source = compiled
    shutil.copytree(source, store, dirs_exist_ok=True)
    return original


def damage_library(entry: Path) -> None:
    path = entry / "model.so"
    path.write_bytes(path.read_bytes()[:5000])


def damage_description(entry: Path) -> None:
    (entry / "description.json").write_text('{"dims": [[8')


def open_to_others(entry: Path) -> None:
    entry.chmod(0o777)


def lose_library(entry: Path) -> None:
    (entry / "model.so").unlink()


def other_instructions(entry: Path) -> None:
    path = entry / "description.json"
    text = path.read_text()
    assert '"XLAUNCH_CPU_FLAGS": "' in text
    path.write_text(text.replace('"XLAUNCH_CPU_FLAGS": "', '"XLAUNCH_CPU_FLAGS": "avx9999 '))


@pytest.mark.long
def test_other_arguments_and_modes_have_code_of_their_own(store: Path, kept: nn.Module) -> None:
    model = optimize(kept, sample_input=SAMPLE)
    model(SAMPLE)
    assert graph(model).startswith("code that was kept")
    assert torch.equal(model(SAMPLE, 0)["hidden"], torch.zeros(8, 64))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(SAMPLE)["hidden"].dtype == kept(SAMPLE)["hidden"].dtype
    values = SAMPLE.clone().requires_grad_()
    model(values)["hidden"].sum().backward()
    assert values.grad is not None
    with torch.inference_mode():
        agree(model, kept, 8)


@pytest.mark.long
def test_waiting_compiles_at_once_what_was_damaged_too(store: Path, kept: nn.Module) -> None:
    damage_library(*entries(store))
    model = optimize(kept, sample_input=SAMPLE, wait=True)
    assert graph(model).startswith("kept code is removed: ")
    assert graph(model).count("compiled in ") == 1
    agree(model, kept, 8)
    model(torch.randn(5, 64))
    said = graph(model)  # the second size makes code for all
    assert said.count("compiled in ") == 2
    assert "for 8x64" in said
    assert "for ?x64" in said
    agree(model, kept, 5, 6)
    assert len(entries(store)) == 2


@pytest.mark.long
@pytest.mark.parametrize(
    "damage",
    [damage_library, damage_description, open_to_others, lose_library, other_instructions],
)
def test_damaged_entries_are_removed_with_a_reason(
    store: Path, kept: nn.Module, damage: Callable[[Path], None]
) -> None:
    (entry,) = entries(store)
    damage(entry)
    model = optimize(kept, sample_input=SAMPLE)
    model(SAMPLE)
    assert graph(model).startswith("kept code is removed: ")
    assert not entry.exists()
    agree(model, kept, 8)


@pytest.mark.long
def test_code_that_computes_something_else_is_removed(
    store: Path, kept: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = copy.deepcopy(kept)
    other.factor = 2.5
    # As if the attribute had no part in the key.
    monkeypatch.setattr(
        "xruntime.kept.model_libraries.fingerprint",
        lambda model, *others: fingerprint_of(kept, *others),
    )
    model = optimize(other, sample_input=SAMPLE)
    agree(model, other, 8)
    assert "the modules are called again: the code computes something else" in graph(model)
    assert entries(store) == []
    with pytest.warns(SlowCallWarning, match="computes something else"):
        agree(model, other, 8)


@pytest.mark.long
def test_code_that_is_slower_is_left_and_stays_kept(
    store: Path, kept: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xruntime.compilation.judge.Trial.is_faster", False)
    model = optimize(kept, sample_input=SAMPLE)
    agree(model, kept, 8)
    assert "times as fast as they are" in graph(model)
    with pytest.warns(SlowCallWarning, match="times as fast as they are"):
        agree(model, kept, 8)
    assert len(entries(store)) == 1


class Caching(nn.Linear):
    """Adds to a cache, which the caller may give."""

    def forward(self, values: Tensor, cache: Tensor | None = None) -> Tensor:
        found = super().forward(values)
        return found if cache is None else cache.add_(found)


@pytest.mark.parametrize("strided", [False, True])
def test_calls_that_write_their_arguments_run_as_modules(store: Path, strided: bool) -> None:
    original = Caching(64, 64).eval()
    model = optimize(original, sample_input=SAMPLE)
    model(SAMPLE)
    given = torch.zeros(8, 128)[:, ::2] if strided else torch.zeros(8, 64)
    expected = torch.zeros(8, 64)
    for number in range(3):
        if number != 1:  # the first one is looked at
            seen = model(SAMPLE, given)
        else:
            with pytest.warns(SlowCallWarning, match="a call changes its arguments"):
                seen = model(SAMPLE, given)
        with torch.no_grad():
            torch.testing.assert_close(seen, original(SAMPLE, expected))
        torch.testing.assert_close(given, expected)
    assert "not compiled: a call changes its arguments" in graph(model)


def fingerprint_of(original: nn.Module, *others: Any) -> Fingerprint:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fingerprint(optimize(original, sample_input=SAMPLE), *others)


@pytest.mark.full
def test_a_full_disk_is_said(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(store)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    model = optimize(Model(), sample_input=SAMPLE)
    said = takes_over(model)
    assert f"compiled code is not kept: {store} has only 1 MiB left" in said
    assert entries(store) == []


def test_what_cannot_be_exported_is_said_once_and_remembered(store: Path) -> None:
    class Branching(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            return values + 1 if values.sum() > 0 else values - 1

    original = Branching().eval()
    model = optimize(original, sample_input=SAMPLE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowCallWarning)
        call_until(model, lambda text: "not compiled: torch.export cannot export" in text)
    again = optimize(original, sample_input=SAMPLE)

    def refused() -> None:
        call_until(again, lambda text: "not compiled" in text)
        again(SAMPLE)

    with pytest.warns(SlowCallWarning, match="torch.export cannot export Branching"):
        refused()
    assert explain(again).step("graph").outcome is PassOutcome.SKIPPED
    assert torch.equal(again(SAMPLE), original(SAMPLE))
    (entry,) = entries(store)
    assert [it.name for it in entry.iterdir()] == ["description.json"]


def test_wait_is_for_inference_with_a_sample() -> None:
    for given in ({}, {"sample_input": SAMPLE, "graph": "none"}):
        with pytest.raises(OptimizationError, match="wait=True is for inference"):
            optimize(Model(), wait=True, **given)


OFFSET = 0.0


class Rows(nn.Module):
    """Looks up rows of a table, which raises for a number that is no row, and reads a global variable."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(10, 64), nn.Linear(64, 64)
        self.eval()

    def forward(self, rows: Tensor) -> Tensor:
        return self.layer(self.table(rows)).relu() + OFFSET


@pytest.mark.long
def test_code_is_left_for_a_changed_global_variable_and_not_for_wrong_arguments(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing is kept, as well."""
    monkeypatch.setenv(stores.VARIABLE, "0")
    original, rows = Rows(), torch.arange(8)
    model = optimize(original, sample_input=rows, wait=True)
    model(rows)
    taken = graph(model)
    assert taken.startswith("compiled code is not kept: XRUNTIME_CACHE_DIR=0; compiled in ")
    assert "takes over" in taken
    with pytest.raises(IndexError):
        model(rows + 3)
    assert graph(model) == taken
    assert torch.allclose(model(rows), original(rows), atol=1e-5)
    monkeypatch.setitem(globals(), "OFFSET", 5.0)
    with pytest.warns(SlowCallWarning, match="the global variable OFFSET was changed"):
        assert torch.allclose(model(rows), original(rows), atol=1e-5)
    assert entries(store) == []


def test_a_model_without_a_fingerprint_is_called(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no memory to hash")

    (store / "another").mkdir()
    monkeypatch.setattr("xruntime.kept.model_libraries.fingerprint", fail)
    original = Model()
    model = optimize(original, sample_input=SAMPLE)
    with pytest.warns(SlowCallWarning, match="no memory to hash"):
        agree(model, original, 8)
    assert graph(model) == "not compiled: RuntimeError: no memory to hash"


def test_further_forms_are_not_compiled(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xruntime.kept.served_model.MAX_FORMS", 2)
    original = Model()
    model = optimize(original, sample_input=SAMPLE)
    for scale in range(4):
        found, expected = model(SAMPLE, scale), original(SAMPLE, scale)
        assert torch.allclose(found["hidden"], expected["hidden"], atol=1e-5)
    assert "calls of further forms are not compiled: there are 2 already" in graph(model)


PROGRAM = """
import sys, time
import torch
sys.path.insert(0, sys.argv[1])
from program_model import Model
import xruntime.compilation.judge as judge
import xruntime.kept.call_libraries as call_libraries
from xruntime import optimize
from xruntime.optimization import explain

call_libraries.START_AFTER_S = 0.0
judge.Trial.is_faster = True
torch.set_num_threads(1)
torch.manual_seed(0)
model = optimize(Model(), sample_input=torch.ones(8, 64))
while "takes over" not in explain(model).step("graph").reason:
    model(torch.ones(8, 64))
    time.sleep(0.02)
print(explain(model).step("graph").reason)
"""


@pytest.mark.long
def test_two_processes_compile_once(store: Path, tmp_path: Path) -> None:
    source = Path(__file__).read_text()
    begin, end = source.index("class Model"), source.index("SAMPLE =")
    head = (
        "from __future__ import annotations\nfrom typing import Any\nfrom torch import Tensor, nn\n"
    )
    (tmp_path / "program_model.py").write_text(head + source[begin:end])
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    both = [
        subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, text=True)
        for directory in (tmp_path, "/")
    ]
    texts = sorted(process.communicate(timeout=WAIT_S)[0] for process in both)
    assert [text.partition(" for")[0].rsplit(" in ", 1)[0] for text in texts] == [
        "code that was kept",
        "compiled in the background",
    ]


PACKING = """
import torch
from torch import nn
from torch.backends import mkldnn
import xruntime.compilation.judge as judge
from xruntime import optimize

judge.Trial.is_faster = True
torch.set_num_threads(2)
sample = torch.randn(1, 1152, 1, 1)
model = nn.Sequential(nn.Conv2d(1152, 48, 1), nn.SiLU(), nn.Conv2d(48, 1152, 1)).eval()
fast = optimize(model, sample_input=sample, wait=True)
for _ in range(2):
    fast(sample)
with mkldnn.verbose(mkldnn.VERBOSE_ON):
    fast(sample)
"""


@pytest.mark.long
def test_weights_are_packed_for_the_number_of_threads(store: Path) -> None:
    """oneDNN would convert weights that are packed for another number in each call."""
    lines = [line for line in python("-c", PACKING).splitlines() if "primitive,exec" in line]
    assert len([line for line in lines if ",convolution," in line]) == 2, lines
    assert not [line for line in lines if ",reorder," in line]
