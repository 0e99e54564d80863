# SPDX-License-Identifier: Apache-2.0
"""Keys: what starts a cache cold, and what does not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.golden import Golden

from xlaunch.cache.store import (
    Hardware,
    Packages,
    applies,
    differences,
    fingerprint,
    key_of,
    read_hardware,
)
from xlaunch.cache.table import BY_NAME, CACHES
from xlaunch.machine.topology import Gpu, Vendor

HARDWARE = Hardware("x86_64", ("amx_bf16", "avx2"), "GenuineIntel 6 143", (), ())
PACKAGES = Packages(
    {"torch": "2.13.0", "numba": "0.61.0", "llvmlite": "0.44.0", "xlaunch": "0.1.0"}, "3.11"
)

CPUINFO = """\
processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
stepping\t: {stepping}
microcode\t: 0x2b0004d0
flags\t\t: fpu vme sse4_2 avx2 {flags}
"""


def tree(root: Path, stepping: int = 4, flags: str = "") -> str:
    (root / "proc").mkdir(parents=True)
    (root / "proc/cpuinfo").write_text(CPUINFO.format(stepping=stepping, flags=flags))
    return str(root)


def names(hardware: Hardware = HARDWARE, packages: Packages = PACKAGES) -> dict[str, str]:
    return {cache.name: key_of(cache, hardware, packages).name for cache in CACHES}


def changed(one: dict[str, str], other: dict[str, str]) -> set[str]:
    return {name for name in one if one[name] != other[name]}


def test_a_kernel_update_and_another_stepping_change_no_key(tmp_path: Path):
    before = read_hardware(tree(tmp_path / "a"))
    after = read_hardware(tree(tmp_path / "b", stepping=8, flags="ibrs md_clear tsc_known_freq"))
    assert before == after
    assert before.instruction_set == ("avx2", "sse4_2")
    assert before.cpu_model == "GenuineIntel 6 143"


def test_an_extension_that_compilers_use_changes_the_keys_of_cpu_code(tmp_path: Path):
    one = names(read_hardware(tree(tmp_path / "a")))
    other = names(read_hardware(tree(tmp_path / "b", flags="avx512f")))
    assert changed(one, other) == {"inductor", "optimized", "torch_extensions", "numba", "jax"}


@pytest.mark.parametrize(
    ("package", "cold"),
    [
        ("numba", {"numba"}),
        ("llvmlite", {"numba"}),
        ("torch", {"inductor", "optimized", "torch_extensions"}),
        ("xlaunch", {"optimized"}),
        ("triton", {"inductor", "triton"}),
        ("requests", set()),
    ],
)
def test_an_upgrade_leaves_other_caches_warm(package: str, cold: set[str]):
    upgraded = Packages({**(PACKAGES.versions or {}), package: "99"}, "3.11")
    assert changed(names(), names(packages=upgraded)) == cold


def test_a_gpu_driver_changes_the_keys_of_gpu_code():
    gpu = HARDWARE._replace(gpus=(Gpu(Vendor.NVIDIA, "10de:2335"),), gpu_drivers=("NVIDIA 550",))
    cold = changed(names(gpu), names(gpu._replace(gpu_drivers=("NVIDIA 560",))))
    assert "cuda" in cold
    assert not {"inductor", "triton", "numba"} & cold
    assert "triton" in changed(names(), names(gpu))


def test_the_name_of_a_key_shows_its_versions():
    name = names()["numba"]
    assert name.startswith("numba0.61.0-llvmlite0.44.0-py3.11-x86_64-")
    unknown = key_of(BY_NAME["numba"], HARDWARE, Packages()).name
    assert unknown.startswith("x86_64-")
    odd = key_of(BY_NAME["numba"], HARDWARE, Packages({"numba": "1/../x y"}, "3.11")).name
    assert "/" not in odd
    assert " " not in odd


def test_a_key_says_that_the_main_package_is_absent_and_omits_the_others():
    parts = fingerprint(HARDWARE, Packages({}, "3.11"))["caches"]["inductor"]["parts"]
    assert parts["torch"] == "absent"
    assert "triton" not in parts
    unknown = fingerprint(HARDWARE, Packages(None, "3.11"))["caches"]["inductor"]["parts"]
    assert (unknown["torch"], unknown["triton"]) == ("unknown", "unknown")


def test_which_caches_apply():
    here = {cache.name for cache in CACHES if applies(cache, HARDWARE)}
    assert here == {"inductor", "optimized", "triton", "torch_extensions", "numba"}
    everything = {cache.name for cache in CACHES if applies(cache, HARDWARE, everything=True)}
    assert everything - here == {"jax"}


def test_every_row_of_the_table_is_complete():
    variables = [cache.variable for cache in CACHES]
    assert len(set(variables)) == len(variables)
    for cache in CACHES:
        own_page = Path(__file__).parents[3] / cache.source
        assert cache.source.startswith("https://") or own_page.is_file()
        assert cache.parts
        assert cache.name.isidentifier()


def test_differences_name_the_part(golden: Golden):
    hardware = HARDWARE._replace(instruction_set=("avx2", "avx512f"))
    packages = Packages({**(PACKAGES.versions or {}), "torch": "2.12.0"}, "3.11")
    one = fingerprint(HARDWARE, PACKAGES)["caches"]["inductor"]["parts"]
    other = fingerprint(hardware, packages)["caches"]["inductor"]["parts"]
    assert differences(one, one) == []
    golden(differences(one, other))


def test_unknown_instruction_sets_are_never_the_same(tmp_path: Path):
    (tmp_path / "proc").mkdir()
    here = read_hardware(str(tmp_path))
    assert here.instruction_set == ()
    assert "/proc" in (here.why_unknown or "")
    assert HARDWARE.why_unknown is None
    parts = fingerprint(here, PACKAGES)["caches"]["inductor"]["parts"]
    assert differences(parts, parts) == ["instruction_set: unknown; unknown"]


def test_the_c_library_is_part_of_the_keys_of_what_a_linker_made():
    other = HARDWARE._replace(c_library="glibc 2.31")
    assert changed(names(), names(other)) == {"inductor", "optimized", "triton", "torch_extensions"}
    version = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else ""
    assert read_hardware().c_library == (version or "not glibc")


def test_widths_of_sve_vectors_are_told_apart(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("os.uname", lambda: type("U", (), {"machine": "aarch64"}))
    keys = set()
    for width in ("16", "32"):
        root = tmp_path / width
        (root / "proc/sys/abi").mkdir(parents=True)
        (root / "proc/cpuinfo").write_text("Features\t: fp asimd sve evtstrm\n")
        (root / "proc/sys/abi/sve_default_vector_length").write_text(f"{width}\n")
        found = read_hardware(str(root))
        assert "evtstrm" not in found.instruction_set
        keys.add(names(found)["inductor"])
    assert len(keys) == 2
