# SPDX-License-Identifier: Apache-2.0
"""Rates in the output of the bare command."""

from __future__ import annotations

import pytest
from tests.tuner.cli.commands import Desk

from xtune.launches.measurements import rate_in


@pytest.mark.parametrize(
    ("output", "name"),
    [
        ("loading\n12.5 images/s", "images/s"),
        ("epoch 1: loss 0.25, 1,234 samples/sec, accuracy 0.9", "samples/sec"),
        ("tokens/s: 12", "tokens/s"),
        ("100%|####| 10/10 [00:01<00:00, 7.10it/s]\n512 sentences/s\ndone in 3 s", "sentences/s"),
        ("30 fps", "fps"),
        ("downloaded at 12.3 MB/s", None),
        ("it does many images/s", None),
        ("see /usr/share/s", None),
        ("done in 3 s", None),
        ("", None),
    ],
)
def test_the_last_rate_with_a_number_is_named(output: str, name: str | None) -> None:
    assert rate_in(output) == name


WORDS = ("--param", "n=1,2", "--only-params", "--budget", "2", "rate.py", "{n}")


def test_a_search_by_wall_time_says_that_a_rate_is_printed(desk: Desk) -> None:
    told = "it prints items/s: with --metric items/s, or --metric auto,"
    assert desk.xtune(*WORDS).err.count(told) == 1
    assert told not in desk.xtune("--metric", "wall", "--study", "wall", *WORDS).err


def test_auto_compares_the_rate_that_is_printed(desk: Desk) -> None:
    done = desk.xtune("--metric", "auto", *WORDS)
    assert "xtune: --metric auto: items/s" in done.err
    assert "objective: items/s, maximize" in done.err
    resumed = desk.xtune("resume", "--budget", "2")
    assert resumed.code == 0
    assert "objective: items/s, maximize" in resumed.err


def test_auto_is_wall_time_for_a_program_without_a_rate(desk: Desk) -> None:
    words = ("--metric", "auto", "--only-params", "--param", "t=0,0.1", "--budget", "2")
    assert "objective: wall time, minimize" in desk.xtune(*words, "nap.py", "{t}").err


def test_auto_cannot_name_the_metric_of_a_load_generator(desk: Desk) -> None:
    service = ("--metric", "auto", "--ready", "8000", "--measure", "wrk")
    done = desk.xtune(*service, "--budget", "2", "nap.py", "1")
    assert done.code in (2, 127)
    assert done.err.startswith("xtune: error: --metric auto")
