# SPDX-License-Identifier: Apache-2.0
"""Machines of one kind agree and others never do; programs agree by command and file."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import pytest
from tests.captures import capture_path, other_captures, own_captures
from tests.launcher.planning.shapes import GIB, make_machine

import xlaunch
from xlaunch.machine import read_machine
from xlaunch.machine.capture import unpacked
from xlaunch.machine.topology import Machine
from xlaunch.planning import Request
from xtune.space.identities import (
    MachineIdentity,
    Processor,
    ProgramIdentity,
    identify_machine,
    identify_program,
    read_processor,
)
from xtune.space.plain_values import from_plain, to_plain

XEON = Processor(("vendor_id=GenuineIntel, model name=Xeon",), ("amx_bf16", "avx512f"))
TWINS = {"hwloc-40intel64-2g2n4c+pcilocality", "hwloc-40intel64-4n10c+pci-conflicts"}
"""Two captures of one machine, which differ in what hangs on PCI."""


@functools.cache
def captured(name: str) -> tuple[Machine, Processor]:
    with unpacked(capture_path(name)) as root:
        return read_machine(root), read_processor(root)


def with_memory(machine: Machine, total: int | None, limit: int | None = None) -> Machine:
    limits = machine.limits._replace(memory_total_bytes=total, memory_limit_bytes=limit)
    return machine._replace(limits=limits)


@pytest.mark.parametrize(
    "names",
    [own_captures(), pytest.param([*own_captures(), *other_captures()], marks=pytest.mark.full)],
    ids=["own", "all"],
)
def test_captured_machines_are_told_apart(names: list[str]) -> None:
    twins = [TWINS] if set(names) >= TWINS else []
    found: dict[str, set[str]] = {}
    for name in names:
        identity = identify_machine(*captured(name))
        found.setdefault(identity.fingerprint, set()).add(name)
        assert from_plain(MachineIdentity, json.loads(json.dumps(to_plain(identity)))) == identity
    assert [names for names in found.values() if len(names) > 1] == twins


@pytest.mark.machine
@pytest.mark.parametrize(
    ("name", "model", "features"),
    [
        (
            "ocp-bm-worker1",
            "vendor_id=GenuineIntel, cpu family=6, model=85, model name=Intel(R) Xeon(R) Gold 6230 CPU "
            "@ 2.10GHz, stepping=7",
            {"avx512_vnni", "avx512f", "fma"},
        ),
        ("vm-x86-cg1quota", "cpu family=23, model=1, model name=AMD EPYC", {"hypervisor", "avx2"}),
        ("hwloc-nvidia-dgx-gb10", "cpu part=0xd85", {"bf16", "i8mm", "sve2"}),
        ("lscpu-s390-lpar", "vendor_id=IBM/S390, machine=2817", set()),
        ("lscpu-rv64-milkvpioneer", "mvendorid=0x5b7, marchid=0x0, mimpid=0x0, isa=rv64", set()),
        ("vm-ppc64le-64cpu-offline", "cpu=POWER9", set()),
        ("lscpu-loongarch-kvm_on_loongson_3c6000", "model name=Loongson-3A5000", {"lasx"}),
    ],
)  # fmt: skip
def test_processors_are_read(name: str, model: str, features: set[str]) -> None:
    processor = captured(name)[1]
    assert any(model in one for one in processor.models), processor.models
    assert features <= set(processor.features)
    text = " ".join([*processor.models, *processor.features]).lower()
    assert not any(word in text for word in ("microcode", "serial", "cpu mhz", "identification"))


def test_bf16_is_fast_with_amx_or_arms_extension() -> None:
    assert XEON.has_fast_bf16
    assert Processor((), ("asimd", "bf16")).has_fast_bf16
    assert not Processor((), ("avx512f", "avx512_bf16")).has_fast_bf16
    assert not Processor(()).has_fast_bf16


def test_a_machine_without_cpuinfo_has_no_known_processor(tmp_path: Path) -> None:
    assert read_processor(str(tmp_path)) == Processor((), ())
    machine = make_machine(packages=(4,))
    facts = dict(identify_machine(machine, Processor(())).facts)
    assert facts["processor"] == facts["features"] == "unknown"


def test_this_machine_is_of_its_own_kind() -> None:
    one = identify_machine(xlaunch.read_machine(), read_processor())
    assert one.difference(identify_machine(xlaunch.read_machine(), read_processor())) is None
    assert len(one.fingerprint) == 16


def test_kernel_microcode_and_clock_have_no_part(tmp_path: Path) -> None:
    text = (
        "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n"
        "model name\t: Xeon\nstepping\t: 8\nmicrocode\t: 0x2b0004d0\ncpu MHz\t\t: 2000.000\n"
        "flags\t\t: fpu avx2 amx_bf16 hypervisor\nbugs\t\t: spectre_v1\n\n"
    )
    later = text.replace("0x2b0004d0", "0x2b000643").replace("2000.000", "3100.411")
    later = later.replace("fpu avx2", "fpu ibrs md_clear avx2").replace("spectre_v1", "spectre_v2")
    found = []
    for name, content in (("one", text), ("two", later), ("other", text.replace(": 143", ": 207"))):
        (tmp_path / name / "proc").mkdir(parents=True)
        (tmp_path / name / "proc" / "cpuinfo").write_text(content)
        found.append(read_processor(str(tmp_path / name)))
    assert found[0] == found[1] != found[2]
    assert found[0].features == ("amx_bf16", "avx2", "hypervisor")


def test_the_memory_that_a_kernel_takes_has_no_part() -> None:
    machine = make_machine(packages=(4,))

    def size(total: int) -> str:
        return dict(identify_machine(with_memory(machine, total), XEON).facts)["memory"]

    assert size(503 * GIB) == size(512 * GIB) == "512 GiB"
    assert size(15 * GIB + (600 << 20)) == "16 GiB"
    assert size(376 * GIB) == "384 GiB"
    assert size(62 * GIB) != size(126 * GIB)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (make_machine(packages=(8,), nodes=(8,), l3=(4, 4), smt=2), "cores: 8 in 2 packages and 2 nodes, "),
        (make_machine(packages=(4, 4), nodes=(4, 4), l3=(8,), smt=2), "topology: "),
        (make_machine(packages=(4, 4), nodes=(4, 4), l3=(4, 4)), "up to 2 threads each here"),
        (
            make_machine(packages=(4, 4), nodes=(4, 4), l3=(4, 4), smt=2, architecture="aarch64"),
            "architecture: x86_64 here, aarch64 there",
        ),
        (
            make_machine(packages=(4, 4), nodes=(4, 4), l3=(4, 4), smt=2, allowed=range(4)),
            "usable CPUs: unknown here, 4, lying as",
        ),
        (
            make_machine(packages=(4, 4), nodes=(4, 4), l3=(4, 4), smt=2, quota=2.5),
            "CPU quota: unknown here, 2.5 there",
        ),
        (
            make_machine(packages=(4, 4), nodes=(4, 4), l3=(4, 4), smt=2, allowed_nodes=(0,)),
            "usable NUMA nodes: unknown here, 1 there",
        ),
    ],
)  # fmt: skip
def test_another_machine_is_told_by_what_differs(other: Machine, difference: str) -> None:
    machine = make_machine(packages=(4, 4), nodes=(4, 4), l3=(4, 4), smt=2)
    ours, theirs = identify_machine(machine, XEON), identify_machine(other, XEON)
    assert ours.fingerprint != theirs.fingerprint
    said = ours.difference(theirs)
    assert difference in said
    assert len(said.splitlines()) == 1


def test_a_limit_on_memory_is_part_of_the_kind() -> None:
    machine = make_machine(packages=(4,))
    free = identify_machine(with_memory(machine, 64 * GIB), XEON)
    limited = identify_machine(with_memory(machine, 64 * GIB, limit=8 * GIB), XEON)
    above = identify_machine(with_memory(machine, 64 * GIB, limit=80 * GIB), XEON)
    assert free.difference(limited) == "memory limit: unknown here, 8 GiB there"
    assert free == above


def test_containers_with_other_cpus_of_the_same_shape_agree() -> None:
    def of(*allowed: int) -> MachineIdentity:
        machine = make_machine(packages=(8, 8), nodes=(8, 8), l3=(4,) * 4, allowed=allowed)
        return identify_machine(machine, XEON)

    assert of(0, 1, 2, 3) == of(4, 5, 6, 7) == of(12, 13, 14, 15)
    assert of(0, 1, 2, 3) != of(2, 3, 4, 5)  # over two L3 caches
    assert of(2, 3, 4, 5) != of(6, 7, 8, 9)  # over two nodes


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "infer.py"
    path.write_text("print(1)\n")
    return path


def test_an_edited_script_stays_itself_and_so_does_a_copy(script: Path, tmp_path: Path) -> None:
    request = Request.of(str(script), "--batch", "{batch}")
    before = identify_program(request)
    script.write_text("print(2)\n")
    edited = identify_program(request)
    assert before.agrees(edited)


def test_a_copy_elsewhere_is_the_same_program(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request.of("python", "infer.py", "--batch", "{batch}")
    monkeypatch.chdir(script.parent)
    here = identify_program(request)
    assert here.place == str(script)
    elsewhere = tmp_path / "copy"
    elsewhere.mkdir()
    shutil.copy(script, elsewhere)
    monkeypatch.chdir(elsewhere)
    assert identify_program(request).agrees(here)
    (elsewhere / "infer.py").write_text("print(3)\n")
    assert not identify_program(request).agrees(here)


def test_other_words_and_variables_are_another_command(script: Path) -> None:
    request = Request.of(str(script), "--batch", "{batch}")
    one = identify_program(request)
    for other in (
        request.replace(words=(str(script), "--batch", "8")),
        request.replace(env=(("RATE", "2"),)),
        request.replace(module=True),
    ):
        assert not identify_program(other).agrees(one)
    launched = request.replace(instances=2, allocator="jemalloc", smt=True)
    assert identify_program(launched).agrees(one)


def test_programs_on_the_path_and_modules_have_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    true = identify_program(Request.of("true"))
    assert true.place.endswith("true")
    assert true.content
    module = identify_program(Request.of("json.tool", "x", module=True))
    assert (module.place, module.content) == (str(Path.cwd()), "")
    assert module.agrees(identify_program(Request.of("json.tool", "x", module=True)))
    absent = identify_program(Request.of("no-such-program"))
    assert absent.content == ""
    assert not absent.agrees(true)


def test_a_program_is_kept_as_json(script: Path) -> None:
    one = identify_program(Request.of(str(script), "{batch}"))
    assert from_plain(ProgramIdentity, json.loads(json.dumps(to_plain(one)))) == one
    assert one.words == (str(script), "{batch}")
