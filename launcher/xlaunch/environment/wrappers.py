# SPDX-License-Identifier: Apache-2.0
"""Commands that execute the command in their own arguments, in place and with their environment: nice, timeout."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Wrapper(NamedTuple):
    """How the command line of a wrapper continues up to the command that it executes."""

    short: str = ""
    """Its options, as `getopt.getopt` takes them."""
    long: str = ""
    operands: int = 0
    """The number of words between its options and the command."""


WRAPPERS = {
    "chrt": Wrapper(
        "abdfioprRvT:P:D:", "all-tasks batch deadline fifo idle other rr ext verbose", 1
    ),
    # With a directory of its own (-C) or no variables (-i), names may mean other files.
    "env": Wrapper("u:v", "unset= debug"),
    "ionice": Wrapper("c:n:t", "class= classdata= ignore"),
    "nice": Wrapper("0123456789n:", "adjustment="),
    "nohup": Wrapper(),
    "numactl": Wrapper(
        "abC:i:lm:N:p:P:w:",
        "all balancing cpunodebind= interleave= localalloc membind= physcpubind= preferred= "
        "preferred-many= weighted-interleave=",
    ),
    "setsid": Wrapper("cfw", "ctty fork wait"),
    "stdbuf": Wrapper("i:o:e:", "input= output= error="),
    "taskset": Wrapper("ac", "all-tasks cpu-list", 1),
    "time": Wrapper("af:o:pqv", "append format= output= portability quiet verbose"),
    "timeout": Wrapper("fk:ps:v", "foreground kill-after= preserve-status signal= verbose", 1),
}


def executed_commands(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """`words`, the command that they execute, the one that this executes, and so on.

    It ends at a wrapper whose options are not known here.
    **Ex.:** ``nice -n 5 timeout 60 python x.py``, ``timeout 60 python x.py``, ``python x.py``.
    """
    command = tuple(words)
    while command:
        yield command
        wrapper = WRAPPERS.get(os.path.basename(command[0]))
        command = () if wrapper is None else _behind(wrapper, command[1:])


def _behind(wrapper: Wrapper, arguments: Sequence[str]) -> tuple[str, ...]:
    """The command in the arguments of a wrapper; empty if it cannot be told."""
    from getopt import GetoptError, getopt

    try:
        _, rest = getopt(list(arguments), wrapper.short, wrapper.long.split())
    except GetoptError:
        return ()
    if wrapper is WRAPPERS["env"]:
        count = len(assignments(rest))
        # With another PATH, the name of the command may mean another file.
        return () if any(word.startswith("PATH=") for word in rest[:count]) else tuple(rest[count:])
    return tuple(rest[wrapper.operands :])


def assignments(words: Sequence[str]) -> list[str]:
    """The variables that ``env`` is given before the command. **Ex.:** ``A=1 python x=2``: ``A=1``."""
    found: list[str] = []
    for word in words:
        if "=" not in word:
            break
        found.append(word)
    return found
