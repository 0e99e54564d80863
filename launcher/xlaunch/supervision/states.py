# SPDX-License-Identifier: Apache-2.0
"""The state table of a supervised run: state x event -> who is signalled, and the next state.

It is pure: nothing here touches a process. The supervisor does what the table says; tests check its
rows, and most of them again with real processes. docs/supervision.md explains it in prose.
"""

from __future__ import annotations

import enum
import signal
from typing import NamedTuple


class State(enum.Enum):
    RUNNING = "running"
    WAITING = "waiting"
    """No instance runs, and some wait for their restart (`--on-failure restart`)."""
    STOPPED = "stopped"
    """Suspended by SIGTSTP, until SIGCONT."""
    SIGNALLED = "signalled"
    """SIGHUP or SIGQUIT went to the instances, which decide whether to end."""
    ENDING = "ending"
    """Every instance was asked to end; the grace period runs."""
    KILLING = "killing"
    """SIGKILL went to every process; the last ones are being reaped."""


class Event(enum.Enum):
    INTERRUPT = "SIGINT"
    TERMINATE = "SIGTERM"
    HANGUP = "SIGHUP"
    QUIT = "SIGQUIT"
    USER_1 = "SIGUSR1"
    USER_2 = "SIGUSR2"
    WINDOW = "SIGWINCH"
    SUSPEND = "SIGTSTP"
    RESUME = "SIGCONT"
    OTHER_SIGNAL = "any other signal"
    """The signals above, when they were sent to the launcher's own PID."""
    SECOND_CTRL_C = "second Ctrl-C in the terminal of the instance"
    """The instance has the terminal, so it received both itself; it still runs."""
    INSTANCE_SUSPENDED = "instance suspended in its terminal"
    INSTANCE_DONE = "instance ended with 0"
    INSTANCE_FAILED = "instance failed"
    INSTANCE_RESTARTS = "instance failed and will be restarted"
    INSTANCE_REPLACED = "instance was ended to be started again"
    ALL_WAIT = "no instance runs any more, some wait for their restart"
    RESTART_DUE = "the delay of a restart is over"
    TIMEOUT = "--timeout is over"
    GRACE_OVER = "--grace is over"
    KEEPER_GONE = "keeper gone"


EVENT_OF_SIGNAL: dict[int, Event] = {
    signal.Signals[event.value]: event
    for event in Event
    if event.value in signal.Signals.__members__
}


class SignalTarget(enum.Enum):
    NO_PROCESS = "no process"
    PROCESSES = "the process of each instance"
    GROUPS = "the process group of each instance"
    """The terminal driver sends its signals in this way."""
    EVERYTHING = "every descendant, to the last"


class Action(NamedTuple):
    """What the supervisor does on an event, in this order."""

    target: SignalTarget
    signal: int | None
    next: State
    start_grace: bool = False
    """Start the grace period, unless it is running."""
    continue_groups: bool = False
    """SIGCONT after the signal, so that a suspended program can act on it."""
    stop_keeper: bool = False
    """Stop the user's process too, so that the shell sees a suspended job."""


_NO_PROCESS, _GROUPS, _PROCESSES = (
    SignalTarget.NO_PROCESS,
    SignalTarget.GROUPS,
    SignalTarget.PROCESSES,
)
_TERMINATE = Action(
    _PROCESSES, signal.SIGTERM, State.ENDING, start_grace=True, continue_groups=True
)
_INTERRUPT = _TERMINATE._replace(target=_GROUPS, signal=signal.SIGINT)
_GIVE_UP = Action(_NO_PROCESS, None, State.ENDING, start_grace=True)
_KILL = Action(SignalTarget.EVERYTHING, signal.SIGKILL, State.KILLING)
S = State
E = Event

TABLE: dict[tuple[State, Event], Action] = {
    # What the terminal sends goes to whole process groups, as the terminal would send it. All others
    # go to the one process: a worker that a program has started does not expect them.
    (S.RUNNING, E.HANGUP): Action(_GROUPS, signal.SIGHUP, S.SIGNALLED),
    (S.RUNNING, E.QUIT): Action(_GROUPS, signal.SIGQUIT, S.SIGNALLED),
    (S.RUNNING, E.SUSPEND): Action(_GROUPS, signal.SIGTSTP, S.STOPPED, stop_keeper=True),
    (S.RUNNING, E.INSTANCE_SUSPENDED): Action(_NO_PROCESS, None, S.STOPPED, stop_keeper=True),
    (S.RUNNING, E.RESUME): Action(_GROUPS, signal.SIGCONT, S.RUNNING),
    (S.RUNNING, E.SECOND_CTRL_C): _KILL,
    (S.RUNNING, E.INSTANCE_DONE): Action(_NO_PROCESS, None, S.RUNNING),
    # Under --on-failure continue a failure is handled as INSTANCE_DONE is.
    (S.RUNNING, E.INSTANCE_FAILED): _TERMINATE,
    (S.RUNNING, E.INSTANCE_RESTARTS): Action(_NO_PROCESS, None, S.RUNNING),
    (S.RUNNING, E.INSTANCE_REPLACED): Action(_NO_PROCESS, None, S.RUNNING),
    (S.RUNNING, E.ALL_WAIT): Action(_NO_PROCESS, None, S.WAITING),
    (S.RUNNING, E.RESTART_DUE): Action(_NO_PROCESS, None, S.RUNNING),
    # No instance runs. What would have ended the instances ends the run: there are no restarts
    # from ENDING on.
    (S.WAITING, E.INTERRUPT): _GIVE_UP,
    (S.WAITING, E.TERMINATE): _GIVE_UP,
    (S.WAITING, E.HANGUP): _GIVE_UP,
    (S.WAITING, E.QUIT): _GIVE_UP,
    (S.WAITING, E.TIMEOUT): _GIVE_UP,
    (S.WAITING, E.SUSPEND): Action(_NO_PROCESS, None, S.STOPPED, stop_keeper=True),
    (S.WAITING, E.RESTART_DUE): Action(_NO_PROCESS, None, S.RUNNING),
    # There are no restarts while it is suspended: one that is due waits for SIGCONT.
    (S.STOPPED, E.HANGUP): Action(_GROUPS, signal.SIGHUP, S.SIGNALLED, continue_groups=True),
    (S.STOPPED, E.QUIT): Action(_GROUPS, signal.SIGQUIT, S.SIGNALLED, continue_groups=True),
    (S.STOPPED, E.RESUME): Action(_GROUPS, signal.SIGCONT, S.RUNNING),
    (S.STOPPED, E.INSTANCE_DONE): Action(_NO_PROCESS, None, S.STOPPED),
    (S.STOPPED, E.INSTANCE_FAILED): _TERMINATE,
    (S.STOPPED, E.INSTANCE_RESTARTS): Action(_NO_PROCESS, None, S.STOPPED),
    (S.STOPPED, E.INSTANCE_REPLACED): Action(_NO_PROCESS, None, S.STOPPED),
    # A program may take SIGHUP for "reload" and SIGQUIT for "print your stacks". When one of the
    # instances ends, the others have to end as well; they got the signal already. An instance that
    # fails now may have failed because of the signal, and is not restarted; one that the supervisor
    # itself has ended is.
    (S.SIGNALLED, E.HANGUP): Action(_GROUPS, signal.SIGHUP, S.SIGNALLED),
    (S.SIGNALLED, E.QUIT): Action(_GROUPS, signal.SIGQUIT, S.SIGNALLED),
    (S.SIGNALLED, E.SUSPEND): Action(_GROUPS, signal.SIGTSTP, S.STOPPED, stop_keeper=True),
    (S.SIGNALLED, E.INSTANCE_SUSPENDED): Action(_NO_PROCESS, None, S.STOPPED, stop_keeper=True),
    (S.SIGNALLED, E.RESUME): Action(_GROUPS, signal.SIGCONT, S.SIGNALLED),
    (S.SIGNALLED, E.SECOND_CTRL_C): _KILL,
    (S.SIGNALLED, E.INSTANCE_DONE): _GIVE_UP,
    (S.SIGNALLED, E.INSTANCE_FAILED): _GIVE_UP,
    (S.SIGNALLED, E.INSTANCE_REPLACED): Action(_NO_PROCESS, None, S.SIGNALLED),
    (S.SIGNALLED, E.ALL_WAIT): _GIVE_UP,
    (S.SIGNALLED, E.RESTART_DUE): Action(_NO_PROCESS, None, S.SIGNALLED),
    # A second Ctrl-C kills at once; any other signal is passed on, and the grace period goes on.
    (S.ENDING, E.INTERRUPT): _KILL,
    (S.ENDING, E.SECOND_CTRL_C): _KILL,
    (S.ENDING, E.QUIT): _KILL,
    (S.ENDING, E.GRACE_OVER): _KILL,
    (S.ENDING, E.TERMINATE): Action(_PROCESSES, signal.SIGTERM, S.ENDING),
    (S.ENDING, E.HANGUP): Action(_GROUPS, signal.SIGHUP, S.ENDING),
    (S.ENDING, E.RESUME): Action(_GROUPS, signal.SIGCONT, S.ENDING),
}

for _state in (S.RUNNING, S.STOPPED, S.SIGNALLED):
    TABLE[_state, E.INTERRUPT] = _INTERRUPT
    TABLE[_state, E.TERMINATE] = TABLE[_state, E.TIMEOUT] = _TERMINATE

for _state in (S.RUNNING, S.STOPPED, S.SIGNALLED, S.ENDING):
    TABLE[_state, E.USER_1] = Action(_PROCESSES, signal.SIGUSR1, _state)
    TABLE[_state, E.USER_2] = Action(_PROCESSES, signal.SIGUSR2, _state)
    # The signal that came: see `act`.
    TABLE[_state, E.OTHER_SIGNAL] = Action(_PROCESSES, None, _state)
    TABLE[_state, E.WINDOW] = Action(_GROUPS, signal.SIGWINCH, _state)

for _state in (S.RUNNING, S.WAITING, S.STOPPED, S.SIGNALLED, S.ENDING):
    TABLE[_state, E.KEEPER_GONE] = _KILL


def act(state: State, event: Event, number: int | None = None) -> Action:
    """What to do on `event`: nothing without a row. `number`: the signal of `Event.OTHER_SIGNAL`."""
    action = TABLE.get((state, event), Action(SignalTarget.NO_PROCESS, None, state))
    is_other = event is Event.OTHER_SIGNAL and action.target is not SignalTarget.NO_PROCESS
    return action._replace(signal=number) if is_other else action
