# SPDX-License-Identifier: Apache-2.0
"""Energy from a made-up powercap tree: what is counted once, what begins anew, what is not told."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tuner.conftest import Needs

from xtune.launches.meters import EnergyMeter

RANGE = 262_143_328_850


class Powercap:
    """A tree as the kernel shows it."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self._directory = root / "sys/class/powercap"

    def counter(self, name: str, label: str, energy_uj: int | None, range_uj: int = RANGE) -> None:
        directory = self._directory / name
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "name").write_text(f"{label}\n")
        (directory / "max_energy_range_uj").write_text(f"{range_uj}\n")
        if energy_uj is not None:
            (directory / "energy_uj").write_text(f"{energy_uj}\n")


@pytest.fixture
def powercap(tmp_path: Path) -> Powercap:
    made = Powercap(tmp_path)
    (tmp_path / "sys/class/powercap/intel-rapl").mkdir(parents=True)  # the control type itself
    return made


def test_packages_and_their_memory_add_up(powercap: Powercap):
    powercap.counter("intel-rapl:0", "package-0", 1_000_000)
    powercap.counter("intel-rapl:1", "package-1", 2_000_000)
    powercap.counter("intel-rapl:1:0", "dram", 0)
    meter = EnergyMeter(powercap.root)
    powercap.counter("intel-rapl:0", "package-0", 4_000_000)
    powercap.counter("intel-rapl:1", "package-1", 2_500_000)
    powercap.counter("intel-rapl:1:0", "dram", 250_000)
    assert meter.joules() == pytest.approx(3.75)


def test_nothing_is_counted_twice(powercap: Powercap):
    for name, label in (
        ("intel-rapl:0", "package-0"),
        ("intel-rapl:0:0", "core"),
        ("intel-rapl:0:1", "uncore"),
        ("intel-rapl:1", "psys"),
        ("intel-rapl-mmio:0", "package-0"),
        ("dtpm:0", "package-0"),
    ):
        powercap.counter(name, label, 0)
    meter = EnergyMeter(powercap.root)
    for name in ("intel-rapl:0", "intel-rapl:0:0", "intel-rapl:1", "intel-rapl-mmio:0", "dtpm:0"):
        powercap.counter(name, "package-0" if name == "intel-rapl:0" else "core", 1_000_000)
    assert meter.joules() == 1.0


def test_counter_that_begins_anew(powercap: Powercap):
    powercap.counter("intel-rapl:0", "package-0", 900, range_uj=1000)
    meter = EnergyMeter(powercap.root)
    for reading, total_uj in ((950, 50), (50, 150), (40, 1140), (41, 1141)):
        powercap.counter("intel-rapl:0", "package-0", reading, range_uj=1000)
        meter.sample()
        assert meter.joules() == pytest.approx(total_uj / 1e6)


def test_no_counters_tell_nothing(tmp_path: Path, powercap: Powercap):
    assert EnergyMeter(powercap.root).joules() is None
    assert EnergyMeter(str(tmp_path / "nowhere")).joules() is None


def test_a_counter_that_cannot_be_read_leaves_no_sum(powercap: Powercap):
    powercap.counter("intel-rapl:0", "package-0", 5)
    powercap.counter("intel-rapl:1", "package-1", None)
    assert EnergyMeter(powercap.root).joules() is None


def test_a_counter_that_vanishes_leaves_no_sum(powercap: Powercap, tmp_path: Path):
    powercap.counter("intel-rapl:0", "package-0", 5)
    meter = EnergyMeter(powercap.root)
    (tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj").unlink()
    meter.sample()
    powercap.counter("intel-rapl:0", "package-0", 50)
    meter.sample()
    assert meter.joules() is None


@pytest.mark.machine
def test_this_machine_s_counters_only_rise(needs: Needs):
    meter = EnergyMeter()
    first = meter.joules()
    needs(first is not None, "energy counters that this user may read")
    second = meter.joules()
    assert 0 <= first <= second
