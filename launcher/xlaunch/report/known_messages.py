# SPDX-License-Identifier: Apache-2.0
"""Messages that frameworks print although nothing is wrong, and what they mean.

Users have taken each of them for the reason why a device does not work. The sources are reports to
the projects that print them, where users or maintainers say that nothing else is wrong.
"""

from __future__ import annotations

from typing import NamedTuple


class KnownMessage(NamedTuple):
    """A message by a part of it that does not change."""

    text: bytes
    meaning: str
    source: str


MESSAGES = (
    KnownMessage(
        b"Overriding a previously registered kernel",
        "a package (Intel's extension, torch_xla, torch_npu) registers its own kernel for an "
        "operator that torch has already, as it intends; the work runs on the device all the same",
        "https://github.com/pytorch/pytorch/issues/111887",
    ),
    KnownMessage(
        b"when one has already been registered",
        "TensorFlow registers cuDNN, cuFFT or cuBLAS twice in one process; the first one stays",
        "https://github.com/tensorflow/tensorflow/issues/62075",
    ),
    KnownMessage(
        b"computation placer already registered",
        "TensorFlow registers a part of XLA twice in one process; the first one stays",
        "https://github.com/tensorflow/tensorflow/issues/90790",
    ),
    KnownMessage(
        b"successful NUMA node read from SysFS had negative value (-1)",
        "the firmware does not say to which NUMA node the GPU belongs; TensorFlow takes node 0",
        "https://github.com/tensorflow/tensorflow/issues/58428",
    ),
    KnownMessage(
        b"The current process just got forked, after parallelism has already been used",
        "a tokenizer was used before the loader's workers were forked; they tokenize with one thread "
        "each; TOKENIZERS_PARALLELISM=false silences it",
        "https://github.com/huggingface/text-generation-inference/issues/1035",
    ),
    KnownMessage(
        b"socket cannot be initialized",
        "torch.distributed tries IPv6 before IPv4, which is used if the program goes on",
        "https://github.com/pytorch/pytorch/issues/128998",
    ),
)

LONGEST = max([len(message.text) for message in MESSAGES])


class KnownMessages:
    """Searches output for `MESSAGES`."""

    def __init__(self) -> None:
        self._unseen = list(MESSAGES)
        self._seen: list[KnownMessage] = []
        self._tails: dict[int, bytes] = {}

    def feed(self, index: int, data: bytes) -> None:
        """Take what an instance wrote to standard error."""
        data = self._tails.get(index, b"") + data
        self._tails[index] = data[1 - LONGEST :]
        for message in [message for message in self._unseen if message.text in data]:
            self._unseen.remove(message)
            self._seen.append(message)

    def explanations(self) -> tuple[str, ...]:
        """A line for each message that was seen, in their order."""
        return tuple(
            [f'"{it.text.decode()}" is harmless: {it.meaning} ({it.source})' for it in self._seen]
        )
