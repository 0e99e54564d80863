# SPDX-License-Identifier: Apache-2.0
"""Language models with weights of 8 and 4 bits, and their linears."""

from __future__ import annotations

import copy
import io
import math
import re
from typing import Any

import pytest
from tests.tiers import quick_first

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.runtime_ext.generation.decoder_models import decoder  # noqa: E402
from torch import nn  # noqa: E402

from xruntime import optimize  # noqa: E402
from xruntime.errors import OperatorError, OptimizationError  # noqa: E402
from xruntime.generation import linear_blocks, packed_weights  # noqa: E402
from xruntime.generation.linear_rows import linear_rows, linears_of_torch  # noqa: E402
from xruntime.generation.packed_linear import MAX_ROWS, PackedLinear  # noqa: E402
from xruntime.generation.packed_weights import BITS, PackedWeight  # noqa: E402
from xruntime.optimization import explain  # noqa: E402
from xruntime.optimization.steps import PassOutcome  # noqa: E402

LARGE: dict[str, Any] = {"hidden_size": 144, "intermediate_size": 203}
"""Sizes whose linears are packed, and that fit no group and no vector."""

IDS = torch.tensor([[5, 17, 200, 3, 44, 9]])
bf16 = torch.bfloat16


def generated(model: Any, **options: Any) -> torch.Tensor:
    found: torch.Tensor = model.generate(
        IDS, max_new_tokens=12, min_new_tokens=12, do_sample=False, **options
    )
    return found


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(IDS).logits
    return found.double()


def layer(inputs: int = 100, outputs: int = 70, bits: int = 8, dtype: Any = bf16) -> PackedLinear:
    torch.manual_seed(3)
    return PackedLinear(nn.Linear(inputs, outputs), bits, dtype).eval()


def exact(packed: PackedLinear, value: torch.Tensor) -> torch.Tensor:
    weight = packed.packed.unpacked(torch.float32).double()
    assert packed.bias is not None
    return value.double() @ weight.T + packed.bias.double()


def assert_near(found: torch.Tensor, wanted: torch.Tensor, bound: float) -> None:
    assert float((found.double() - wanted).norm() / wanted.norm()) < bound


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(
    "case", quick_first(["llama", "gpt2", "gpt-neox", "qwen2", "gemma2", "phi3"], quick=2)
)
def test_the_decode_step_computes_what_the_modules_do(
    case: str, bits: int, steps: list[int]
) -> None:
    model = decoder(case, **LARGE)
    made = optimize(copy.deepcopy(model), weight_bits=bits, head_bits=8)
    plain = optimize(model, weight_bits=bits, head_bits=8, passes={"decode_step": False})
    found = generated(made, output_logits=True, return_dict_in_generate=True)
    wanted = generated(plain, output_logits=True, return_dict_in_generate=True)
    assert len(steps) > 8
    assert explain(made).step("weight_bits").outcome is PassOutcome.APPLIED
    assert vars(made)["_xruntime_optimized"].step.dropped is None
    assert torch.equal(found.sequences, wanted.sequences)
    for ours, theirs in zip(found.logits, wanted.logits, strict=True):
        assert_near(ours, theirs.double(), 1e-3)


@pytest.mark.parametrize(("bits", "bound"), [(8, 0.02), (4, 0.25)])
def test_logits_are_near_those_of_bf16(bits: int, bound: float) -> None:
    model = decoder("llama", bf16, **LARGE)
    made = optimize(model, weight_bits=bits)
    wanted = logits(model)
    found = logits(made)
    assert_near(found, wanted, bound)
    if bits == 8:
        chosen, best = found.argmax(-1, keepdim=True), wanted.max(-1).values
        behind = best - wanted.gather(-1, chosen)[..., 0]
        assert float(behind.max()) < 0.02 * float(wanted.abs().max())


def test_a_model_in_fp32_is_packed_from_fp32(steps: list[int]) -> None:
    made = optimize(decoder("llama-biases", **LARGE), dtype=bf16, weight_bits=8)
    assert {it.dtype for it in made.parameters()} == {bf16, torch.float32}  # norms are float32
    assert made(IDS).logits.dtype is torch.float32
    generated(made)
    assert steps
    assert vars(made)["_xruntime_optimized"].step.dropped is None


def test_a_dtype_that_changes_nothing_leaves_the_decode_step(steps: list[int]) -> None:
    made = optimize(decoder("llama-biases", bf16, **LARGE), dtype=torch.float32, weight_bits=8)
    assert made(IDS).logits.dtype is bf16
    generated(made)
    assert steps


def test_bytes_fall_and_are_told() -> None:
    model = decoder("llama", bf16, **LARGE)
    before = {name: it.clone() for name, it in model.state_dict().items()}
    shared = optimize(model, weight_bits=4)
    told = explain(shared)
    assert re.search(r"packed 15 linears in 4 bits, 0\.775 MB of weights into 0\.2\d+;", str(told))
    assert told.bytes_after < 0.6 * told.bytes_before
    for name, value in shared.state_dict().items():
        assert torch.equal(value, before[name])
    released = optimize(model, weight_bits=4, inplace=True)
    assert released is model
    assert explain(released).bytes_kept == 0
    assert not any(it.numel() == 144 * 203 and it.dtype is bf16 for it in model.parameters())
    with pytest.raises(OptimizationError, match="dropped"):
        released.state_dict()


def test_a_tied_output_layer_is_packed_when_asked() -> None:
    model = decoder("llama-tied", bf16, vocab_size=401, **LARGE)
    kept = optimize(model, weight_bits=8)
    assert kept.lm_head.weight is kept.model.embed_tokens.weight
    packed = optimize(model, weight_bits=8, head_bits=4)
    assert packed.lm_head.bits == 4
    assert torch.equal(packed.model.embed_tokens.weight, model.model.embed_tokens.weight)
    assert generated(packed).shape == (1, len(IDS[0]) + 12)


def test_other_architectures_have_packed_linears() -> None:
    import transformers

    sizes = {"d_model": 144, "d_kv": 24, "d_ff": 203, "num_layers": 2, "num_heads": 6}
    config = transformers.T5Config(**sizes, vocab_size=301, decoder_start_token_id=0)
    model = transformers.T5ForConditionalGeneration(config).eval().to(bf16)
    made = optimize(model, weight_bits=8)
    inputs = {"input_ids": IDS, "decoder_input_ids": IDS}
    with torch.no_grad():
        assert_near(made(**inputs).logits, model(**inputs).logits.double(), 0.05)
    assert generated(made).shape[1] > 1


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shape", [(70, 33), (7, 100), (65, 1100), (1, 1)])
@pytest.mark.parametrize("rows", [1, 2, 3, MAX_ROWS, MAX_ROWS + 1])
def test_products_are_those_of_the_packed_weights(
    bits: int, shape: tuple[int, int], rows: int
) -> None:
    torch.manual_seed(rows)
    packed = layer(shape[1], shape[0], bits, torch.float32)
    value = torch.randn(1, rows, shape[1])
    value[0, 0] *= 1000
    found = packed(value)
    assert found.shape == (1, rows, shape[0])
    for at in range(rows):
        assert_near(found[0, at], exact(packed, value[0, at]), 1e-4)


@pytest.mark.parametrize("native", [True, False])
def test_few_and_many_rows_in_bf16_and_under_autocast(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_blocks, "has_bf16_products", lambda: native)
    monkeypatch.setattr(linear_blocks, "BLOCK_WEIGHTS", 3000)
    packed, other = layer(), layer(130, 200)
    for rows in (1, 20):
        value = torch.randn(rows, 100)
        low = packed(value.to(bf16))
        assert low.dtype is bf16
        assert_near(low, exact(packed, value.to(bf16)), 0.01)
        other(torch.randn(20, 130))  # it uses the memory of unpacked weights, too
        assert packed(value).dtype is torch.float32
        with torch.autocast("cpu", torch.bfloat16):
            assert packed(value).dtype is bf16
        with torch.autocast("cpu", torch.float16):
            assert packed(value).dtype is torch.float16
        with torch.inference_mode():
            assert torch.equal(packed(value.to(bf16)), low)
        with linears_of_torch():
            assert_near(packed(value.to(bf16)), exact(packed, value.to(bf16)), 0.01)


@pytest.mark.parametrize(("outputs", "blocks"), [(100, [100]), (104, [104]), (160, [80, 80])])
def test_no_block_is_a_small_rest(
    outputs: int, blocks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_blocks, "BLOCK_WEIGHTS", 100 * 100)
    unpacked: list[int] = []
    unpack_into = PackedWeight.unpack_into

    def unpack(self: PackedWeight, output: torch.Tensor) -> torch.Tensor:
        unpacked.append(len(output))
        return unpack_into(self, output)

    monkeypatch.setattr(PackedWeight, "unpack_into", unpack)
    packed, value = layer(100, outputs), torch.randn(20, 100)
    assert_near(packed(value), exact(packed, value), 0.01)
    assert unpacked == blocks


def test_nothing_but_nan_comes_of_nan() -> None:
    value = torch.randn(2, 100)
    value[1, 99] = math.nan
    found = layer()(value)
    assert bool(found[0].isfinite().all())
    assert bool(found[1].isnan().all())
    value[1, 99] = math.inf
    assert not bool(layer()(value)[1].isfinite().any())


@pytest.mark.parametrize("bits", quick_first(BITS))
def test_torch_traces_exports_and_compiles_it(bits: int) -> None:
    packed, value = layer(bits=bits, dtype=torch.float32), torch.randn(2, 100)
    wanted = exact(packed, value)
    traced = torch.jit.trace(packed, torch.randn(2, 100), check_trace=False)
    assert_near(traced(value), wanted, 1e-5)
    exported = torch.export.export(packed, (value,)).module()
    assert_near(exported(value), wanted, 1e-5)
    compiled: Any = torch.compile(packed, backend="eager", fullgraph=True)
    assert_near(compiled(value), wanted, 1e-5)
    assert_near(torch.vmap(packed)(value), wanted, 1e-5)


def test_gradients_of_the_input_are_right() -> None:
    packed = layer(dtype=torch.float32)
    value = torch.randn(2, 100, requires_grad=True)
    first = packed(value)
    layer(300, 100)(torch.randn(30, 300))
    first.sum().backward()
    assert value.grad is not None
    torch.testing.assert_close(value.grad, packed.weight.sum(0).expand(2, 100))


def test_a_layer_is_copied_and_pickled_and_loads_nothing() -> None:
    packed, value = layer(bits=4), torch.randn(1, 100)
    file = io.BytesIO()
    torch.save(packed, file)
    file.seek(0)
    for other in (copy.deepcopy(packed), torch.load(file, weights_only=False)):
        assert torch.equal(other(value), packed(value))
    with pytest.raises(NotImplementedError, match="original model"):
        packed.load_state_dict(packed.state_dict())
    assert "weight_bits=4" in repr(packed)


@pytest.mark.parametrize("bits", BITS)
def test_weights_that_are_stored_by_inputs_are_copied_by_blocks(
    bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_weights, "COPIED_WEIGHTS", 1000)
    stored = torch.randn(70, 110)
    found, wanted = PackedWeight.of(stored.T, bits), PackedWeight.of(stored.T.contiguous(), bits)
    assert torch.equal(found.values, wanted.values)
    assert torch.equal(found.scales, wanted.scales)


def test_a_packed_weight_is_split_by_rows() -> None:
    packed, value = PackedWeight.of(torch.randn(30, 70), 4), torch.randn(1, 70)
    whole = linear_rows(value, packed, None)
    parts = [linear_rows(value, one, None) for one in packed.split([8, 9, 13])]
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    with pytest.raises(OperatorError, match="not finite"):
        PackedWeight.of(torch.tensor([[1.0, math.nan]]), 8)
    with pytest.raises(OperatorError, match=r"float64.*INVALID_TYPE"):
        PackedWeight.of(torch.ones(2, 2, dtype=torch.float64), 8)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"weight_bits": 3}, "weight_bits=3: allowed are 8 and 4"),
        ({"weight_bits": True}, "weight_bits=True: allowed are 8 and 4"),
        ({"weight_bits": "8"}, "weight_bits='8': allowed are 8 and 4"),
        ({"weight_bits": 8, "head_bits": 2}, "head_bits=2: allowed are 8 and 4"),
        ({"head_bits": 8}, "head_bits=8 goes with weight_bits"),
        ({"weight_bits": 8, "dtype": torch.float16}, r"not in torch\.float16: load the model"),
        ({"weight_bits": 8, "level": "O0"}, "level='O0' changes no numerics"),
        ({"weight_bits": 8, "sample_input": IDS}, "leave sample_input out"),
    ],
)
def test_bad_arguments_get_one_line(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(OptimizationError, match=words) as caught:
        optimize(decoder("llama"), **arguments)
    assert "\n" not in str(caught.value)


def test_models_that_it_is_not_for() -> None:
    with pytest.raises(OptimizationError, match="with transformers' generate"):
        optimize(nn.Linear(200, 200).eval(), weight_bits=8)
    with pytest.raises(OptimizationError, match="training mode"):
        optimize(decoder("llama", **LARGE).train(), weight_bits=8)
    with pytest.raises(OptimizationError, match=r"not in torch\.float16"):
        optimize(decoder("llama", torch.float16, **LARGE), weight_bits=8)
    with pytest.raises(OptimizationError, match=r"has no nn.Linear of at least \d+ weights"):
        optimize(decoder("llama", hidden_size=12, intermediate_size=8), weight_bits=8)
    model = decoder("llama", **LARGE)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = math.inf
    kinds = [type(it) for it in model.modules()]
    with pytest.raises(OptimizationError, match=r"layers\.1\.mlp\.up_proj: .*not finite"):
        optimize(model, weight_bits=8, inplace=True)
    assert [type(it) for it in model.modules()] == kinds


def test_a_quantized_checkpoint_stays() -> None:
    model = decoder("llama", **LARGE)
    model.config.quantization_config = {"quant_method": "gptq", "bits": 4}
    step = explain(optimize(model, weight_bits=8)).step("weight_bits")
    assert step.outcome is PassOutcome.SKIPPED
    assert "quantized already" in step.reason
    assert "gptq" in step.reason
