# SPDX-License-Identifier: Apache-2.0
"""Private directories for compile caches, and the variables that name them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.golden import Golden
from tests.launcher.cache.entries import held

from xlaunch.cache.store import CacheDirectory, Hardware, Packages, key_of, not_in_use
from xlaunch.cache.table import BY_NAME, CACHES, PROFILE_VARIABLE
from xlaunch.cache.use import HEADERS_VARIABLE, CacheSettings, cache_settings
from xlaunch.cache.use import SEED_VARIABLE as SEED
from xlaunch.errors import UsageError
from xlaunch.machine.topology import Gpu, Vendor

PLAIN = Hardware("x86_64", ("avx2", "fma"), "GenuineIntel 6 143", (), ())
INTEL_GPU = PLAIN._replace(gpus=(Gpu(Vendor.INTEL, "8086:56a0"),), gpu_drivers=("Intel 1.3.2",))
NVIDIA_GPU = PLAIN._replace(gpus=(Gpu(Vendor.NVIDIA, "10de:2335"),), gpu_drivers=("NVIDIA 550",))
TORCH = Packages({"torch": "2.13.0"}, "3.11")


def settings(
    asked: Path | str | None = None,
    *,
    make: bool = True,
    hardware: Hardware = PLAIN,
    packages: Packages = TORCH,
    everything: bool = False,
    fixed: Sequence[str] = (),
    **variables: str,
) -> CacheSettings:
    """What a launch does with `--cache-dir` `asked`, with `--cache all` if `everything` is set."""
    return cache_settings(
        {HEADERS_VARIABLE: "0", **variables},
        packages=packages,
        asked=None if asked is None else str(asked),
        everything=everything,
        fixed=fixed,
        make=make,
        hardware=hardware,
        program=("net.py",),
    )


def values(found: CacheSettings) -> dict[str, str]:
    return {variable.name: variable.value for variable in found.variables}


def used(found: CacheSettings) -> dict[str, CacheDirectory]:
    return {it.directory.cache: it.directory for it in found.used}


def test_caches_move_below_one_private_directory(tmp_path: Path):
    found = settings(HOME=str(tmp_path))
    assert found.warnings == ()
    base = tmp_path / ".cache" / "xlaunch" / "compiled"
    assert base.stat().st_mode & 0o777 == 0o700
    everywhere = [it for it in CACHES if it.vendor is None and not it.changes_behaviour]
    assert values(found) == {
        it.variable: str(base / it.name / key_of(it, PLAIN, TORCH).name) for it in everywhere
    }
    # What a variable moves is recorded and held, whether or not its library can be seen.
    assert {used.directory.path for used in found.used} == set(values(found).values())
    for used in found.used:
        assert Path(used.directory.path).stat().st_mode & 0o777 == 0o700
        assert used.directory.parts() == dict(
            key_of(BY_NAME[used.directory.cache], PLAIN, TORCH).parts
        )


def test_variables_of_a_vendor_are_set_where_its_gpu_is(tmp_path: Path):
    home = {"HOME": str(tmp_path)}
    assert not {"SYCL_CACHE_PERSISTENT", "NEO_CACHE_DIR", "CUDA_CACHE_PATH"} & set(
        values(settings(**home))
    )
    intel = values(settings(hardware=INTEL_GPU, **home))
    assert intel["SYCL_CACHE_PERSISTENT"] == "1"
    assert Path(intel["NEO_CACHE_DIR"]).is_dir()  # its library does not make it
    assert "CUDA_CACHE_PATH" not in intel
    nvidia = values(settings(hardware=NVIDIA_GPU, **home))
    assert {"CUDA_CACHE_PATH", "CUDA_CACHE_MAXSIZE"} <= set(nvidia)
    assert "NEO_CACHE_DIR" not in nvidia


def test_caches_that_change_what_programs_do_are_asked_for(tmp_path: Path):
    home = {"HOME": str(tmp_path)}
    extra = {"JAX_COMPILATION_CACHE_DIR", PROFILE_VARIABLE}
    assert not extra & set(values(settings(**home)))
    assert extra <= set(values(settings(everything=True, **home)))


def test_a_plan_makes_nothing(tmp_path: Path):
    found = settings(make=False, XDG_CACHE_HOME=str(tmp_path))
    assert found.variables
    assert found.warnings == ()
    assert list(tmp_path.iterdir()) == []


def test_without_a_home_caches_stay(golden: Golden):
    found = settings()
    assert found.variables == ()
    golden("".join(found.warnings))


def test_a_cache_that_the_user_has_moved_is_not_ours(tmp_path: Path):
    variable, own = "TORCHINDUCTOR_CACHE_DIR", {"TORCHINDUCTOR_CACHE_DIR": "/mine"}
    ours = used(settings(tmp_path))["inductor"].path
    assert "inductor" not in used(settings(HOME=str(tmp_path), **own))
    assert "inductor" in used(settings(tmp_path, **own))  # --cache-dir moves it back,
    assert "inductor" not in used(settings(tmp_path, fixed=[variable], **own))  # but for --env
    assert "inductor" not in used(settings(tmp_path, fixed=[variable], **{variable: ""}))
    # Whoever named it: a directory of ours is held and reported.
    assert "inductor" in used(settings(tmp_path, fixed=[variable], **{variable: ours}))


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o2777, 0o1777])
@pytest.mark.parametrize("below", ["", "inductor"])
def test_a_directory_that_others_can_write_is_neither_used_nor_changed(tmp_path, below, mode):
    """What is in it may be another user's."""
    base = tmp_path / "caches"
    directory = base / below
    directory.mkdir(parents=True)
    directory.chmod(mode)
    if mode == 0o1777 and not below:
        found = settings(base).used
        private = base / f"xlaunch-{os.geteuid()}"
        assert all(Path(it.directory.path).is_relative_to(private) for it in found)
        assert private.stat().st_mode & 0o7777 == 0o700
        assert [path.name for path in base.iterdir()] == [private.name]
    else:
        with pytest.raises(UsageError, match=f"{directory} may be written by others"):
            settings(base)
        assert not [path for path in base.rglob("*") if path != directory]
    assert directory.stat().st_mode & 0o7777 == mode


@pytest.mark.parametrize("mode", [0o755, 0o2755, 0o1755])
def test_a_directory_of_one_s_own_keeps_its_mode(tmp_path: Path, mode: int):
    tmp_path.chmod(mode)
    found = settings(tmp_path)
    assert found.base == str(tmp_path)
    assert tmp_path.stat().st_mode & 0o7777 == mode


def test_without_the_instruction_set_caches_stay(golden: Golden, tmp_path: Path):
    found = settings(hardware=PLAIN._replace(instruction_set=()), HOME=str(tmp_path))
    assert found.used == ()
    golden("".join(found.warnings))


def test_a_directory_above_that_others_can_write_is_refused(golden: Golden, tmp_path: Path):
    tmp_path.chmod(0o777)
    found = settings(XDG_CACHE_HOME=str(tmp_path))
    assert found.variables == ()
    golden("".join(found.warnings))
    with pytest.raises(UsageError, match="every user may write"):
        settings(tmp_path / "x")


@pytest.mark.machine
@pytest.mark.parametrize(
    ("below", "mode"), [("", 0o700), ("inductor", 0o700), (f"xlaunch-{os.geteuid()}", 0o1777)]
)
def test_a_directory_of_another_user_is_refused(tmp_path: Path, needs, below: str, mode: int):
    needs(os.geteuid() == 0, "root, which alone can give files away")
    directory = tmp_path / "caches" / below
    directory.mkdir(parents=True)
    (tmp_path / "caches").chmod(mode)
    os.chown(directory, 65534, 65534)
    with pytest.raises(UsageError, match=f"{directory} belongs to another user"):
        settings(tmp_path / "caches")


@pytest.mark.parametrize("below", ["", "inductor"])
def test_a_link_is_refused(tmp_path: Path, below: str):
    (tmp_path / "elsewhere").mkdir()
    place = tmp_path / "caches" / below
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=f"{place} is a symbolic link"):
        settings(tmp_path / "caches")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_what_is_no_directory_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for asked, problem in (
        ("", r"--cache-dir: the directory's name is empty.*--no-cache"),
        (tmp_path / "file", r"--cache-dir .*file is not a directory"),
    ):
        with pytest.raises(UsageError, match=problem):
            settings(asked)


def test_cold_and_used(tmp_path: Path):
    def warmth() -> dict[str, str]:
        return {it.directory.cache: it.warmth for it in settings(tmp_path).used}

    assert set(warmth().values()) == {"cold"}
    (Path(settings(tmp_path).used[0].directory.path) / "code.so").write_text("x")
    assert [name for name, found in warmth().items() if found == "used"] == ["inductor"]


def test_a_launch_goes_on_without_a_lock_and_says_so(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("xlaunch.cache.store.HOLD_TIMEOUT_S", 0.05)
    found = settings(tmp_path)
    with not_in_use(found.used[0].directory, frozenset()):
        (line,) = found.hold()
    assert line.endswith(f"its record cannot be locked: {found.used[0].directory.path}")
    assert found.hold() == []
    for number in os.listdir("/proc/self/fd"):
        if os.path.realpath(f"/proc/self/fd/{number}").startswith(f"{tmp_path}/"):
            os.close(int(number))


def test_a_record_that_is_a_link_is_refused(tmp_path: Path):
    record = Path(settings(tmp_path).used[0].directory.record)
    record.rename(tmp_path / "elsewhere")
    record.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=f"{record}: is a symbolic link"):
        settings(tmp_path)


def test_a_library_whose_linker_was_killed_is_removed_by_the_next_launch(tmp_path: Path):
    cache = settings(tmp_path).used[0].directory
    whole = Path(sys.executable).resolve().read_bytes()
    (Path(cache.path) / "ab").mkdir()
    contents = {"cut": whole[:-100], "empty": b"", "whole": whole}
    files = {name: Path(cache.path) / "ab" / f"{name}.so" for name in contents}
    for name, content in contents.items():
        files[name].write_bytes(content)
    with held(cache):
        settings(tmp_path)  # its linker may be at work
    assert files["cut"].exists()
    settings(tmp_path, make=False)
    assert files["cut"].exists()
    for path in files.values():  # as if written since that launch began
        path.write_bytes(path.read_bytes())
    os.utime(files["cut"].parent)
    settings(tmp_path)
    assert [name for name, path in files.items() if path.exists()] == ["whole"]


def test_a_cut_library_of_a_compiled_model_is_removed_by_the_next_launch(tmp_path: Path):
    model = Path(used(settings(tmp_path))["optimized"].path) / "0123abcd" / "model.so"
    model.parent.mkdir()
    model.write_bytes(Path(sys.executable).resolve().read_bytes()[:-100])
    (model.parent / "description.json").write_text("{}")
    settings(tmp_path)
    assert os.listdir(model.parent) == ["description.json"]


class TestPrecompiledHeaders:
    """torch takes them from a directory for temporary files, wherever its cache is."""

    @staticmethod
    def settings(tmp_path: Path, *, make: bool = True, **variables: str) -> CacheSettings:
        own = {"TMPDIR": str(tmp_path), "LOGNAME": "a/b", HEADERS_VARIABLE: "", **variables}
        return settings(tmp_path / "caches", make=make, **own)

    def test_the_directory_is_made_before_others_can(self, tmp_path: Path):
        assert HEADERS_VARIABLE not in values(self.settings(tmp_path, make=False))
        assert not list(tmp_path.iterdir())
        for _ in range(2):
            found = self.settings(tmp_path)
            assert found.warnings == ()
            assert HEADERS_VARIABLE not in values(found)
            assert (tmp_path / "torchinductor_a_b").stat().st_mode & 0o777 == 0o700

    @pytest.mark.parametrize("below", ["", "precompiled_headers"])
    @pytest.mark.parametrize("theirs", ["mode", "owner", "link"])
    def test_without_a_private_one_torch_compiles_without_headers(
        self, tmp_path: Path, below: str, theirs: str, needs
    ):
        place = tmp_path / "torchinductor_a_b" / below
        place.mkdir(parents=True)
        if theirs == "mode":
            place.chmod(0o777)
        else:
            needs(os.geteuid() == 0, "root, who can give files away")
            if theirs == "link":
                place.rmdir()
                place.symlink_to("/usr")
            os.chown(place, 65534, 65534, follow_symlinks=False)
        before = place.lstat().st_ctime_ns
        found = self.settings(tmp_path)
        assert values(found)[HEADERS_VARIABLE] == "0"
        (warning,) = found.warnings
        assert str(place) in warning
        assert "it compiles without them" in warning
        assert place.lstat().st_ctime_ns == before

    def test_the_user_s_own_value_is_kept(self, tmp_path: Path):
        (tmp_path / "torchinductor_a_b").mkdir()
        (tmp_path / "torchinductor_a_b").chmod(0o777)
        found = self.settings(tmp_path, **{HEADERS_VARIABLE: "1"})
        assert f"{HEADERS_VARIABLE}=0 prevents it" in "".join(found.warnings)
        assert HEADERS_VARIABLE not in values(found)


class TestSeed:
    """A read-only cache that an image ships."""

    @pytest.fixture
    def seed(self, tmp_path: Path) -> Path:
        """Made by a launch with `--cache-dir`, and filled."""
        used = settings(tmp_path / "seed").used
        library = Path(used[0].directory.path) / "ab" / "code.cpp"
        library.parent.mkdir()
        library.write_text("code")
        return tmp_path / "seed"

    def test_the_first_start_copies_it(self, seed: Path, tmp_path: Path):
        found = settings(HOME=str(tmp_path), **{SEED: str(seed)})
        assert found.used[0].warmth == "used"
        copied = Path(found.used[0].directory.path) / "ab" / "code.cpp"
        assert copied.read_text() == "code"
        assert copied.is_relative_to(tmp_path / ".cache")
        copied.write_text("newer")
        settings(HOME=str(tmp_path), **{SEED: str(seed)})
        assert copied.read_text() == "newer"
        names = os.listdir(copied.parent.parent.parent)
        assert not [name for name in names if name.startswith(".")]

    def test_a_plan_tells_and_copies_nothing(self, seed: Path, tmp_path: Path):
        found = settings(make=False, HOME=str(tmp_path), **{SEED: str(seed)})
        assert found.used[0].warmth == "used"
        assert not (tmp_path / ".cache").exists()

    def test_other_hardware_or_versions_start_cold(self, seed: Path, tmp_path: Path):
        for other in (
            {"hardware": PLAIN._replace(instruction_set=("avx2",))},
            {"packages": Packages({"torch": "1.0"}, "3.11")},
        ):
            found = settings(HOME=str(tmp_path), **other, **{SEED: str(seed)})
            assert found.used[0].warmth == "cold"

    def test_what_others_could_have_changed_is_refused(self, seed: Path, tmp_path: Path):
        def refused(place: Path, problem: str) -> None:
            with pytest.raises(UsageError, match=problem):
                settings(HOME=str(tmp_path), **{SEED: str(place)})

        refused(tmp_path / "gone", "no such directory")
        seed.chmod(0o777)
        refused(seed, SEED)
        seed.chmod(0o755)
        tmp_path.chmod(0o777)
        refused(seed, f"every user may write {tmp_path}")
        tmp_path.chmod(0o700)
        library = next(seed.rglob("code.cpp"))
        library.chmod(0o666)
        refused(seed, r"may change .*code\.cpp")
        library.unlink()
        library.symlink_to("/etc/passwd")
        refused(seed, "neither a file nor a directory")
        assert not list(tmp_path.rglob(".cache/**/code.cpp"))
