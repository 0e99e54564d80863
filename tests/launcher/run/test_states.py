# SPDX-License-Identifier: Apache-2.0
"""The state table as a table: every row leads somewhere sensible, and none is missing."""

from __future__ import annotations

import signal

import pytest

from xlaunch.run.states import TABLE, Event, State, Target, act

ROWS = sorted(TABLE.items(), key=str)


@pytest.mark.parametrize("state", [state for state in State if state is not State.KILLING])
def test_losing_the_keeper_kills_everything_from_every_state(state):
    action = act(state, Event.KEEPER_GONE)
    assert (action.target, action.signal, action.next) == (
        Target.EVERYTHING,
        signal.SIGKILL,
        State.KILLING,
    )


@pytest.mark.parametrize("event", list(Event))
def test_killing_is_final(event):
    assert act(State.KILLING, event).next is State.KILLING
    assert act(State.KILLING, event).target is Target.NOBODY


@pytest.mark.parametrize("event", [Event.INTERRUPT, Event.SECOND_CTRL_C, Event.QUIT])
def test_a_second_request_to_end_does_not_wait(event):
    assert act(State.ENDING, event).target is Target.EVERYTHING


@pytest.mark.parametrize(("key", "action"), ROWS)
def test_ending_has_a_clock(key, action):
    state, _ = key
    if action.next is State.ENDING and state is not State.ENDING:
        assert action.start_grace
    else:
        assert not action.start_grace


@pytest.mark.parametrize(("key", "action"), ROWS)
def test_sigkill_is_for_everything_and_nothing_else_is(key, action):
    assert (action.target is Target.EVERYTHING) == (action.signal == signal.SIGKILL)
    assert (action.target is Target.NOBODY) == (action.signal is None)


@pytest.mark.parametrize(("key", "action"), ROWS)
def test_what_must_act_is_not_left_suspended(key, action):
    state, event = key
    if state is State.STOPPED and action.next in (State.ENDING, State.SIGNALLED):
        assert action.continue_groups, (state, event)


@pytest.mark.parametrize("event", [Event.USER_1, Event.USER_2, Event.TERMINATE])
@pytest.mark.parametrize("state", [State.RUNNING, State.STOPPED, State.SIGNALLED, State.ENDING])
def test_what_a_worker_does_not_expect_goes_to_the_one_process(state, event):
    assert act(state, event).target is Target.PROCESSES


@pytest.mark.parametrize("event", [Event.INTERRUPT, Event.HANGUP, Event.WINDOW, Event.SUSPEND])
def test_what_a_terminal_sends_goes_to_the_group(event):
    assert act(State.RUNNING, event).target is Target.GROUPS


@pytest.mark.parametrize("state", list(State))
def test_every_signal_has_a_row_until_the_kill(state):
    if state is State.KILLING:
        return
    without = {event for event in Event if (state, event) not in TABLE}
    # What cannot happen there: a suspended job gets no Ctrl-C, an ending one no new clock.
    expected = {
        State.RUNNING: {Event.GRACE_OVER},
        State.STOPPED: {
            Event.SUSPEND, Event.INSTANCE_SUSPENDED, Event.SECOND_CTRL_C, Event.GRACE_OVER,
        },
        State.SIGNALLED: {Event.GRACE_OVER},
        State.ENDING: {Event.SUSPEND, Event.INSTANCE_SUSPENDED, Event.TIMEOUT},
    }  # fmt: skip
    assert without == expected[state]
