# SPDX-License-Identifier: Apache-2.0
"""The state table as a table: every row leads somewhere sensible, and none is missing."""

from __future__ import annotations

import signal

import pytest

from xlaunch.supervision.states import TABLE, Event, State, Target, act

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


STARTS_AGAIN = (Event.INSTANCE_RESTARTS, Event.ALL_WAIT, Event.RESTART_DUE)


@pytest.mark.parametrize("event", STARTS_AGAIN)
@pytest.mark.parametrize("state", [State.ENDING, State.KILLING])
def test_nothing_is_started_anew_once_the_run_ends(state, event):
    assert (state, event) not in TABLE


@pytest.mark.parametrize(
    "event", [Event.INTERRUPT, Event.TERMINATE, Event.HANGUP, Event.QUIT, Event.TIMEOUT]
)
def test_what_would_end_instances_ends_the_wait_for_them(event):
    action = act(State.WAITING, event)
    assert (action.target, action.next) == (Target.NOBODY, State.ENDING)


@pytest.mark.parametrize("event", list(Event))
def test_while_nobody_runs_nobody_is_signalled(event):
    if event is not Event.KEEPER_GONE:
        assert act(State.WAITING, event).target is Target.NOBODY


def test_suspended_wait_is_suspended_and_goes_on():
    action = act(State.WAITING, Event.SUSPEND)
    assert (action.next, action.stop_keeper) == (State.STOPPED, True)
    assert act(State.STOPPED, Event.RESTART_DUE).next is State.STOPPED
    assert act(State.STOPPED, Event.RESUME).next is State.RUNNING
    assert act(State.RUNNING, Event.ALL_WAIT).next is State.WAITING
    assert act(State.WAITING, Event.RESTART_DUE).next is State.RUNNING


@pytest.mark.parametrize("event", STARTS_AGAIN)
@pytest.mark.parametrize("state", list(State))
def test_restarts_signal_nobody(state, event):
    assert act(state, event).signal is None


def test_failure_after_a_hangup_is_no_reason_to_start_anew():
    assert (State.SIGNALLED, Event.INSTANCE_RESTARTS) not in TABLE
    assert act(State.SIGNALLED, Event.ALL_WAIT).next is State.ENDING


@pytest.mark.parametrize("state", list(State))
def test_every_signal_has_a_row_until_the_kill(state):
    if state is State.KILLING:
        return
    without = {event for event in Event if (state, event) not in TABLE}
    # What cannot happen there: a suspended job gets no Ctrl-C, an ending one no new clock.
    expected = {
        State.RUNNING: {Event.GRACE_OVER},
        State.WAITING: {
            Event.SECOND_CTRL_C, Event.GRACE_OVER, Event.ALL_WAIT, Event.INSTANCE_SUSPENDED,
            Event.INSTANCE_DONE, Event.INSTANCE_FAILED, Event.INSTANCE_RESTARTS,
        },
        State.STOPPED: {
            Event.SUSPEND, Event.INSTANCE_SUSPENDED, Event.SECOND_CTRL_C, Event.GRACE_OVER,
            Event.ALL_WAIT, Event.RESTART_DUE,
        },
        State.SIGNALLED: {Event.GRACE_OVER, Event.INSTANCE_RESTARTS},
        State.ENDING: {
            Event.SUSPEND, Event.INSTANCE_SUSPENDED, Event.TIMEOUT,
            Event.INSTANCE_RESTARTS, Event.ALL_WAIT, Event.RESTART_DUE,
        },
    }  # fmt: skip
    assert without == expected[state]
