# SPDX-License-Identifier: Apache-2.0
"""The state table of a supervised run: state x event -> who is signalled, and the next state.

Pure: nothing here touches a process. The supervisor does what the table says; the tests walk it
row by row, and once more with real processes. docs/supervision.md explains it in prose.
"""

from __future__ import annotations

import enum
import signal
from typing import NamedTuple


class State(enum.Enum):
    RUNNING = "running"
    WAITING = "waiting"
    """No instance runs, and some are to be started anew (`--on-failure restart`)."""
    STOPPED = "stopped"
    """Suspended by SIGTSTP, until SIGCONT."""
    SIGNALLED = "signalled"
    """SIGHUP or SIGQUIT went to the instances: whether it ends them is theirs to say."""
    ENDING = "ending"
    """Everything was asked to end; the grace period runs."""
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
    """The signals above reached the launcher's own PID."""
    SECOND_CTRL_C = "second Ctrl-C in the terminal of the instance"
    """The instance owns the terminal, got both itself, and is still there."""
    INSTANCE_SUSPENDED = "instance suspended in its terminal"
    INSTANCE_DONE = "instance ended with 0"
    INSTANCE_FAILED = "instance failed"
    INSTANCE_RESTARTS = "instance failed and is to be started anew"
    ALL_WAIT = "no instance runs any more, some are to be started anew"
    RESTART_DUE = "the wait of an instance that is to be started anew is over"
    TIMEOUT = "--timeout is over"
    GRACE_OVER = "--grace is over"
    KEEPER_GONE = "keeper gone"


EVENT_OF_SIGNAL = {
    signal.SIGINT: Event.INTERRUPT,
    signal.SIGTERM: Event.TERMINATE,
    signal.SIGHUP: Event.HANGUP,
    signal.SIGQUIT: Event.QUIT,
    signal.SIGUSR1: Event.USER_1,
    signal.SIGUSR2: Event.USER_2,
    signal.SIGWINCH: Event.WINDOW,
    signal.SIGTSTP: Event.SUSPEND,
    signal.SIGCONT: Event.RESUME,
}

SIGNAL_OF_EVENT = {event: number for number, event in EVENT_OF_SIGNAL.items()}


class Target(enum.Enum):
    NOBODY = "nobody"
    PROCESSES = "the process of each instance"
    GROUPS = "the process group of each instance"
    """As the terminal driver does it."""
    EVERYTHING = "every descendant, to the last"


class Action(NamedTuple):
    """What the supervisor does on an event, in this order."""

    target: Target
    signal: signal.Signals | None
    next: State
    start_grace: bool = False
    """Start the grace period, unless it is running."""
    continue_groups: bool = False
    """SIGCONT after the signal, so that a suspended program can act on it."""
    stop_keeper: bool = False
    """Stop the user's process too, so that the shell sees a suspended job."""


def _tell(target: Target, number: signal.Signals, then: State) -> Action:
    return Action(target, number, then)


def _end(number: signal.Signals, target: Target = Target.PROCESSES) -> Action:
    return Action(target, number, State.ENDING, start_grace=True, continue_groups=True)


_NOTHING = Target.NOBODY
_GIVE_UP = Action(Target.NOBODY, None, State.ENDING, start_grace=True)
_KILL = Action(Target.EVERYTHING, signal.SIGKILL, State.KILLING)
_GROUPS, _PROCESSES = Target.GROUPS, Target.PROCESSES
S = State
E = Event

TABLE: dict[tuple[State, Event], Action] = {
    # What the terminal sends goes to whole process groups, as the terminal would send it. SIGTERM
    # and SIGUSR1/2 go to the one process: a worker that a program has started does not expect them.
    (S.RUNNING, E.INTERRUPT): _end(signal.SIGINT, _GROUPS),
    (S.RUNNING, E.TERMINATE): _end(signal.SIGTERM),
    (S.RUNNING, E.HANGUP): _tell(_GROUPS, signal.SIGHUP, S.SIGNALLED),
    (S.RUNNING, E.QUIT): _tell(_GROUPS, signal.SIGQUIT, S.SIGNALLED),
    (S.RUNNING, E.USER_1): _tell(_PROCESSES, signal.SIGUSR1, S.RUNNING),
    (S.RUNNING, E.USER_2): _tell(_PROCESSES, signal.SIGUSR2, S.RUNNING),
    (S.RUNNING, E.WINDOW): _tell(_GROUPS, signal.SIGWINCH, S.RUNNING),
    (S.RUNNING, E.SUSPEND): Action(_GROUPS, signal.SIGTSTP, S.STOPPED, stop_keeper=True),
    (S.RUNNING, E.INSTANCE_SUSPENDED): Action(_NOTHING, None, S.STOPPED, stop_keeper=True),
    (S.RUNNING, E.RESUME): _tell(_GROUPS, signal.SIGCONT, S.RUNNING),
    (S.RUNNING, E.SECOND_CTRL_C): _KILL,
    (S.RUNNING, E.INSTANCE_DONE): Action(_NOTHING, None, S.RUNNING),
    # Under --on-failure continue a failure is handled as INSTANCE_DONE is.
    (S.RUNNING, E.INSTANCE_FAILED): _end(signal.SIGTERM),
    (S.RUNNING, E.TIMEOUT): _end(signal.SIGTERM),
    (S.RUNNING, E.INSTANCE_RESTARTS): Action(_NOTHING, None, S.RUNNING),
    (S.RUNNING, E.ALL_WAIT): Action(_NOTHING, None, S.WAITING),
    (S.RUNNING, E.RESTART_DUE): Action(_NOTHING, None, S.RUNNING),
    # Nobody is there to be signalled. What would have ended the instances ends the run: nothing is
    # started anew from ENDING on.
    (S.WAITING, E.INTERRUPT): _GIVE_UP,
    (S.WAITING, E.TERMINATE): _GIVE_UP,
    (S.WAITING, E.HANGUP): _GIVE_UP,
    (S.WAITING, E.QUIT): _GIVE_UP,
    (S.WAITING, E.USER_1): Action(_NOTHING, None, S.WAITING),
    (S.WAITING, E.USER_2): Action(_NOTHING, None, S.WAITING),
    (S.WAITING, E.WINDOW): Action(_NOTHING, None, S.WAITING),
    (S.WAITING, E.SUSPEND): Action(_NOTHING, None, S.STOPPED, stop_keeper=True),
    (S.WAITING, E.RESUME): Action(_NOTHING, None, S.WAITING),
    (S.WAITING, E.RESTART_DUE): Action(_NOTHING, None, S.RUNNING),
    (S.WAITING, E.TIMEOUT): _GIVE_UP,
    # While it is suspended nothing is started: a restart that is due waits for SIGCONT.
    (S.STOPPED, E.INTERRUPT): _end(signal.SIGINT, _GROUPS),
    (S.STOPPED, E.TERMINATE): _end(signal.SIGTERM),
    (S.STOPPED, E.HANGUP): Action(_GROUPS, signal.SIGHUP, S.SIGNALLED, continue_groups=True),
    (S.STOPPED, E.QUIT): Action(_GROUPS, signal.SIGQUIT, S.SIGNALLED, continue_groups=True),
    (S.STOPPED, E.USER_1): _tell(_PROCESSES, signal.SIGUSR1, S.STOPPED),
    (S.STOPPED, E.USER_2): _tell(_PROCESSES, signal.SIGUSR2, S.STOPPED),
    (S.STOPPED, E.WINDOW): _tell(_GROUPS, signal.SIGWINCH, S.STOPPED),
    (S.STOPPED, E.RESUME): _tell(_GROUPS, signal.SIGCONT, S.RUNNING),
    (S.STOPPED, E.INSTANCE_DONE): Action(_NOTHING, None, S.STOPPED),
    (S.STOPPED, E.INSTANCE_FAILED): _end(signal.SIGTERM),
    (S.STOPPED, E.INSTANCE_RESTARTS): Action(_NOTHING, None, S.STOPPED),
    (S.STOPPED, E.TIMEOUT): _end(signal.SIGTERM),
    # A program may take SIGHUP for "reload" and SIGQUIT for "print your stacks". Only when one of
    # the instances ends of it are the others held to end as well; they were told already. An
    # instance that fails now was told to, and is not started anew.
    (S.SIGNALLED, E.INTERRUPT): _end(signal.SIGINT, _GROUPS),
    (S.SIGNALLED, E.TERMINATE): _end(signal.SIGTERM),
    (S.SIGNALLED, E.HANGUP): _tell(_GROUPS, signal.SIGHUP, S.SIGNALLED),
    (S.SIGNALLED, E.QUIT): _tell(_GROUPS, signal.SIGQUIT, S.SIGNALLED),
    (S.SIGNALLED, E.USER_1): _tell(_PROCESSES, signal.SIGUSR1, S.SIGNALLED),
    (S.SIGNALLED, E.USER_2): _tell(_PROCESSES, signal.SIGUSR2, S.SIGNALLED),
    (S.SIGNALLED, E.WINDOW): _tell(_GROUPS, signal.SIGWINCH, S.SIGNALLED),
    (S.SIGNALLED, E.SUSPEND): Action(_GROUPS, signal.SIGTSTP, S.STOPPED, stop_keeper=True),
    (S.SIGNALLED, E.INSTANCE_SUSPENDED): Action(_NOTHING, None, S.STOPPED, stop_keeper=True),
    (S.SIGNALLED, E.RESUME): _tell(_GROUPS, signal.SIGCONT, S.SIGNALLED),
    (S.SIGNALLED, E.SECOND_CTRL_C): _KILL,
    (S.SIGNALLED, E.INSTANCE_DONE): Action(_NOTHING, None, S.ENDING, start_grace=True),
    (S.SIGNALLED, E.INSTANCE_FAILED): Action(_NOTHING, None, S.ENDING, start_grace=True),
    (S.SIGNALLED, E.ALL_WAIT): _GIVE_UP,
    (S.SIGNALLED, E.RESTART_DUE): Action(_NOTHING, None, S.SIGNALLED),
    (S.SIGNALLED, E.TIMEOUT): _end(signal.SIGTERM),
    # A second Ctrl-C does not wait; any other signal is passed on and the clock goes on.
    (S.ENDING, E.INTERRUPT): _KILL,
    (S.ENDING, E.SECOND_CTRL_C): _KILL,
    (S.ENDING, E.TERMINATE): _tell(_PROCESSES, signal.SIGTERM, S.ENDING),
    (S.ENDING, E.HANGUP): _tell(_GROUPS, signal.SIGHUP, S.ENDING),
    (S.ENDING, E.QUIT): _KILL,
    (S.ENDING, E.USER_1): _tell(_PROCESSES, signal.SIGUSR1, S.ENDING),
    (S.ENDING, E.USER_2): _tell(_PROCESSES, signal.SIGUSR2, S.ENDING),
    (S.ENDING, E.WINDOW): _tell(_GROUPS, signal.SIGWINCH, S.ENDING),
    (S.ENDING, E.RESUME): _tell(_GROUPS, signal.SIGCONT, S.ENDING),
    (S.ENDING, E.INSTANCE_DONE): Action(_NOTHING, None, S.ENDING),
    (S.ENDING, E.INSTANCE_FAILED): Action(_NOTHING, None, S.ENDING),
    (S.ENDING, E.GRACE_OVER): _KILL,
} | {(state, E.KEEPER_GONE): _KILL for state in State if state is not S.KILLING}


def act(state: State, event: Event) -> Action:
    """What to do on `event` in `state`. An event without a row changes nothing."""
    return TABLE.get((state, event), Action(Target.NOBODY, None, state))
