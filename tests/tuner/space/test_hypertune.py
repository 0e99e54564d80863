# SPDX-License-Identifier: Apache-2.0
"""hypertune's configuration files: as its manual shows them, and what they come to on machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.golden import Golden
from tests.launcher.planning.shapes import make_machine

from xlaunch.machine.topology import Machine
from xlaunch.planning import Request, plan
from xtune.errors import SpaceError
from xtune.space.hypertune import DEFAULTS, HypertuneSettings, parameters_of, read_settings
from xtune.space.launch_options import with_option
from xtune.space.parameters import Configuration, Target
from xtune.space.spaces import Space

REQUEST = Request.of("infer.py")


@pytest.fixture
def read(tmp_path: Path):  # type: ignore[no-untyped-def]
    def read_text(text: str) -> HypertuneSettings:
        path = tmp_path / "conf.yaml"
        path.write_text(text)
        return read_settings(str(path))

    return read_text


def machine_of(*cores: int, smt: int = 1) -> Machine:
    """A machine with so many cores in each package, which is a NUMA node."""
    return make_machine(packages=cores, nodes=cores, smt=smt)


def launcher(**values: Any) -> HypertuneSettings:
    return HypertuneSettings(100, None, tuple(values.items()))


def made(settings: HypertuneSettings, machine: Machine) -> dict[str, tuple[Any, ...]]:
    parameters = parameters_of(settings, REQUEST, machine)[0]
    assert all(one.default == one.values[0] and one.where is Target.OPTION for one in parameters)
    return {one.name: one.values for one in parameters}


# Reading


def test_file_as_the_manual_shows_it(read: Any):
    text = """
tuning:                                      # optional.
  strategy: grid
  max_trials: 50
output_dir: /path/to/saving/directory
hyperparams:                                 # mandatory.
  launcher:                                  # optional.
    hp: ['ncores_per_instance', 'ninstances']
    ncores_per_instance: all_physical_cores
    ninstances:  [1, 2]
"""
    assert read(text) == HypertuneSettings(
        50,
        "/path/to/saving/directory",
        (("ncores_per_instance", "all_physical_cores"), ("ninstances", [1, 2])),
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "tuning: {}\n", "{}"])
def test_empty_file_searches_all_that_the_launcher_has(read: Any, text: str):
    assert read(text) == HypertuneSettings(100, None, tuple(DEFAULTS.items()))


EVERY_SPELLING = ", ".join([*DEFAULTS, "ncore_per_instance", "use_logical_core"])


@pytest.mark.parametrize(
    ("text", "searched"),
    [
        ("{}", ()),
        (
            "{launcher: {hp: [ncore_per_instance, use_logical_core, malloc],"
            " ncore_per_instance: [1, 2], use_logical_core: [yes]}}",
            (
                ("ncores_per_instance", [1, 2]),
                ("use_logical_cores", [True]),
                ("malloc", ["pt", "tc", "je"]),
            ),
        ),
        ("{launcher: {hp: [malloc], malloc: [je], ninstances: [1, 2]}}", (("malloc", ["je"]),)),
        (f"{{launcher: {{hp: [{EVERY_SPELLING}]}}}}", tuple(DEFAULTS.items())),
    ],
    ids=["no launcher", "old spellings", "a list of what is not searched", "both spellings"],
)
def test_hyperparams_say_what_is_searched(read: Any, text: str, searched: tuple[object, ...]):
    assert read(f"hyperparams: {text}").searched == searched


LAUNCHER = "hyperparams: {{launcher: {{hp: [{name}], {name}: {value}}}}}"


def test_wrong_files_are_refused_in_a_line(golden: Golden, read: Any):
    said = []
    for text in (
        "a: [", "\0", "- a\n- b", "tune: {}", "tuning: {strategy: bayes}", "tuning: {strategy: [grid]}",
        "tuning: {max_trials: 0}", "tuning: {trials: 3}", "output_dir: 3", "hyperparams: {training: {}}",
        "hyperparams: {launcher: {}}", "hyperparams: {launcher: {hp: []}}",
        "hyperparams: {launcher: {hp: [batch]}}", "hyperparams: {launcher: {hp: [{a: b}]}}",
        "hyperparams: {launcher: {hp: [malloc], nodes: 3}}", LAUNCHER.format(name="ninstances", value="all"),
        LAUNCHER.format(name="ninstances", value="[]"), LAUNCHER.format(name="ninstances", value="[1, 0]"),
        LAUNCHER.format(name="ninstances", value="[true]"), LAUNCHER.format(name="malloc", value="[mi]"),
        LAUNCHER.format(name="malloc", value="tc"), LAUNCHER.format(name="disable_iomp", value="[1]"),
        LAUNCHER.format(name="use_all_nodes", value="['no']"),
        "hyperparams: {launcher: {hp: [ncores_per_instance, ncore_per_instance],"
            " ncores_per_instance: [1], ncore_per_instance: [2]}}",
    ):  # fmt: skip
        with pytest.raises(SpaceError) as refused:
            read(text)
        said += [repr(text), f"  {refused.value}"]
        assert "conf.yaml: " in said[-1]
        assert "\n" not in said[-1]
    golden(said, hide="(?<=not valid YAML: ).*")


def test_file_that_is_not_there_or_binary(tmp_path: Path):
    path = tmp_path / "conf.yaml"
    with pytest.raises(SpaceError, match=r"conf\.yaml': No such file"):
        read_settings(str(path))
    path.write_bytes(b"\x80\xff\xfe")
    with pytest.raises(SpaceError, match="not valid YAML"):
        read_settings(str(path))


# On machines


@pytest.mark.parametrize(
    ("searched", "cores", "layouts"),
    [
        ({"ninstances": [1, 2, 3]}, 8, ("1xall", "1x8", "2x4", "3x2")),  # xlaunch divides the cores
        ({"ncores_per_instance": [1, 8]}, 8, ("1xall", "1x1", "1x8")),
        (
            {"ncores_per_instance": [-1, 2], "ninstances": [-1, 2]},
            8,
            ("1xall", "1x2", "2x4", "2x2"),
        ),
        (
            {"ncores_per_instance": [1, 2, 4, 8], "ninstances": [1, 2, 3]},
            4,
            ("1xall", "1x1", "1x2", "1x4", "2x1", "2x2", "3x1"),
        ),
    ],
)
def test_pairs_that_fit_become_layouts(
    searched: dict[str, list[int]], cores: int, layouts: tuple[str, ...]
):
    (layout,), notes = parameters_of(launcher(**searched), REQUEST, machine_of(cores))
    assert layout.values == layouts
    assert notes == (("6 of 12 layouts do not fit 4 cores and are left out",) if cores == 4 else ())


def test_words_for_all_cores_count_cores():
    # Siblings of SMT have numbers far from their core's: counts are what is meant.
    machine = machine_of(2, 2, smt=2)
    for word, notes in (
        ("all_physical_cores", ()),
        ("all_logical_cores", ("4 of 8 layouts do not fit 4 cores and are left out",)),
    ):
        (layout,), said = parameters_of(launcher(ncores_per_instance=word), REQUEST, machine)
        assert (layout.values, said) == (("1xall", "1x1", "1x2", "1x3", "1x4"), notes)


def test_first_node_alone():
    machine = machine_of(4, 4)
    assert made(launcher(use_all_nodes=[True, False]), machine) == {"layout": ("1xall", "1x4")}
    (layout,) = made(launcher(use_all_nodes=[False], ninstances=[1, 2, 4]), machine).values()
    assert layout == ("1xall", "1x4", "2x2", "4x1")
    for text in layout[1:]:
        on_node = plan(with_option(REQUEST, "layout", text).layout, machine)
        assert {node for instance in on_node.instances for node in instance.nodes} == {0}


def test_nothing_that_fits_is_an_error():
    with pytest.raises(
        SpaceError, match="none of the 2 pairs of ninstances and ncores_per_instance"
    ):
        made(launcher(ninstances=[9], ncores_per_instance=[1, 2]), machine_of(4))


def test_switches_mean_options():
    machine = machine_of(4)
    settings = launcher(
        use_logical_cores=[True, False],
        disable_numactl=[False, True],
        disable_iomp=[False, True],
        malloc=["pt", "default", "tc", "je"],
    )
    assert made(settings, machine) == {
        "smt": (False, True),
        "memory": ("auto", "none"),
        "omp": ("auto", "intel", "gnu"),
        "allocator": ("auto", "glibc", "tcmalloc", "jemalloc"),
    }


def test_all_that_the_launcher_has_is_a_space_that_can_be_planned(read: Any):
    machine = machine_of(4, 4, smt=2)
    found, _ = parameters_of(read(""), REQUEST, machine)
    space = Space(found)
    layouts = len(found[0].values)
    assert space.size == layouts * 2 * 2 * 3 * 4
    for text in found[0].values:
        assert plan(with_option(REQUEST, "layout", str(text)).layout, machine).instances


def test_large_machine_does_not_take_long_to_say():
    machine = machine_of(32, 32, smt=2)
    settings = launcher(ncores_per_instance="all_logical_cores", ninstances="all_logical_cores")
    (layouts,) = made(settings, machine).values()
    assert len(layouts) == 1 + sum(64 // n for n in range(1, 65))


def test_the_default_is_what_xlaunch_does_of_itself():
    machine = machine_of(4)
    settings = launcher(ncores_per_instance=[1, 2], use_logical_cores=[True], malloc=["je"])
    space = Space(parameters_of(settings, REQUEST, machine)[0])
    own = {"layout": "1xall", "smt": False, "allocator": "auto"}
    assert space.default == Configuration(own)
    assert space.changes(list(space)[-1]) == {
        "layout": "1x2", "smt": True, "allocator": "jemalloc",
    }  # fmt: skip
    asked = REQUEST.replace(allocator="glibc")
    (allocator,) = parameters_of(launcher(malloc=["je"]), asked, machine)[0]
    assert (allocator.values, allocator.default) == (("glibc", "jemalloc"), "glibc")
