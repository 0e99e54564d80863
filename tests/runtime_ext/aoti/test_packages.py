# SPDX-License-Identifier: Apache-2.0
"""Packages that are really compiled, called by their C interface, and files that are refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import weakref
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.runtime_ext.aoti.archives import described, rewritten
from tests.runtime_ext.interpreters import python
from tests.runtime_ext.stream_threads import (
    call_in_thread,
    call_in_threads,
    count_of_a_new_thread,
)
from tests.runtime_ext.tiny_models import Named, Unusual, Waves, eager

from xruntime.aoti import package as packages
from xruntime.aoti.compiling import compile_package
from xruntime.aoti.package import StreamPackage, load_package
from xruntime.aoti.package_file import THREADS_KEY
from xruntime.compilation.gil import CallableKind, kind_of
from xruntime.compilation.samples import Sample
from xruntime.errors import (
    ClosedError,
    CompilationError,
    GILWarning,
    PackageError,
    PackageInputError,
    StreamCountError,
    ThreadCountError,
    UncheckedInputWarning,
)
from xruntime.streams.hints import MultiStreamModuleHint
from xruntime.streams.multi_stream_module import MultiStreamModule
from xruntime.threads.cpu_pool import CPUPool

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("compiler")]

RUNNERS = 3
OPTIONS = {"aot_inductor.precompile_headers": False}
"""Precompiled headers take longer than the two packages that would use them."""


def call(items: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments for `items` items, always the same."""
    made = torch.Generator().manual_seed(items)
    images = torch.randn(items, 3, 8, 8, generator=made)
    ids = torch.randint(0, 10, (items, 5), generator=made)
    extra = {"scale": [torch.tensor(2.0)], "shift": torch.arange(4.0)}
    return (images,), {"ids": ids, "extra": extra}


@pytest.fixture(scope="module")
def model() -> Named:
    torch.manual_seed(0)
    return Named()


@pytest.fixture(scope="module")
def file(compiler: None, model: Named, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package for one thread, whose batch may vary."""
    before = torch.get_num_threads(), count_of_a_new_thread()
    path = tmp_path_factory.mktemp("packages") / "named.pt2"
    assert (
        compile_package(model, Sample(*call(4)), path, threads=1, dynamic=True, options=OPTIONS)
        == path
    )
    assert (torch.get_num_threads(), count_of_a_new_thread()) == before
    return path


@pytest.fixture
def package(file: Path) -> Iterator[StreamPackage]:
    with load_package(file, runners=RUNNERS) as loaded:
        yield loaded


LOAD_BESIDE = """
import ctypes, sys
ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
import torch
from xruntime.aoti.package import load_package
load_package(sys.argv[2], runners=1).close()
print("loaded")
"""


def run(package: StreamPackage, *args: Any, **kwargs: Any) -> Any:
    return call_in_thread(lambda: package(*args, **kwargs), team=1)


def assert_right(result: Any, model: Named, items: int) -> None:
    args, kwargs = call(items)
    expected = eager(model, *args, **kwargs)
    assert result.keys() == expected.keys()
    assert result["parts"][1] is None
    torch.testing.assert_close(result["scores"], expected["scores"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(result["parts"][0], expected["parts"][0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("items", [4, 1, 2, 37])
def test_more_threads_than_runners_compute_what_the_eager_module_does(
    package: StreamPackage, model: Named, items: int
) -> None:
    args, kwargs = call(items)
    results = call_in_threads(lambda: package(*args, **kwargs), 8, team=1)
    assert len(results) == 8
    for result in results:
        assert_right(result, model, items)


def test_what_is_loaded_is_told(package: StreamPackage, file: Path) -> None:
    assert (package.runners, package.threads) == (RUNNERS, 1)
    assert kind_of(package) is CallableKind.PACKAGE
    assert not kind_of(package).holds_gil
    assert package.describe() == (
        f"{file}, compiled by torch {torch.__version__}: 3 calls at a time, threads of each: 1\n"
        "  the GIL is released during a call"
    )
    assert repr(package) == f"<StreamPackage {file}, 3 calls at a time>"


def test_streams_of_a_package(package: StreamPackage, model: Named, two: CPUPool) -> None:
    args, kwargs = call(5)
    hint = MultiStreamModuleHint(0, ids=0, extra=None)
    with MultiStreamModule(package, "auto", two, input_split_hint=hint) as streams:
        assert streams.num_streams == 2
        torch.testing.assert_close(streams(*args, **kwargs), eager(model, *args, **kwargs))
    with pytest.raises(StreamCountError, match=rf"more than the {RUNNERS} calls.*runners=4"):
        MultiStreamModule(package, 4, two)


def test_names_may_come_in_another_order(package: StreamPackage, model: Named) -> None:
    (images,), kwargs = call(4)
    extra = dict(reversed(kwargs["extra"].items()))
    assert_right(run(package, images, extra=extra, ids=kwargs["ids"]), model, 4)


def test_tensors_of_another_layout_are_copied(package: StreamPackage, model: Named) -> None:
    (images,), kwargs = call(4)
    wide = torch.cat((kwargs["ids"], kwargs["ids"]), 1)
    kwargs["ids"] = wide[:, :5]
    last = images.to(memory_format=torch.channels_last)
    assert (last.stride(), kwargs["ids"].stride()) != (images.stride(), (5, 1))
    assert_right(run(package, last, **kwargs), model, 4)


def test_calls_that_do_not_fit_are_refused(package: StreamPackage, model: Named) -> None:
    (images,), kwargs = call(4)

    def refused(text: str, *args: Any, **changes: Any) -> None:
        with pytest.raises(PackageInputError, match=text):
            run(package, *args, **(kwargs | changes))

    refused(r"args\[0\] is torch.float64.*float32: convert it by", images.double())
    refused(r"args\[0\] is \(4, 3, 8, 9\).*\(any, 3, 8, 8\)", torch.zeros(4, 3, 8, 9))
    refused(r"args\[0\] is \(3, 8, 8\)", images[0])
    refused("has 2 positional arguments, and .* exported with 1", images, images)
    refused("keyword arguments ids, extra, more, .* exported with ids, extra", images, more=1)
    refused(r"args\[0\] is a list of 1", [images])
    refused(r"kwargs\['ids'\] is torch.float32.*torch.int64", images, ids=torch.zeros(4, 5))
    extra = kwargs["extra"]
    refused("keys 'shift', and", images, extra={"shift": extra["shift"]})
    refused("a list of 2, and", images, extra=extra | {"scale": extra["scale"] * 2})
    refused(
        "the call has 3 tensors and the package takes 4", images, extra=extra | {"scale": [2.0]}
    )
    refused("on meta", images.to("meta"))
    refused("layout torch.sparse_coo", images.to_sparse())
    assert_right(run(package, images, **kwargs), model, 4)


def test_failure_inside_is_an_error_with_the_codes_message(
    package: StreamPackage, model: Named, capfd: pytest.CaptureFixture[str]
) -> None:
    args, kwargs = call(4)
    for _ in range(2 * RUNNERS):
        with pytest.raises(PackageError, match=r"named\.pt2 failed: ") as caught:
            run(package, *args, **(kwargs | {"ids": kwargs["ids"] + 10}))
    # Code made before torch 2.13 only writes it.
    assert "index out of bounds" in str(caught.value) + capfd.readouterr().err
    assert_right(run(package, *args, **kwargs), model, 4)


def test_no_tensor_outlives_its_call(package: StreamPackage) -> None:
    _, kwargs = call(4)
    array = np.ones((4, 3, 8, 8), np.float32)
    alive = weakref.ref(array)
    run(package, torch.from_numpy(array), **kwargs)
    del array
    assert alive() is None


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="Linux tells a process's memory")
def test_outputs_are_freed(package: StreamPackage) -> None:
    def resident_mib() -> float:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    args, kwargs = call(4)
    big = {"ids": kwargs["ids"].repeat(4096, 1), "extra": kwargs["extra"]}
    images = args[0].repeat(4096, 1, 1, 1)

    def calls() -> float:
        package(images, **big)
        before = resident_mib()
        for _ in range(200):  # 16384 x 4 x 4 bytes, twice: 100 MiB in all
            package(images, **big)
        return resident_mib() - before

    assert call_in_thread(calls, team=1) < 50


def test_nothing_stays_in_the_temporary_directory(file: Path, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    load_package(file, runners=1).close()
    assert list(tmp_path.iterdir()) == []


def test_directory_that_others_could_change_is_refused(file: Path, tmp_path, monkeypatch) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(open_to_all))
    with pytest.raises(PackageError, match=f"every user may write {open_to_all}"):
        load_package(file, runners=1)
    assert list(open_to_all.iterdir()) == []


def test_package_of_torchs_own_interface(file: Path, model: Named, tmp_path) -> None:
    # Without what compile_package adds it is what aoti_compile_and_package writes.
    own = described(XLAUNCH_THREADS=None, XLAUNCH_TORCH=None, XLAUNCH_CPU_FLAGS=None)
    path = rewritten(file, tmp_path / "named.pt2", own)
    args, kwargs = call(4)
    with load_package(path, runners=1) as package:
        assert package.threads is None
        assert "threads of each: unknown" in package.describe()
        assert_right(call_in_thread(lambda: package(*args, **kwargs), team=2), model, 4)


def test_package_whose_inputs_cannot_be_checked_says_so(file: Path, model: Named, tmp_path) -> None:
    path = rewritten(
        file, tmp_path / "named.pt2", lambda name, data: None if name.endswith(".cpp") else data
    )
    args, kwargs = call(4)
    with pytest.warns(UncheckedInputWarning, match=r"named.pt2: 4 of 4 inputs will not be checked"):
        package = load_package(path, runners=1)
    with package:
        assert "not checked: 4 of 4 inputs" in package.describe()
        assert_right(run(package, *args, **kwargs), model, 4)


def test_with_an_unknown_torch_its_own_runner_is_used(
    file: Path, model: Named, monkeypatch
) -> None:
    monkeypatch.setattr(packages, "c_interface_problem", lambda: "torch 9 does it in another way")
    with pytest.warns(GILWarning, match=r"named.pt2 is called.*torch 9 does it in another"):
        package = load_package(file, runners=2)
    assert kind_of(package).holds_gil
    args, kwargs = call(4)
    assert_right(run(package, *args, **kwargs), model, 4)
    with pytest.raises(PackageInputError, match="float64"):
        run(package, args[0].double(), **kwargs)
    package.close()
    with pytest.raises(ClosedError):
        run(package, *args, **kwargs)


def test_operators_without_a_c_interface_need_torchs_runner(tmp_path) -> None:
    path = compile_package(
        Unusual(), torch.eye(3), tmp_path / "unusual.pt2", threads=1, options=OPTIONS
    )
    with pytest.warns(GILWarning, match="operators that have no C interface"):
        package = load_package(path, runners=2)
    assert package.stream_kind is CallableKind.PACKAGE_UNDER_GIL
    assert "held during a call, because it uses operators" in package.describe()
    sample = torch.randn(3, 3)
    assert torch.equal(run(package, sample), eager(Unusual(), sample))


def test_library_whose_names_others_use_differently(file: Path, tmp_path) -> None:
    """Code of std::regex under the same names, made by another compiler: here it ends the process."""
    name = "_ZNSt8__detail9_CompilerINSt7__cxx1112regex_traitsIcEEE14_M_alternativeEv"
    source, other = tmp_path / "other.cpp", tmp_path / "libother.so"
    source.write_text(
        f"""
        #include <unistd.h>
        extern "C" void other() __asm__("{name}");
        extern "C" void other() {{ _exit(99); }}
        """
    )
    subprocess.run(["g++", "-shared", "-fPIC", source, "-o", other], check=True)
    assert python("-c", LOAD_BESIDE, other, file) == "loaded\n"


def test_altered_truncated_and_other_files(file: Path, tmp_path) -> None:
    data = file.read_bytes()
    path = tmp_path / "other.pt2"

    def refused(content: bytes, text: str) -> None:
        path.write_bytes(content)
        with pytest.raises(PackageError, match=text):
            load_package(path, runners=1)

    library = data.index(b"\x7fELF")
    refused(data[: library + 5000] + b"\xff" + data[library + 5001 :], "cannot be read.*damaged")
    refused(data[:-5000], "cannot be read.*incomplete")
    refused(b"", "cannot be read")
    refused(b"no archive at all" * 1000, "cannot be read")
    path.unlink()
    with pytest.raises(PackageError, match="no such file"):
        load_package(path, runners=1)
    with pytest.raises(PackageError, match=r"cannot be read.*directory"):
        load_package(tmp_path, runners=1)
    os.mkfifo(path)
    with pytest.raises(PackageError, match=r"cannot be read.*a named pipe, not a regular file"):
        load_package(path, runners=1)


def test_library_of_another_torch(file: Path, tmp_path) -> None:
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    source, library = tmp_path / "other.cpp", tmp_path / "other.so"
    for code, missing in (
        ("int nothing = 0;", "AOTInductorModelContainerCreateWithDevice"),
        (
            'extern "C" void aoti_torch_of_tomorrow(); void (*call)() = aoti_torch_of_tomorrow;',
            "morrow",
        ),
    ):
        source.write_text(code)
        command = [str(compiler), "-shared", "-fPIC", str(source), "-o", str(library)]
        subprocess.run(command, check=True)
        path = rewritten(
            file,
            tmp_path / "other.pt2",
            lambda name, data: library.read_bytes() if name.endswith(".so") else data,
        )
        with pytest.raises(PackageError, match=f"{missing}.*compiled with another torch than"):
            load_package(path, runners=1)


def test_wrong_arguments(file: Path, tmp_path) -> None:
    for runners in (0, -1, True, 1.5):
        with pytest.raises(ThreadCountError, match="runners="):
            load_package(file, runners=runners)  # type: ignore[arg-type]
    with pytest.raises(PackageError, match="no model 'other'; there are model"):
        load_package(file, runners=1, model="other")
    sample = Sample(*call(4))
    with pytest.raises(CompilationError, match=r"ends in \.pt2, in a directory that exists"):
        compile_package(Named(), sample, tmp_path / "named.zip", threads=1)
    with pytest.raises(CompilationError, match=r"ends in \.pt2, in a directory that exists"):
        compile_package(Named(), sample, tmp_path / "nowhere" / "named.pt2", threads=1)
    with pytest.raises(CompilationError, match="training mode"):
        compile_package(Named().train(), sample, tmp_path / "named.pt2", threads=1)
    with pytest.raises(CompilationError, match="dimension 0 of no tensor"):
        compile_package(Waves(), torch.ones(1, 4), tmp_path / "w.pt2", threads=1, dynamic=True)


def test_threads_are_noted_in_the_package(file: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        notes = [name for name in archive.namelist() if name.endswith("wrapper_metadata.json")]
        assert json.loads(archive.read(notes[0]))[THREADS_KEY] == "1"
