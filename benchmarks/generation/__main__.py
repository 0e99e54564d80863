# SPDX-License-Identifier: Apache-2.0
"""Compare ways to generate tokens: eager transformers, xruntime's, llama.cpp's, and a compiled model.

    python -m benchmarks.generation --quick
    python -m benchmarks.generation --size 0.5 --cpus 2 16 --limit-s 240 --json generation.json
    python -m benchmarks.generation --form eager step bits8 llama.cpp-q8_0 bits4 llama.cpp-q4_0
    python -m benchmarks.generation --size gpt2 --prompt 32 --form eager step
    python -m benchmarks.generation --size 0.5 --quota 4 --conversations 1 2 --form eager step

Models are of Qwen2's kind, or GPT-2, with random weights in bf16: nothing is downloaded. Each form has a process of
its own, which loads the same weights from files; rounds are interleaved. Tokens a second are those of each
sequence after the first token; of several conversations at once, their sum. The read limit is measured in
each round, too: the best rate of a sum over 1 GB and of a linear of one row, in pages of 2 MiB. Its share
is of the weights' bytes, which every token reads. A model's memory is the most that was resident,
less what was before loading, in times its weights; pages of the file that are mapped count, too.

Forms: `eager`; `linears`, xruntime's native linears of few rows only; `step`, xruntime's decode step with
`inplace=True`; `step-shared`, the same without; `llama.cpp`, in bf16, left out where its bindings and `gguf` are not
installed. These have to be named: `bits8` and `bits4`, the step with all linears in 8 or 4 bits, the output layer included;
`llama.cpp-q8_0` and `llama.cpp-q4_0`, all matrices in these formats; `openvino`, in bf16 where the CPU has instructions for it, else in
fp32, converted while it loads, left out where it is not installed; `compiled`, a static cache and torch.compile with frozen
weights, which is long to compile.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import selectors
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import torch

from benchmarks.generation.models import GGUF_FORMS, GPT2, SIZES, can_save_gguf, save
from benchmarks.harness.measurement import (
    in_turn,
    machine_line,
    option_parser,
    print_table,
    until_stopped,
    write_raw,
)
from benchmarks.harness.quota import QuotaGroup, make_group

FORMS = (
    "eager",
    "linears",
    "step",
    "step-shared",
    "bits8",
    "bits4",
    *GGUF_FORMS,
    "openvino",
    "compiled",
)
BY_DEFAULT = ("eager", "linears", "step", "step-shared", "llama.cpp")
READ_LIMIT = "read limit"
END_S = 10
HEADER = (
    "case",
    "tokens/s",
    "times eager",
    "of the read limit",
    "first token, s",
    "loading, s",
    "memory",
)


SETTLE_S: Final = 0.3
"""Idle threads of OpenMP spin for some ms. Those of the form before must not take part in a first token."""


class FailedError(Exception):
    """A process of a form has ended, or did not answer in time."""


class Form:
    """The process of a form, which imports what it needs. Its methods raise FailedError."""

    def __init__(self, command: Sequence[str], cpus: set[int]) -> None:
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cpus)
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        finally:
            os.sched_setaffinity(0, allowed)
        self.started: dict[str, Any] = {}
        """What loading took."""

    def wait(self, limit_s: float) -> None:
        """Wait until all is imported."""
        self._answer(limit_s)

    def load(self, limit_s: float) -> None:
        """Load the model."""
        self.started = self.ask({}, limit_s)

    def ask(self, request: dict[str, int], limit_s: float) -> dict[str, Any]:
        """Measure one call."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `_answer` reports it
            print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._answer(limit_s)

    def _answer(self, limit_s: float) -> dict[str, Any]:
        output = self._process.stdout
        assert output is not None
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            line = output.readline() if selector.select(max(1.0, limit_s)) else None
        if line:
            return dict(json.loads(line))
        if line is None:
            self.end()
            raise FailedError("took too long")
        raise FailedError(f"ended with status {self._process.wait(END_S)}")

    def end(self) -> None:
        """End it; it may have ended."""
        self._process.kill()
        self._process.communicate(timeout=END_S)


class Place(NamedTuple):
    """Where the processes of a cell run."""

    name: str
    cpus: set[int]
    group: QuotaGroup | None
    threads: int
    """0: torch's default."""

    def command(self, form: str, directory: Path) -> list[str]:
        module = [sys.executable, "-m", "benchmarks.generation.form"]
        command = [*module, form, str(directory), str(self.threads)]
        return command if self.group is None else self.group.inside(command)


class Cell:
    """A size at a place: starts the forms, and measures each case in interleaved rounds."""

    def __init__(self, size: str, place: Place, options: argparse.Namespace) -> None:
        self._size, self._place, self._options = size, place, options
        self._ends = time.monotonic() + options.limit_s
        self._forms: dict[str, Form] = {}

    def _left_s(self) -> float:
        return self._ends - time.monotonic()

    def run(self, directory: Path, weight_bytes: int) -> Iterator[dict[str, Any]]:
        """Measure; yield the raw values of each case."""
        try:
            for form in (READ_LIMIT, *self._options.form):
                command = self._place.command(form, directory)
                self._forms[form] = Form(command, self._place.cpus)
            for action in (Form.wait, Form.load):  # imports at once, loading one after the other
                for form in tuple(self._forms):
                    with self._failures(form):
                        action(self._forms[form], self._left_s())
            options = self._options
            for prompt, batch, conversations in itertools.product(
                options.prompt, options.batch, options.conversations
            ):
                request = {"batch": batch, "prompt": prompt, "tokens": options.tokens}
                request["conversations"] = conversations
                case = self._case(request)
                if any(len(rounds) > 1 for rounds in case["forms"].values()):
                    yield {**case, "weight_bytes": weight_bytes}
        finally:
            for one in self._forms.values():
                one.end()

    @contextlib.contextmanager
    def _failures(self, form: str) -> Iterator[None]:
        """Report that a form failed, and go on without it."""
        try:
            yield
        except FailedError as error:
            self._forms.pop(form, None)
            print(
                f"{self._size} B, {self._place.name}: {form} {error}", file=sys.stderr, flush=True
            )

    def _case(self, request: dict[str, int]) -> dict[str, Any]:
        """Measure one case. The first value of each form, a warm-up, has its first call."""
        values: dict[str, list[dict[str, Any]]] = {form: [] for form in self._options.form}
        limits: list[float] = []
        for number in range(self._options.rounds + 1):
            for form in in_turn(list(self._forms), number) if self._forms else ():
                left_s = self._left_s()
                alone = form in (*GGUF_FORMS, "openvino")
                if left_s <= 0 or (alone and request["conversations"] > 1):
                    continue
                time.sleep(SETTLE_S)
                with self._failures(form):
                    answer = self._forms[form].ask(request, left_s)
                    if form == READ_LIMIT:
                        limits.append(answer["bytes_per_s"])
                    else:
                        values[form].append(answer)
        started = {form: one.started for form, one in self._forms.items() if form != READ_LIMIT}
        return {
            "size": self._size,
            "place": self._place.name,
            **request,
            "read_limit_bytes_per_s": limits,
            "started": started,
            "forms": {form: rounds for form, rounds in values.items() if rounds},
        }


def rows_of(case: dict[str, Any]) -> list[list[str]]:
    """The lines of the table for one case."""
    limit = max(case["read_limit_bytes_per_s"], default=float("inf"))
    size = case["size"] if case["size"] == GPT2 else f"{case['size']} B"
    name = f"{size}, {case['place']}, batch {case['batch']}, prompt {case['prompt']}"
    if case["conversations"] > 1:
        name += f", {case['conversations']} at once"
    rows, base = [], None
    for form, rounds in case["forms"].items():
        later = rounds[1:]
        if not later:
            continue
        rate, first_s = (
            statistics.median(one[key] for one in later) for key in ("rate", "first_s")
        )
        base = rate if form == "eager" else base
        times = "-" if base is None else f"{rate / base:.2f}"
        started = case["started"].get(form)
        load_s, memory, weight_bytes = "-", "-", case["weight_bytes"]
        if started is not None:
            load_s = f"{started['load_s']:.2f}"
            more = rounds[-1]["memory"]["peak"] - started["before"]["resident"]
            memory = f"{more / case['weight_bytes']:.2f}"
            weight_bytes = started.get("weight_bytes") or weight_bytes
        share = f"{rate * weight_bytes / limit:.0%}"
        rows.append(
            [f"{name}: {form}", f"{rate:.1f}", times, share, f"{first_s:.3f}", load_s, memory]
        )
    return rows


def parsed() -> argparse.Namespace:
    parser = option_parser(__doc__, rounds=5)
    parser.add_argument("--quick", action="store_true", help="a tiny model and few tokens")
    parser.add_argument("--size", nargs="+", choices=(*SIZES, GPT2), default=["0.1", "0.5", "1.2"])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--prompt", nargs="+", type=int, default=[32, 2048], help="tokens")
    parser.add_argument("--form", nargs="+", choices=FORMS, default=list(BY_DEFAULT))
    parser.add_argument("--tokens", type=int, default=64, help="tokens to generate, default 64")
    parser.add_argument(
        "--conversations", nargs="+", type=int, default=[1], help="calls at once, default 1"
    )
    parser.add_argument("--cpus", nargs="+", type=int, help="how many to run on; default: all")
    parser.add_argument(
        "--quota", nargs="+", type=float, default=[], help="also under a quota of CPUs"
    )
    parser.add_argument("--threads", type=int, default=0, help="default: torch's")
    parser.add_argument(
        "--limit-s", type=float, default=3600, help="seconds for each size and place"
    )
    options = parser.parse_args()
    if options.quick:
        options.size, options.batch, options.prompt = ["tiny"], [1], [32]
        options.tokens, options.rounds = 16, 2
    counts = (*options.batch, *options.prompt, *options.conversations, *(options.cpus or ()))
    if options.tokens < 2 or min(counts) < 1:
        parser.error("--tokens needs at least 2, other counts at least 1")
    allowed = sorted(os.sched_getaffinity(0))
    options.cpus = [len(allowed)] if options.cpus is None else options.cpus
    if max(options.cpus) > len(allowed):
        parser.error(f"--cpus {max(options.cpus)}: this process may use {len(allowed)}")
    if GGUF_FORMS.keys() & set(options.form) and not can_save_gguf():
        options.form = [form for form in options.form if form not in GGUF_FORMS]
        print("llama.cpp is left out: llama-cpp-python or gguf is not installed", file=sys.stderr)
    elif GGUF_FORMS.keys() & set(options.form) and GPT2 in options.size:
        options.form = [form for form in options.form if form not in GGUF_FORMS]
        print(f"llama.cpp is left out: it has no files of {GPT2} here", file=sys.stderr)
    if "openvino" in options.form and find_spec("openvino") is None:
        options.form.remove("openvino")
        print("openvino is left out: it is not installed", file=sys.stderr)
    return options


@contextlib.contextmanager
def places(options: argparse.Namespace) -> Iterator[list[Place]]:
    """Make what the cells run in."""
    allowed = sorted(os.sched_getaffinity(0))
    made = [
        Place(f"{count} CPUs", set(allowed[:count]), None, options.threads)
        for count in options.cpus
    ]
    with contextlib.ExitStack() as stack:
        for quota in options.quota:
            group = make_group(quota)
            if group is None:
                print(f"--quota {quota:g}: this user may not make control groups", file=sys.stderr)
                continue
            stack.callback(group.remove)
            name = f"quota {quota:g} of {len(allowed)} CPUs"
            made.append(Place(name, set(allowed), group, options.threads))
        yield made


def main() -> int:
    options = parsed()
    print(f"{machine_line()}; torch {torch.__version__}\n", flush=True)
    cases: list[dict[str, Any]] = []

    def write() -> None:
        write_raw(options.json, "generation", {"torch": torch.__version__, "cases": cases})

    with until_stopped(), places(options) as where:
        for size in options.size:
            with tempfile.TemporaryDirectory() as name:
                directory = Path(name)
                weight_bytes = save(size, directory, options.form)
                for place in where:
                    for case in Cell(size, place, options).run(directory, weight_bytes):
                        cases.append(case)
                        write()
                        print_case(case)
    print_table(HEADER, [row for case in cases for row in rows_of(case)])
    return 0


def print_case(case: dict[str, Any]) -> None:
    """Print one case as soon as it is measured."""
    limit = max(case["read_limit_bytes_per_s"], default=0.0)
    print_table(HEADER, rows_of(case))
    print(f"read limit: {limit / 1e9:.1f} GB/s\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
