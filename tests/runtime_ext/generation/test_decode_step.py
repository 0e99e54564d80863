# SPDX-License-Identifier: Apache-2.0
"""The decode step beside the modules: each family, what it leaves to them, and caches in any state."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings
from typing import Any

import pytest
from tests.tiers import quick_first

torch = pytest.importorskip("torch")

from tests.runtime_ext.generation.decoder_models import CASES, decoder  # noqa: E402

from xruntime import optimize  # noqa: E402
from xruntime.errors import OperatorError  # noqa: E402
from xruntime.generation import decode_step  # noqa: E402
from xruntime.generation.cached_layers import GrowingLayer, in_use  # noqa: E402
from xruntime.generation.decoders import described  # noqa: E402
from xruntime.optimization import PassOutcome, SlowCallWarning, explain  # noqa: E402

BF16 = torch.bfloat16
IDS = torch.arange(3, 12)[None]
OPTIONS: dict[str, Any] = {"max_new_tokens": 24, "min_new_tokens": 24, "do_sample": False}


def prompt(batch: int, length: int = 9) -> dict[str, torch.Tensor]:
    """Sequences with up to six tokens of padding at the left."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    for row in range(batch):
        mask[row, : row * 2 % 7] = 0
    return {"input_ids": torch.randint(3, 300, (batch, length)), "attention_mask": mask}


QUICK = ("llama3", "qwen2-sliding", "phi3-partial", "gemma2", "gpt-neox", "gpt2", "opt")


@pytest.mark.parametrize(
    "case", quick_first(sorted(CASES, key=lambda it: it not in QUICK), quick=len(QUICK))
)
@pytest.mark.parametrize("batch", quick_first([3, 1, 8]))
def test_tokens_in_fp32_are_those_of_the_modules(case: str, batch: int, steps: list[int]) -> None:
    model = decoder(case)
    optimized = optimize(model)
    tokens = 60 if batch == 3 else 100  # positions of the cache past a doubling
    options = OPTIONS | {"max_new_tokens": tokens, "min_new_tokens": tokens, "output_logits": True}
    given = prompt(batch)
    found = optimized.generate(**given, **options, return_dict_in_generate=True)
    expected = model.generate(**given, **options, return_dict_in_generate=True)
    assert torch.equal(found.sequences, expected.sequences)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-4)
    assert steps == [batch] * (tokens - 1)
    for ours, theirs in zip(
        found.past_key_values.layers, expected.past_key_values.layers, strict=True
    ):
        assert ours.get_seq_length() == theirs.get_seq_length() == 8 + tokens
        torch.testing.assert_close(ours.keys, theirs.keys, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ours.values, theirs.values, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "case",
    [
        "llama",
        "qwen2-sliding",
        "qwen3",
        "mistral",
        "phi3",
        "gemma2",
        "gemma3",
        "phi",
        "gpt-neox",
        "gpt2",
        "opt",
    ],
)
def test_logits_in_bf16_are_close_to_those_in_fp32(case: str, steps: list[int]) -> None:
    model = decoder(case, BF16)
    exact = copy.deepcopy(model).float()
    optimized = optimize(model)
    given = prompt(8)
    options = OPTIONS | {"output_logits": True, "return_dict_in_generate": True}
    found = optimized.generate(**given, **options)
    assert steps == [8] * 23
    mask = torch.ones_like(found.sequences)
    mask[:, :9] = given["attention_mask"]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        logits = exact(found.sequences, attention_mask=mask, position_ids=positions).logits
    for at, ours in enumerate(found.logits):
        wanted = logits[:, 8 + at]
        assert ours.dtype == torch.float32  # generate converts them
        assert float((ours - wanted).abs().max()) < 0.03 * float(wanted.abs().max())


@pytest.mark.parametrize("case", ["qwen2", "gpt2"])
@pytest.mark.parametrize("form", ["weights in bf16", "in place"])
def test_optimized_from_fp32(case: str, form: str, steps: list[int]) -> None:
    model = decoder(case, hidden_size=144)
    given = prompt(2)
    expected = model.generate(**given, **OPTIONS)
    if form == "in place":
        found = optimize(model, inplace=True).generate(**given, **OPTIONS)
        assert torch.equal(found, expected)
    else:
        optimized = optimize(model, dtype=BF16)
        outputs = optimized.generate(
            **given, **OPTIONS, output_logits=True, return_dict_in_generate=True
        )
        assert outputs.sequences.shape == expected.shape
    assert len(steps) == 23


def next_outputs(model: Any, cache: Any, **kwargs: Any) -> Any:
    batch = cache.layers[0].keys.shape[0]
    with torch.no_grad():
        tokens = torch.arange(5, 5 + batch)[:, None]
        return model(input_ids=tokens, past_key_values=cache, **kwargs)


def filled(model: Any, batch: int = 2, tokens: int = 9) -> Any:
    """A cache of a prompt, as the model makes it."""
    with torch.no_grad():
        return model(torch.randint(3, 300, (batch, tokens))).past_key_values


def change_reorder(cache: Any) -> None:
    cache.reorder_cache(torch.tensor([1, 0]))


def change_repeat(cache: Any) -> None:
    cache.batch_repeat_interleave(2)


def change_select(cache: Any) -> None:
    cache.batch_select_indices(torch.tensor([0]))


def change_crop(cache: Any) -> None:
    cache.crop(-3)


def change_keys(cache: Any) -> None:
    cache.layers[1].keys = cache.layers[1].keys * 0.5


def change_values_in_place(cache: Any) -> None:
    cache.layers[0].values[:, :, 2] = 1.5


def change_order(cache: Any) -> None:
    cache.layers.reverse()


@pytest.mark.parametrize(
    "change",
    [
        change_reorder,
        change_repeat,
        change_select,
        change_crop,
        change_keys,
        change_values_in_place,
        change_order,
    ],
)
def test_changes_of_a_cache(change: Any, steps: list[int]) -> None:
    model = decoder("llama")
    optimized = optimize(model)
    theirs = filled(model)
    ours = copy.deepcopy(theirs)
    for _ in range(2):  # before the layers have room to grow, and after
        change(theirs)
        change(ours)
        for _ in range(4):
            found, expected = next_outputs(optimized, ours), next_outputs(model, theirs)
            torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-4)
            assert found.past_key_values is ours
    assert len(steps) == 8
    assert isinstance(ours.layers[0], GrowingLayer)
    for one, other in zip(ours.layers, theirs.layers, strict=True):
        torch.testing.assert_close(one.keys, other.keys, rtol=1e-4, atol=1e-4)


def test_tensors_taken_from_a_cache_keep_their_values() -> None:
    optimized = optimize(decoder("llama"))
    cache = filled(optimized)
    next_outputs(optimized, cache)
    next_outputs(optimized, cache)
    taken = cache.layers[0].keys
    values = taken.clone()
    cache.crop(-2)
    next_outputs(optimized, cache)
    assert torch.equal(taken, values)


def test_copies_of_a_cache_are_apart() -> None:
    model = decoder("mistral-sliding")
    optimized = optimize(model)
    cache = filled(model)
    next_outputs(optimized, cache)
    next_outputs(optimized, cache)
    for other in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        assert not isinstance(other.layers[0], GrowingLayer)
        before = cache.layers[0].keys.clone()
        theirs = next_outputs(model, copy.deepcopy(cache))
        ours = next_outputs(optimized, other)
        torch.testing.assert_close(ours.logits, theirs.logits, rtol=1e-4, atol=1e-4)
        assert torch.equal(cache.layers[0].keys, before)


def test_a_cache_that_is_reset() -> None:
    model = decoder("llama")
    optimized = optimize(model)
    theirs = filled(model)
    ours = copy.deepcopy(theirs)
    for cache, one in ((theirs, model), (ours, optimized)):
        next_outputs(one, cache)
        next_outputs(one, cache)
        cache.reset()  # old versions set zeros, new ones drop all
    ids = torch.randint(3, 300, (2, 5))
    with torch.no_grad():
        found = optimized(ids, past_key_values=ours).logits
        torch.testing.assert_close(found, model(ids, past_key_values=theirs).logits)
    torch.testing.assert_close(
        next_outputs(optimized, ours).logits,
        next_outputs(model, theirs).logits,
        rtol=1e-4,
        atol=1e-4,
    )


def test_a_conversation_is_continued(steps: list[int]) -> None:
    model = decoder("qwen2")
    optimized = optimize(model)
    tokens = {}
    for name, one in (("ours", optimized), ("theirs", model)):
        ids, cache = torch.arange(3, 12)[None], None
        for _ in range(3):
            outputs = one.generate(
                ids, past_key_values=cache, **OPTIONS, return_dict_in_generate=True
            )
            cache = outputs.past_key_values
            ids = torch.cat([outputs.sequences, torch.arange(20, 25)[None]], 1)
        tokens[name] = ids
    assert torch.equal(tokens["ours"], tokens["theirs"])
    assert len(steps) == 3 * 23


@pytest.mark.parametrize(
    ("options", "native"),
    [
        ({"num_beams": 3}, True),
        ({"do_sample": True, "top_k": 5, "num_return_sequences": 2}, True),
        ({"output_attentions": True, "return_dict_in_generate": True}, False),
        ({"output_hidden_states": True, "return_dict_in_generate": True}, False),
        ({"use_cache": False}, False),
        ({"cache_implementation": "static", "disable_compile": True}, False),
        ({"cache_implementation": "offloaded"}, False),
        ({"prompt_lookup_num_tokens": 3}, None),
    ],
)
@pytest.mark.filterwarnings("ignore:.*the decode step is for a DynamicCache")
def test_ways_to_generate(options: dict[str, Any], native: bool | None, steps: list[int]) -> None:
    model = decoder("llama")
    model.set_attn_implementation("eager")
    optimized = optimize(model)

    given = prompt(1)
    found = []
    for one in (model, optimized):
        torch.manual_seed(3)
        try:
            outputs = one.generate(**given, **(OPTIONS | options))
        except Exception as error:  # noqa: BLE001 - both must fail alike
            outputs = repr(error)
        found.append(getattr(outputs, "sequences", outputs))
    if isinstance(found[0], str):
        assert found[0] == found[1]
    else:
        assert torch.equal(found[0], found[1])
    if native is not None:
        assert bool(steps) == native


MASK = torch.ones(2, 10, dtype=torch.int64)
HOLES = MASK.clone()
HOLES[0, 4] = 0
RIGHT = MASK.clone()
RIGHT[1, 9] = 0


@pytest.mark.parametrize(
    "kwargs",
    [
        {"attention_mask": HOLES},
        {"attention_mask": RIGHT},
        {"attention_mask": torch.zeros(2, 1, 1, 10)},
        {"output_hidden_states": True},
        {"labels": torch.tensor([[5], [6]])},
        {"return_dict": False},
        {"logits_to_keep": torch.tensor([0])},
        {"position_ids": torch.tensor([[[9]], [[9]]])[:, 0], "attention_mask": None, "extra": None},
    ],
    ids=str,
)
def test_calls_of_the_modules(kwargs: dict[str, Any], steps: list[int]) -> None:
    model = decoder("llama")
    optimized = optimize(model)
    theirs = filled(model)
    ours = copy.deepcopy(theirs)
    native = "position_ids" in kwargs
    kwargs = {name: value for name, value in kwargs.items() if name != "extra"}
    found, expected = next_outputs(optimized, ours, **kwargs), next_outputs(model, theirs, **kwargs)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-4, equal_nan=True)
    assert type(found) is type(expected)
    assert bool(steps) == native


def test_gradients_are_the_modules(steps: list[int]) -> None:
    model = decoder("llama")
    optimized = optimize(model)
    cache = filled(model)
    embeddings = torch.randn(2, 1, 72, requires_grad=True)
    optimized(inputs_embeds=embeddings, past_key_values=cache).logits.sum().backward()
    assert embeddings.grad is not None
    assert not steps


CHANGES = ["hook", "adapter", "weights", "scaled in place", "training", "epsilon", "scale", "class"]


@pytest.mark.parametrize("change", CHANGES)
def test_changed_models(change: str, steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    from torch import nn

    optimized = optimize(decoder("llama"), inplace=True)
    plain = decoder("llama")
    plain.load_state_dict(optimized.state_dict())
    cache = filled(plain)
    next_outputs(optimized, copy.deepcopy(cache))
    next_outputs(optimized, copy.deepcopy(cache))
    steps.clear()
    seen: list[int] = []
    for model in (optimized, plain):
        attention = model.model.layers[1].self_attn
        if change == "hook":
            attention.register_forward_hook(lambda *_: seen.append(1))
        elif change == "adapter":
            attention.q_proj = nn.Sequential(attention.q_proj, nn.LayerNorm(72))
        elif change == "weights":
            attention.v_proj.weight = nn.Parameter(attention.v_proj.weight * 2)
        elif change == "scaled in place":
            attention.v_proj.weight.data.mul_(2)
        elif change == "epsilon":
            for norm in [it for it in model.modules() if hasattr(it, "variance_epsilon")]:
                norm.variance_epsilon = 0.3
        elif change == "scale":
            for layer in model.model.layers:
                layer.self_attn.scaling = 0.9
        elif change == "class":
            replaced = type(model.model.layers[0].mlp)
            monkeypatch.setattr(replaced, "forward", lambda self, x: self.up_proj(x)[..., :72])
        else:
            attention.train()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = next_outputs(optimized, copy.deepcopy(cache)).logits
    expected = next_outputs(plain, copy.deepcopy(cache)).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert bool(steps) == (change in ("weights", "scaled in place", "epsilon", "scale"))
    assert len(seen) == (2 if change == "hook" else 0)
    lines = [str(it.message) for it in caught if it.category is SlowCallWarning]
    assert bool(lines) == (change in ("adapter", "class"))
    assert all("LlamaForCausalLM: the decode step is not used from now on" in it for it in lines)


def test_a_wrong_step_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder("llama")
    optimized = optimize(model)
    original = decode_step.DecodeStep._computed
    computed: list[int] = []

    def wrong(self: Any, call: Any, threads: int) -> Any:
        computed.append(1)
        logits = original(self, call, threads)
        logits[0, 0, 7] += 1
        return logits

    monkeypatch.setattr(decode_step.DecodeStep, "_computed", wrong)
    with pytest.warns(SlowCallWarning, match=r"its result differs from the modules': logits by"):
        found = optimized.generate(**prompt(1), **OPTIONS)
    assert computed == [1]
    torch.manual_seed(0)
    given = prompt(1)
    assert torch.equal(optimized.generate(**given, **OPTIONS), model.generate(**given, **OPTIONS))
    assert found.shape == (1, 33)


@pytest.mark.parametrize(("layers", "is_dropped"), [(2, True), (24, False)])
def test_deep_models_may_differ_more(
    layers: int, is_dropped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = decode_step.DecodeStep._computed

    def disturbed(self: Any, call: Any, threads: int) -> Any:
        logits = original(self, call, threads)
        # 1e-3 is allowed, and twice that in 24 layers.
        logits[0, 0, 7] += 1.5e-3 * logits.abs().max()
        return logits

    monkeypatch.setattr(decode_step.DecodeStep, "_computed", disturbed)
    optimized = optimize(decoder("llama", num_hidden_layers=layers))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimized.generate(**prompt(1), **OPTIONS)
    assert any("its result differs" in str(it.message) for it in caught) == is_dropped


def test_a_step_that_fails_leaves_the_call_to_the_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder("llama")

    def failing(*_: Any) -> Any:
        raise MemoryError("no memory for a native operator")

    for name in ("_call", "_computed"):
        with monkeypatch.context() as patch:
            patch.setattr(decode_step.DecodeStep, name, failing)
            optimized = optimize(model)
            given = prompt(2)
            with pytest.warns(SlowCallWarning, match="MemoryError: no memory"):
                found = optimized.generate(**given, **OPTIONS)
        assert torch.equal(found, model.generate(**given, **OPTIONS))


def test_the_speed_is_told() -> None:
    optimized = optimize(decoder("llama-tied"))
    assert "ms a token" not in str(explain(optimized))
    optimized.generate(**prompt(2), **OPTIONS)
    weights = sum(one.nbytes for one in optimized.parameters())
    reason = explain(optimized).step("decode_step").reason
    assert " without what generate() adds, in calls of 2; " in reason
    assert f"; {weights / 1e6:.0f} MB of weights a token, read at " in reason
    assert reason.endswith(" s after a prompt of 9")


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (BF16, 0.03)])
def test_gpt2_with_eager_attention_that_is_upcast(
    dtype: torch.dtype, most: float, steps: list[int]
) -> None:
    model = decoder("gpt2-upcast", dtype)
    model.set_attn_implementation("eager")
    cache = filled(model)
    optimized = optimize(model)
    for _ in range(3):  # the modules compute the first two, too
        found = next_outputs(optimized, copy.deepcopy(cache)).logits
    expected = next_outputs(model, copy.deepcopy(cache)).logits
    assert len(steps) == 3
    assert float((found - expected).abs().max()) < most * float(expected.abs().max())


@pytest.mark.parametrize(("case", "reads_embedding"), [("llama", False), ("llama-tied", True)])
def test_a_token_reads_all_weights_but_an_embedding_that_is_not_the_head(
    case: str, reads_embedding: bool
) -> None:
    model = decoder(case)
    weights = sum(one.nbytes for one in model.parameters())
    if not reads_embedding:
        weights -= model.get_input_embeddings().weight.nbytes
    assert described(model, type(model)).bytes_a_token() == weights


def test_the_modules_are_timed_with_linears_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = torch.nn.functional.linear

    def counting(value: Any, *weights: Any) -> Any:
        calls.append(value.shape)
        return original(value, *weights)

    monkeypatch.setattr(torch.nn.functional, "linear", counting)
    # Layers of a size that native code computes.
    optimized = optimize(decoder("llama", hidden_size=144, intermediate_size=160))
    optimized.generate(**prompt(1), **OPTIONS)
    last_linears = [shape for shape in calls if shape == (1, 1, 160)]
    assert len(last_linears) == 2 * 3  # of two steps, in each of three layers


def test_threads_with_a_cache_each() -> None:
    model = decoder("qwen2")
    optimized = optimize(model)
    prompts = [prompt(1 + at % 2, 5 + at) for at in range(4)]
    expected = [model.generate(**given, **OPTIONS) for given in prompts]
    found: dict[int, Any] = {}

    def run(at: int) -> None:
        for _ in range(3):
            found[at] = optimized.generate(**prompts[at], **OPTIONS)

    threads = [threading.Thread(target=run, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[at], expected[at]) for at in range(4))


def test_one_cache_in_two_calls_is_an_error() -> None:
    optimized = optimize(decoder("llama"))
    cache = filled(optimized)
    next_outputs(optimized, cache)
    with (
        in_use(cache.layers[0], 10),
        pytest.raises(OperatorError, match="a DynamicCache of its own"),
    ):
        next_outputs(optimized, cache)
    next_outputs(optimized, cache)


def test_models_without_a_description() -> None:
    from transformers import BloomConfig, BloomForCausalLM

    model = BloomForCausalLM(BloomConfig(n_layer=1, hidden_size=32, n_head=2, vocab_size=50)).eval()
    step = explain(optimize(model)).step("decode_step")
    assert (step.outcome, step.reason) == (
        PassOutcome.SKIPPED,
        "it is of no family with a decode step",
    )
    for change, reason in (
        ({"scale_attn_by_inverse_layer_idx": True}, "its layers differ in scale"),
        ({"add_cross_attention": True}, "it has a GPT2Attention, which is not described"),
    ):
        other = decoder("gpt2", **change)
        assert explain(optimize(other)).step("decode_step").reason == reason
        assert torch.equal(optimize(other).generate(IDS, **OPTIONS), other.generate(IDS, **OPTIONS))
    other = decoder("llama", hidden_act="mish")
    assert "its activation is" in explain(optimize(other)).step("decode_step").reason
    mixed = decoder("llama")
    mixed.model.layers[0].mlp.up_proj.to(BF16)
    assert explain(optimize(mixed)).step("decode_step").reason == "its weights have several dtypes"


def test_other_versions_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    monkeypatch.setattr(transformers, "__version__", "4.57.1")
    step = explain(optimize(decoder("llama"))).step("decode_step")
    assert step.reason == "transformers 4.57.1 is not one of 5.17 to 5.23"
