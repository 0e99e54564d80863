# SPDX-License-Identifier: Apache-2.0
"""Calls and models that the decode step is not for: they run as without it, or are refused in one line."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.tiers import quick_first

torch = pytest.importorskip("torch")

from tests.runtime_ext.generation.decoder_models import decoder  # noqa: E402
from torch import nn  # noqa: E402

from xruntime import CPUPool, MultiStreamModule, Task, optimize, pin  # noqa: E402
from xruntime.errors import CompilationError, GILWarning, OperatorError, UsageError  # noqa: E402
from xruntime.generation import decode_step  # noqa: E402
from xruntime.optimization import PassOutcome, SlowCallWarning, explain  # noqa: E402

BF16 = torch.bfloat16
OPTIONS: dict[str, Any] = {"max_new_tokens": 24, "min_new_tokens": 24, "do_sample": False}
PROMPT = torch.arange(3, 12)[None]


def prompt_cache(model: Any, batch: int = 1) -> Any:
    with torch.no_grad():
        return model(PROMPT.expand(batch, -1)).past_key_values


def next_logits(model: Any, cache: Any, **kwargs: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([[5]]), past_key_values=cache, **kwargs).logits
    return logits


class Adapter(nn.Module):
    """A linear with a low-rank addition, as libraries for adapters wrap it."""

    def __init__(self, base_layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.lora_a = nn.Linear(base_layer.in_features, 4, bias=False)
        self.lora_b = nn.Linear(4, base_layer.out_features, bias=False)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.base_layer(value) + self.lora_b(self.lora_a(value))  # type: ignore[no-any-return]


def with_adapters(model: Any) -> None:
    for layer in model.model.layers:
        layer.self_attn.q_proj = Adapter(layer.self_attn.q_proj).eval()


def quantized(model: Any) -> None:
    torchao = pytest.importorskip("torchao.quantization")
    torchao.quantize_(model, torchao.Int8WeightOnlyConfig())


def with_a_hook(model: Any) -> None:
    model.model.layers[1].mlp.register_forward_hook(lambda _, __, output: output * 1.5)


def with_attention_of_its_own(model: Any) -> None:
    from transformers import AttentionInterface
    from transformers.models.llama.modeling_llama import eager_attention_forward

    def doubled(*args: Any, **kwargs: Any) -> Any:
        output, weights = eager_attention_forward(*args, **kwargs)
        return output * 2, weights

    AttentionInterface.register("doubled", doubled)
    model.set_attn_implementation("doubled")


def with_another_forward(model: Any) -> None:
    mlp = model.model.layers[0].mlp
    original = mlp.forward
    mlp.forward = lambda value: original(value) * 0.5


def with_few_positions(model: Any) -> None:
    model.config.max_position_embeddings = 8


def trainable(model: Any) -> None:
    model.requires_grad_(True)


@pytest.mark.parametrize(
    ("change", "native", "reason"),
    [
        (with_adapters, False, "in the place of a Linear"),
        (quantized, False, "not plain weights"),
        (with_a_hook, False, ""),
        (with_attention_of_its_own, False, ""),
        (with_another_forward, False, ""),
        (with_few_positions, True, ""),
        (trainable, True, ""),
    ],
)
@pytest.mark.parametrize("when", quick_first(["before", "after"]))
def test_models(
    change: Callable[[Any], None], native: bool, reason: str, when: str, steps: list[int]
) -> None:
    model = decoder("llama", hidden_size=144)
    optimized = copy.deepcopy(model)
    if when == "after":
        optimized = optimize(optimized, inplace=True)
    for one in (model, optimized):
        torch.manual_seed(7)
        change(one)
    if when == "before":
        optimized = optimize(optimized, inplace=True)
        step = explain(optimized).step("decode_step")
        assert reason in step.reason
        assert (step.outcome is PassOutcome.SKIPPED) == bool(reason)
    expected = model.generate(PROMPT, **OPTIONS)
    assert torch.equal(optimized.generate(PROMPT, **OPTIONS), expected)
    assert bool(steps) == native


def test_models_that_are_refused() -> None:
    for change, problem in (
        (lambda model: model.train(), r"in training mode .*: call .eval\(\) on it first"),
        (lambda model: model.to("meta"), "weights on meta"),
    ):
        with pytest.raises((UsageError, CompilationError), match=problem):
            optimize(change(decoder("llama")))
    with pytest.raises(UsageError, match="is frozen: train the original module"):
        optimize(decoder("llama")).train()


@pytest.mark.parametrize("tokens", [[[301]], [[-1]]])
def test_tokens_that_are_not_in_the_vocabulary(tokens: list[list[int]], steps: list[int]) -> None:
    optimized = optimize(decoder("llama"))
    with torch.no_grad(), pytest.raises(IndexError):
        optimized(torch.tensor(tokens), past_key_values=prompt_cache(optimized))
    assert not steps


@pytest.mark.parametrize("position", [0, 9, 4000])
def test_positions_as_given(position: int, steps: list[int]) -> None:
    model = decoder("llama3")
    optimized, cache = optimize(model), prompt_cache(model)
    given = {"position_ids": torch.tensor([[position]])}
    for _ in range(3):  # two are compared
        found = next_logits(optimized, copy.deepcopy(cache), **given)
    expected = next_logits(model, copy.deepcopy(cache), **given)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert len(steps) == 3


@pytest.mark.parametrize("kind", ["StaticCache", "OwnCache"])
def test_other_caches_are_named_once(kind: str, steps: list[int]) -> None:
    from transformers import DynamicCache, StaticCache

    class OwnCache(DynamicCache):
        pass

    model = decoder("llama")
    optimized, expected = optimize(model), model.generate(PROMPT, **OPTIONS)

    def generate() -> None:
        for _ in range(2):
            static = StaticCache(config=model.config, max_cache_len=64)
            cache = static if kind == "StaticCache" else OwnCache()
            found = optimized.generate(PROMPT, past_key_values=cache, **OPTIONS)
            assert torch.equal(found, expected)

    with pytest.warns(SlowCallWarning) as caught:
        generate()
    lines = [str(it.message) for it in caught if it.category is SlowCallWarning]
    assert len(lines) == 1
    assert lines[0].endswith(
        f"calls with a {kind} are not native: the decode step is for a DynamicCache"
    )
    assert not steps


def test_what_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []
    original = decode_step.DecodeStep._compared

    def noting(self: Any, call: Any, logits: Any, key: Any, *rest: Any) -> Any:
        compared.append(key)
        return original(self, call, logits, key, *rest)

    monkeypatch.setattr(decode_step.DecodeStep, "_compared", noting)
    optimized = optimize(decoder("llama"))
    for batch in (1, 3, 1):
        optimized.generate(
            PROMPT.expand(batch, -1), **OPTIONS | {"min_new_tokens": 70, "max_new_tokens": 70}
        )
    # Twice in all, for the modules' time; then once for each number of sequences and size of the cache.
    assert compared == [(1, 64), (1, 64), (1, 128), (3, 64), (3, 128)]


def test_two_threads_with_one_cache() -> None:
    optimized = optimize(decoder("llama"))
    cache = prompt_cache(optimized)
    for _ in range(2):
        next_logits(optimized, cache)
    problems: list[Exception] = []
    barrier, lock = threading.Barrier(2), threading.Lock()
    done = 0

    def run() -> None:
        nonlocal done
        for _ in range(50):
            barrier.wait(60)
            try:
                next_logits(optimized, cache)
            except OperatorError as error:
                problems.append(error)
            else:
                with lock:
                    done += 1

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done + len(problems) == 100
    assert cache.get_seq_length() == 11 + done  # none was lost or counted twice


def test_streams_and_pools() -> None:
    model = decoder("qwen2")
    optimized = optimize(model)
    expected = model.generate(PROMPT, **OPTIONS)
    pool = CPUPool(sorted(CPUPool().core_ids)[:1])
    with pin(pool):
        assert torch.equal(optimized.generate(PROMPT, **OPTIONS), expected)

    def generate() -> Any:
        return optimized.generate(PROMPT, **OPTIONS)

    tasks = [Task(generate, pool) for _ in range(2)]
    for future in [task() for task in tasks for _ in range(2)]:
        assert torch.equal(future.get(), expected)

    class Generating(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = optimized

        def forward(self, ids: torch.Tensor) -> Any:
            return self.model.generate(ids, **OPTIONS)

    with pytest.warns(GILWarning):
        streams = MultiStreamModule(Generating().eval(), num_streams=2, cpu_pool=CPUPool())
    assert torch.equal(streams(PROMPT.expand(2, -1)), expected.expand(2, -1))


def test_a_shallow_copy_of_a_cache() -> None:
    model = decoder("llama")
    optimized, cache = optimize(model), prompt_cache(model)
    for _ in range(3):
        next_logits(optimized, cache)
    expected = next_logits(model, copy.deepcopy(cache))
    found = next_logits(optimized, copy.copy(cache))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_saved_as_transformers_saves(tmp_path: Any) -> None:
    from transformers import LlamaForCausalLM

    optimized = optimize(decoder("llama"), inplace=True)
    tokens = optimized.generate(PROMPT, **OPTIONS)
    optimized.save_pretrained(tmp_path)
    loaded = LlamaForCausalLM.from_pretrained(tmp_path).eval()
    loaded.generation_config.pad_token_id = 0
    assert torch.equal(loaded.generate(PROMPT, **OPTIONS), tokens)
