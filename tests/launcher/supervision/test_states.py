# SPDX-License-Identifier: Apache-2.0
"""The state table: every row leads somewhere sensible, and none is missing."""

from __future__ import annotations

import signal

from xlaunch.supervision.states import (
    EVENT_OF_SIGNAL,
    TABLE,
    Action,
    Event,
    SignalTarget,
    State,
    act,
)

LIVE = [state for state in State if state is not State.KILLING]


def test_losing_the_keeper_kills_everything_from_every_state():
    kill = Action(SignalTarget.EVERYTHING, signal.SIGKILL, State.KILLING)
    assert {act(state, Event.KEEPER_GONE) for state in LIVE} == {kill}


def test_killing_is_final():
    nothing = Action(SignalTarget.NO_PROCESS, None, State.KILLING)
    assert {act(State.KILLING, event) for event in Event} == {nothing}


def test_second_request_to_end_does_not_wait():
    for event in (Event.INTERRUPT, Event.SECOND_CTRL_C, Event.QUIT):
        assert act(State.ENDING, event).target is SignalTarget.EVERYTHING, event


def test_every_row_is_sound():
    for (state, event), action in TABLE.items():
        row = (state, event, action)
        ends = action.next is State.ENDING and state is not State.ENDING
        assert action.start_grace == ends, row
        assert (action.target is SignalTarget.EVERYTHING) == (action.signal == signal.SIGKILL), row
        if event is not Event.OTHER_SIGNAL:
            assert (action.target is SignalTarget.NO_PROCESS) == (action.signal is None), row
        if state is State.STOPPED and action.next in (State.ENDING, State.SIGNALLED):
            assert action.continue_groups, row  # what must act is not left suspended
        if action.signal is not None and event in EVENT_OF_SIGNAL.values() and not ends:
            # Passed on as it came, or for good.
            assert action.signal in (signal.SIGKILL, signal.Signals[event.value]), row
        assert action.stop_keeper == (action.next is State.STOPPED is not state), row


def test_what_a_worker_does_not_expect_goes_to_the_one_process():
    for state in (State.RUNNING, State.STOPPED, State.SIGNALLED, State.ENDING):
        for event in (Event.USER_1, Event.USER_2, Event.TERMINATE):
            assert act(state, event).target is SignalTarget.PROCESSES, (state, event)
        passed_on = Action(SignalTarget.PROCESSES, signal.SIGALRM, state)
        assert act(state, Event.OTHER_SIGNAL, signal.SIGALRM) == passed_on


def test_what_a_terminal_sends_goes_to_the_group():
    for event in (Event.INTERRUPT, Event.HANGUP, Event.QUIT, Event.WINDOW, Event.SUSPEND):
        assert act(State.RUNNING, event).target is SignalTarget.GROUPS, event


def test_what_would_end_instances_ends_the_wait_for_them():
    for event in (Event.INTERRUPT, Event.TERMINATE, Event.HANGUP, Event.QUIT, Event.TIMEOUT):
        action = act(State.WAITING, event)
        assert (action.target, action.next) == (SignalTarget.NO_PROCESS, State.ENDING), event


def test_while_nobody_runs_nobody_is_signalled():
    targets = {act(State.WAITING, event).target for event in Event if event != Event.KEEPER_GONE}
    assert targets == {SignalTarget.NO_PROCESS}


def test_suspended_wait_is_suspended_and_goes_on():
    action = act(State.WAITING, Event.SUSPEND)
    assert (action.next, action.stop_keeper) == (State.STOPPED, True)
    assert act(State.STOPPED, Event.RESTART_DUE).next is State.STOPPED
    assert act(State.STOPPED, Event.RESUME).next is State.RUNNING
    assert act(State.RUNNING, Event.ALL_WAIT).next is State.WAITING
    assert act(State.WAITING, Event.RESTART_DUE).next is State.RUNNING


def test_restarts_signal_nobody_and_end_with_the_run():
    for event in (
        *(Event.INSTANCE_RESTARTS, Event.INSTANCE_REPLACED),
        *(Event.ALL_WAIT, Event.RESTART_DUE),
    ):
        assert {act(state, event).signal for state in State} == {None}, event
        assert (State.ENDING, event) not in TABLE
        assert (State.KILLING, event) not in TABLE


def test_failure_after_a_hangup_is_no_reason_to_restart():
    assert (State.SIGNALLED, Event.INSTANCE_RESTARTS) not in TABLE
    assert act(State.SIGNALLED, Event.ALL_WAIT).next is State.ENDING
    assert act(State.SIGNALLED, Event.INSTANCE_REPLACED).next is State.SIGNALLED


def test_every_event_that_can_happen_has_a_row():
    without = {state: {event for event in Event if (state, event) not in TABLE} for state in LIVE}
    # What cannot happen there, or has no effect: a suspended job gets no Ctrl-C.
    assert without == {
        State.RUNNING: {Event.GRACE_OVER},
        State.WAITING: {
            Event.USER_1, Event.USER_2, Event.WINDOW, Event.RESUME, Event.OTHER_SIGNAL,
            Event.SECOND_CTRL_C, Event.GRACE_OVER, Event.ALL_WAIT, Event.INSTANCE_SUSPENDED, Event.INSTANCE_DONE,
            Event.INSTANCE_FAILED, Event.INSTANCE_RESTARTS, Event.INSTANCE_REPLACED,
        },
        State.STOPPED: {
            Event.SUSPEND, Event.INSTANCE_SUSPENDED, Event.SECOND_CTRL_C, Event.GRACE_OVER,
            Event.ALL_WAIT, Event.RESTART_DUE,
        },
        State.SIGNALLED: {Event.GRACE_OVER, Event.INSTANCE_RESTARTS},
        State.ENDING: {
            Event.SUSPEND, Event.INSTANCE_SUSPENDED, Event.TIMEOUT, Event.INSTANCE_DONE,
            Event.INSTANCE_FAILED, Event.INSTANCE_RESTARTS, Event.INSTANCE_REPLACED, Event.ALL_WAIT,
            Event.RESTART_DUE,
        },
    }  # fmt: skip
