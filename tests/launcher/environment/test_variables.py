# SPDX-License-Identifier: Apache-2.0
"""Which variables an instance gets: each with a reason, and never over the user's own."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.launcher.planning.shapes import make_machine

from xlaunch.environment import prepare_environment
from xlaunch.environment.variables import (
    MEMORY,
    SET_VARIABLES,
    Proposal,
    VariableSetting,
    choose_settings,
    inherited_notes,
    instance_variables,
    layout_option,
    split_inherited,
    without_names,
)
from xlaunch.planning import MAX, LayoutRequest, Mode, Plan, ProgramRequest, plan
from xlaunch.planning.request import RunRequest

OMP = "OMP_NUM_THREADS"
VARIABLE = "XLAUNCH_INSTANCE_"
WANTED = Proposal("CACHE", "ours", "kept in one place")


def planned(**request: object) -> Plan:
    """Two instances on eight cores of two nodes."""
    machine = make_machine(packages=(8,), nodes=(4, 4))
    return plan(LayoutRequest(instances=2, **request), machine)


def settings_of(
    made: Plan, index: int, asked: dict[str, str], own: dict[str, str], *proposals: Proposal
) -> tuple[VariableSetting, ...]:
    """As OpenMP's threads and the caches contribute to them."""
    instance = made.instances[index]
    option = layout_option(made.layout)
    count = Proposal(OMP, str(instance.threads), "one thread for each CPU", option=option)
    return choose_settings(made, instance, asked, own, [count, WANTED, *proposals])


def chosen(
    inherited: dict[str, str],
    made: Plan | None = None,
    *proposals: Proposal,
    env: dict[str, str] | None = None,
) -> dict[str, VariableSetting]:
    made, own = made or planned(), split_inherited(inherited).users_own
    return {it.name: it for it in settings_of(made, 0, env or {}, own, *proposals)}


def variables(
    inherited: dict[str, str],
    made: Plan | None = None,
    index: int = 0,
    proposals: tuple[Proposal, ...] = (),
    env: dict[str, str] | None = None,
) -> dict[str, str]:
    made, own = made or planned(), split_inherited(inherited).users_own
    settings = settings_of(made, index, env or {}, own, *proposals)
    return instance_variables(made, made.instances[index], env or {}, settings, own)


def test_threads_of_the_instance():
    assert chosen({})[OMP][:2] == (OMP, "4")
    assert chosen({})["CACHE"] == ("CACHE", "ours", "kept in one place", False, None, None, True)


WIDE = plan(LayoutRequest(), make_machine(packages=(4,), nodes=(4,)))
"""One instance on four cores, which no option asked for."""


@pytest.mark.parametrize("own", ["7", "4", "junk"])
def test_user_s_own_stays_where_no_option_asks_for_another(own: str):
    setting = chosen({OMP: own}, WIDE)[OMP]
    assert (setting.value, setting.users_own) == (own, True)
    assert "already set" in setting.reason
    assert ("not changed to 4" in setting.reason) == (own != "4")
    assert variables({OMP: own}, WIDE)[OMP] == own
    notes = inherited_notes([setting], {})
    assert notes == ((f"inherited variables are kept: {OMP}={own} (not 4)",) if own != "4" else ())


@pytest.mark.parametrize(
    ("asked", "threads", "option"),
    [
        ({"ncores": 2}, "2", "--ncores 2"),
        ({"ncores": MAX}, "4", "--ncores max"),
        ({"instances": 2}, "2", "--instances 2"),
        ({"instances": MAX, "ncores": 2}, "2", "--ncores 2"),
        ({"mode": Mode.THROUGHPUT}, "4", "--mode throughput"),
    ],
)
def test_option_replaces_what_is_inherited_and_says_so(asked, threads: str, option: str):
    made = plan(LayoutRequest(**asked), make_machine(packages=(4,), nodes=(4,)))
    setting = chosen({OMP: "7"}, made)[OMP]
    assert (setting.value, setting.users_own) == (threads, False)
    assert inherited_notes([setting], {}) == (
        f"{option} replaces the inherited {OMP}=7 (now {threads})",
    )
    assert variables({OMP: "7"}, made)[OMP] == threads
    by_env = {OMP: "3"}
    setting = chosen({OMP: "7"}, made, env=by_env)[OMP]
    assert (setting.value, inherited_notes([setting], by_env)) == ("3", ())


def test_empty_variable_is_unset_unless_the_option_env_makes_it_so():
    assert chosen({OMP: ""}, WIDE)[OMP].value == "4"
    assert inherited_notes([chosen({OMP: ""}, WIDE)[OMP]], {}) == ()
    assert variables({OMP: ""}, WIDE)[OMP] == "4"
    assert variables({OMP: "7"}, env={OMP: ""})[OMP] == ""


def test_what_an_option_replaced_comes_back_for_a_launch_within_the_launch():
    assert split_inherited(variables({OMP: "7"})).users_own[OMP] == "7"


def test_output_through_a_pipe_is_not_held_back():
    name, script = "PYTHONUNBUFFERED", [sys.executable]

    def prepared(run: RunRequest, **inherited: str) -> dict[str, VariableSetting]:
        made = prepare_environment(WIDE, ProgramRequest(script), inherited, run=run)
        return {setting.name: setting for setting in made.settings[0]}

    assert name not in prepared(RunRequest())
    piped = RunRequest(log_dir="logs")
    assert prepared(piped)[name].value == prepared(piped, **{name: ""})[name].value == "1"
    assert prepared(piped, **{name: "x"})[name].users_own


def test_instance_knows_its_place():
    made = planned()
    for index, cpus in enumerate(("0-3", "4-7")):
        got = variables({}, made, index)
        assert {name: got[VARIABLE + name] for name in ("INDEX", "COUNT", "CPUS", "NODES")} == {
            "INDEX": str(index),
            "COUNT": "2",
            "CPUS": cpus,
            "NODES": str(index),
        }


def test_asked_variables_come_over_everything():
    env = {OMP: "3", "XLAUNCH_INSTANCE_INDEX": "mine", "A": "2"}
    got = variables({OMP: "7", "A": "0"}, env=env)
    assert (got[OMP], got["XLAUNCH_INSTANCE_INDEX"], got["A"]) == ("3", "mine", "2")
    assert chosen({}, env=env)[OMP].value == "3"


def test_options_of_this_launch_are_not_inherited():
    got = variables({"XLAUNCH_OPT_NCORES": "1", "XLAUNCH_OPTICS": "kept", "HOME": "/root"})
    assert "XLAUNCH_OPT_NCORES" not in got
    assert (got["XLAUNCH_OPTICS"], got["HOME"]) == ("kept", "/root")


def test_launcher_inside_chooses_anew_what_the_outer_one_chose():
    outer = variables({})
    assert outer[OMP] == "4"
    assert not chosen(outer)[OMP].users_own
    assert not chosen(outer)["CACHE"].users_own


def test_launcher_inside_keeps_what_the_user_chose():
    for inherited in ({OMP: "4"}, {OMP: "7"}):
        assert chosen(variables(inherited, WIDE), WIDE)[OMP].users_own
    assert chosen(variables({}, env={OMP: "3"}), WIDE)[OMP].users_own
    changed_between = variables({}) | {OMP: "5"}
    assert chosen(changed_between, WIDE)[OMP][:2] == (OMP, "5")


@pytest.mark.parametrize("own", [None, "", "/mine.so", "a=b:c"])
@pytest.mark.parametrize("asked", [False, True])
def test_value_that_was_made_of_the_user_s_gives_it_back(own: str | None, asked: bool):
    given = {} if own is None else {"LIST": own}
    inherited = {"HOME": "/root"} if asked else {"HOME": "/root", **given}
    ours = Proposal("LIST", f"{own or ''}:/ours.so", "made of both", merged=True)
    outer = variables(inherited, proposals=(ours,), env=given if asked else None)
    assert outer["LIST"] == ours.value
    split = split_inherited(outer)
    assert split.users_own.get("LIST") == own
    assert split.chosen == {OMP: "4", "CACHE": "ours", "LIST": ours.value}
    assert SET_VARIABLES not in split.users_own
    changed = split_inherited(outer | {"LIST": f"/new.so:{ours.value}"})
    assert changed.users_own["LIST"] == f"/new.so:{ours.value}"
    assert "LIST" not in changed.chosen


@pytest.mark.parametrize("own", ["/mine.so" * 9000, "%;|" * 25_000, "a\udcff" * 2000])
def test_long_value_is_not_listed_again(own: str):
    """Linux limits a variable to 128 KiB, and each of them would be that long."""
    ours = Proposal("LIST", f"/first.so:{own}:/ours.so", "made of both", merged=True)
    outer = variables({"LIST": own}, proposals=(ours,))
    assert outer["LIST"] == ours.value
    assert len(outer[SET_VARIABLES]) < 1000
    split = split_inherited(outer)
    assert split.users_own["LIST"] == own
    assert split.chosen["LIST"] == ours.value
    changed = split_inherited(outer | {"LIST": f"{ours.value}:/new.so"})
    assert changed.users_own["LIST"] == f"{ours.value}:/new.so"
    assert without_names(outer[SET_VARIABLES], ("LIST", OMP)) == "CACHE=ours"


@pytest.mark.parametrize("own", ["%@0+3", "%#", "a;b", "a|b", "100%", "%3B", "a=b", "|;%", "a\nb"])
def test_list_of_what_was_set_holds_any_value(own: str):
    ours = Proposal("LIST", f"{own}:/ours.so", "made of both", merged=True)
    outer = variables({"LIST": own}, proposals=(ours,))
    assert split_inherited(outer).users_own["LIST"] == own
    assert split_inherited(outer).chosen.keys() == {OMP, "CACHE", "LIST"}
    assert outer[SET_VARIABLES].replace("\n", "").isprintable()
    assert without_names(outer[SET_VARIABLES], ("LIST", OMP)) == "CACHE=ours"


@pytest.mark.parametrize(
    ("text", "share"),
    [("8589934592", 8 << 30), ("0", 0), ("", None), ("-1", None), ("1e9", None), ("9" * 99, None)],
)
def test_share_of_the_memory_is_that_of_the_instance_around(text: str, share: int | None):
    assert split_inherited({SET_VARIABLES: "", MEMORY: text}).memory_share_bytes == share
    assert split_inherited({MEMORY: text}).memory_share_bytes is None


@given(st.text(alphabet="=;|%:,A1 ", max_size=12) | st.text(max_size=8))
def test_damaged_list_of_what_is_ours_is_the_user_s_problem_only(text: str):
    """Whatever it says, a choice is made, and a value of the user's is lost only if it is named."""
    setting = chosen({SET_VARIABLES: text, OMP: "7"}, WIDE)[OMP]
    assert setting.users_own == (f"{OMP}=7" not in text.split(";"))
