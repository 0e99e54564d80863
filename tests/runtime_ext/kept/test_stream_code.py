# SPDX-License-Identifier: Apache-2.0
"""What is compiled for streams is found again by the next process, and what is not says why."""

from __future__ import annotations

import copy
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runtime_ext.interpreters import python
from tests.runtime_ext.stream_threads import call_in_thread, call_in_threads
from tests.runtime_ext.tiny_models import Counting, Holding, Layer, Scaled, eager
from torch import Tensor, nn

from xruntime.errors import CompilationError
from xruntime.kept import model_libraries
from xruntime.kept import store as stores
from xruntime.kept.calls import flat_call
from xruntime.kept.model_libraries import CallKey, own_tensor_problem
from xruntime.streams.compiled_module import CompiledForStreams, compile_for_streams
from xruntime.threads.cpu_pool import CPUPool
from xruntime.threads.team import team_of
from xruntime.threads.torch_modes import Autocast

pytestmark = pytest.mark.usefixtures("compiler")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of the test's own."""
    path = tmp_path / "optimized"
    path.mkdir(mode=0o700)
    monkeypatch.setenv(stores.VARIABLE, str(path))
    return path


def entries(store: Path) -> list[Path]:
    return [it for it in store.iterdir() if it.is_dir() and not it.name.startswith(".")]


def linear() -> nn.Module:
    return nn.Linear(4, 3).eval()


def notes(compiled: CompiledForStreams) -> str:
    return compiled.describe().split("ms\n", 1)[1].split("  compared with")[0].strip()


def agrees(compiled: CompiledForStreams, model: nn.Module, *args: Any, **close: Any) -> None:
    found = call_in_thread(lambda: compiled(*args), team=compiled.threads)
    close = close or {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(found, eager(model, *args), **close)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory, compiler: None) -> tuple[nn.Module, Path]:
    """A linear, and a directory with its code for two rows."""
    path = tmp_path_factory.mktemp("kept")
    model = linear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(stores.VARIABLE, str(path))
        compile_for_streams(model, torch.randn(2, 4), threads=1)
    return model, path


@pytest.fixture
def kept(compiled: tuple[nn.Module, Path], store: Path) -> nn.Module:
    """That linear; its code is in the test's store."""
    model, source = compiled
    shutil.copytree(source, store, dirs_exist_ok=True)
    return model


@pytest.mark.long
def test_code_is_kept_for_equal_weights_threads_and_precision(
    store: Path, kept: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = torch.randn(2, 4)
    (entry,) = store.iterdir()  # neither locks nor unfinished work
    assert {it.name for it in entry.iterdir()} == {"model.so", "description.json"}
    again = compile_for_streams(copy.deepcopy(kept), sample, threads=1)
    assert notes(again).startswith("found graph 1, a library for 2x4, compiled in ")
    agrees(again, kept, sample)
    # One bit of one weight makes another model.
    other = copy.deepcopy(kept)
    with torch.no_grad():
        other.weight.view(torch.int32)[0, 0] ^= 1
    monkeypatch.setattr("xruntime.kept.store.ROOM_BYTES", 1 << 62)
    for model, asked in (
        (other, {"threads": 1}),
        (kept, {"threads": 2}),
        (kept, {"threads": 1, "dtype": torch.bfloat16}),
    ):
        made = compile_for_streams(model, sample, **asked)
        assert notes(made).startswith(f"not kept: {store} has only ")
        bf16 = {"rtol": 0.02, "atol": 0.02, "check_dtype": False}
        agrees(made, model, sample, **(bf16 if "dtype" in asked else {}))


def test_what_decides_which_code_serves_a_call() -> None:
    call = flat_call((torch.randn(2, 4),), {})
    other = flat_call((torch.randn(2, 4).double(),), {})
    key = CallKey(call.form, 1, None, torch.float32)
    keys = [
        key,
        key._replace(threads=2),
        key._replace(autocast=Autocast(torch.bfloat16, cache=True)),
        key._replace(default_dtype=torch.float64),
        key._replace(form=other.form),
    ]
    names = {key.prefix(model) for key in keys for model in ("one model", "another")}
    assert len(names) == 2 * len(keys)


PROGRAM = """
import sys, torch
from tests.runtime_ext.tiny_models import Images, eager
from xruntime import CPUPool, MultiStreamModule, compile_for_streams

torch.manual_seed(0)
model, sample = Images(), torch.randn(2, 3, 24, 24)
compiled = compile_for_streams(model, sample, threads=1)
print(compiled.describe())
with MultiStreamModule(compiled, 2, CPUPool(sys.argv[1])) as streams:
    for items in (4, 6):  # the second size is new: both streams ask for it
        batch = torch.randn(items, 3, 24, 24)
        torch.testing.assert_close(streams(batch), eager(model, batch), rtol=1e-4, atol=1e-5)
print(compiled.describe())
"""


@pytest.mark.long
def test_the_next_process_needs_no_compiler(store: Path, two: CPUPool) -> None:
    def run(**variables: str) -> str:
        return python("-c", PROGRAM, str(two), **variables)

    first, second = run(), run(CXX="/absent/g++")
    assert first.count("compiled graph") == 3  # one, and then it and another
    assert "compiled graph 2, a library for ?x3x24x24" in first
    assert "compiled graph" not in second
    assert second.count("found graph 1") == 2
    assert "found graph 2" in second
    assert len(entries(store)) == 2


@pytest.mark.long
def test_two_streams_ask_for_the_same_new_size(store: Path, kept: nn.Module) -> None:
    compiled = compile_for_streams(kept, torch.randn(2, 4), threads=1)
    batch = torch.randn(3, 4)
    for result in call_in_threads(lambda: compiled(batch), 2, team=1):
        torch.testing.assert_close(result, eager(kept, batch), rtol=1e-4, atol=1e-5)
    assert notes(compiled).count("compiled graph") == 1
    assert len(entries(store)) == 2


@pytest.mark.long
def test_keywords_nests_and_sizes_that_vary_are_kept(store: Path) -> None:
    model, mask = Layer(), torch.ones(4, 12) > 0
    sample = {"ids": torch.randint(0, 50, (4, 12)), "mask": mask}
    for origin in ("compiled", "found"):
        compiled = compile_for_streams(model, sample, threads=1, dynamic=True)
        assert notes(compiled).startswith(f"{origin} graph 1, a library for ?x12")
        for items in (2, 3, 7):
            batch = {name: torch.cat((it, it))[:items] for name, it in sample.items()}
            with team_of(1):
                found = compiled(**batch)
            expected = eager(model, **batch)
            assert found["pooled"][1] is None
            for one, other in (
                (found["hidden"], expected["hidden"]),
                (found["pooled"][0], expected["pooled"][0]),
            ):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        assert len(entries(store)) == 1


class Overwriting(nn.Linear):
    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values.clamp_(min=0))


class Giving(nn.Linear):
    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(values), self.weight


def test_only_plain_tensors_are_looked_for_among_outputs() -> None:
    model = linear()
    model.register_buffer("mask", torch.eye(3).to_sparse())
    assert own_tensor_problem(model, [model.mask, torch.ones(2)]) is None
    assert own_tensor_problem(model, (model.weight,)) == "it returns a tensor of its own"


class Hooked(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 3)
        self.register_forward_hook(lambda _module, _args, output: output + 1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Counting, "in a call calls was changed"),
        (lambda: Overwriting(4, 3), "a call changes its arguments"),
        (lambda: Giving(4, 3), "it returns a tensor of its own"),
        (Hooked, "the module itself has hooks"),
    ],
)
def test_models_that_no_library_can_be(
    store: Path, kind: Callable[[], nn.Module], reason: str
) -> None:
    model, sample = kind().eval(), torch.rand(2, 4)
    compiled = compile_for_streams(model, sample, threads=1)
    assert f"not kept: {reason}" in notes(compiled)
    assert entries(store) == []
    found = call_in_thread(lambda: compiled(sample), team=1)
    expected = eager(model, sample)
    pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
    for one, other in pairs:
        torch.testing.assert_close(one, other)
    if isinstance(model, Counting):
        before = float(model.calls)
        call_in_thread(lambda: compiled(sample), team=1)
        assert float(model.calls) == before + 1


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Holding was compiled in 2 graphs")
def test_a_module_in_several_graphs_is_not_tried_again(store: Path) -> None:
    for _ in range(2):
        torch.manual_seed(0)
        compiled = compile_for_streams(Holding(), torch.ones(2, 4), threads=1)
        assert "not kept: torch.export cannot export Holding" in notes(compiled)
        (entry,) = entries(store)
        assert "cannot export" in json.loads((entry / "description.json").read_text())["refused"]
    assert not list(store.rglob("model.so"))


@pytest.mark.long
def test_where_nothing_can_be_kept(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, sample = linear(), torch.randn(2, 4)

    def reason(**settings: Any) -> str:
        compiled = compile_for_streams(model, sample, threads=1, **settings)
        agrees(compiled, model, sample)
        assert entries(store) == []
        return notes(compiled)

    assert reason(freezing=False) == "not kept: its weights are not constants (freezing)"
    monkeypatch.setattr("xruntime.kept.store.ROOM_BYTES", 1 << 62)
    assert " MiB left" in reason()
    (tmp_path / "file").write_text("")
    for value, problem in (
        ("0", "XRUNTIME_CACHE_DIR=0"),
        (str(tmp_path / "file"), "not a directory"),
    ):
        monkeypatch.setenv(stores.VARIABLE, value)
        assert problem in str(stores.open_store().temporary)


@pytest.mark.long
def test_numbers_that_differ_are_left_to_torch(store: Path) -> None:
    model, values = Scaled(), torch.randn(3, 4)
    compiled = compile_for_streams(model, (values, 1.5), threads=1)
    for scale in (2.5, 3.5, 1.5):
        agrees(compiled, model, values, scale)
    assert notes(compiled).count("not kept: numbers in its arguments differ") == 1
    assert len(entries(store)) == 1


class Counted(nn.Linear):
    """Returns its number of rows, too."""

    def forward(self, values: Tensor) -> Any:
        return super().forward(values), values.shape[0]


class Summed(nn.Linear):
    """Returns the sum of its outputs, too."""

    def forward(self, values: Tensor) -> Any:
        outputs = super().forward(values)
        return outputs, outputs.sum().item()


@pytest.mark.long
@pytest.mark.parametrize(("kind", "sizes"), [(Counted, (3, 5, 7, 5)), (Summed, (3, 3))])
def test_numbers_among_outputs_are_left_to_torch(
    store: Path, kind: type[nn.Linear], sizes: tuple[int, ...]
) -> None:
    model = kind(4, 3).eval()
    dynamic = len(set(sizes)) > 1
    compiled = compile_for_streams(model, torch.rand(3, 4), threads=1, dynamic=dynamic)
    assert "not kept: it returns numbers, which may differ from call to call" in notes(compiled)
    for size in sizes:
        agrees(compiled, model, torch.rand(size, 4))


@pytest.mark.long
def test_code_that_computes_something_else_is_removed(
    store: Path, kept: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = model_libraries.fingerprint
    other = copy.deepcopy(kept)
    other.bias.data += 1
    # As if the weights had no part in the key.
    monkeypatch.setattr(model_libraries, "fingerprint", lambda _, *facts: before(kept, *facts))
    compiled = compile_for_streams(other, torch.randn(2, 4), threads=1)
    assert "not kept: the code computes something else" in notes(compiled)
    assert entries(store) == []
    agrees(compiled, other, torch.randn(2, 4))


FACTOR = 2.0


class Factored(nn.Linear):
    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values) * FACTOR


@pytest.mark.long
def test_a_global_variable_that_changes_is_seen(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, sample = Factored(4, 3).eval(), torch.randn(2, 4)
    compiled = compile_for_streams(model, sample, threads=1)
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3.0)
    for size in (2, 5):
        with pytest.raises(CompilationError, match=r"variable FACTOR was changed.*call prepare"):
            call_in_thread(lambda size=size: compiled(torch.randn(size, 4)), team=1)
    agrees(compiled.prepare(), model, sample)
    assert len(entries(store)) == 2
