# SPDX-License-Identifier: Apache-2.0
"""Numbers on lines: which one is meant, and what kind it is of."""

from __future__ import annotations

import itertools
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlaunch.errors import UsageError
from xlaunch.metrics.metric_lines import (
    MAX_LINE,
    LineSplitter,
    MetricKind,
    Value,
    conversion,
    convert,
    kind_of,
    parse_metric,
)


def number_on(metric: str, line: str) -> float | None:
    value = parse_metric(metric).read(line)
    return None if value is None else value.number


@pytest.mark.parametrize(
    ("metric", "line", "number"),
    [
        ("sentences/s", "123.4 sentences/s", 123.4),
        ("sentences/s", "in 2.50 s on 4 thread(s): 123.4 sentences/s", 123.4),
        ("sentences/s", "12.5sentences/s", 12.5),
        ("sentences/s", "{'sentences/s': '123.4'}", 123.4),
        ("sentences/s", "1e3 sentences/s", 1000.0),
        ("sentences/s", "1.5E+02 sentences/s", 150.0),
        ("sentences/s", "1,234.5 sentences/s", 1234.5),
        ("sentences/s", "~123 sentences/s (best)", 123.0),
        ("sentences/s", "120.0 sentences/s, 3 left", 120.0),
        ("sentences/s", ".5 sentences/s", 0.5),
        ("sentences/s", "-5 sentences/s", -5.0),
        ("images", "images: 12.", 12.0),
        ("loss", "step 12 loss 0.25 accuracy 0.9", 0.25),
        ("accuracy", "step 12 loss 0.25 accuracy 93%", 93.0),
        ("loss", "epoch 3, loss=2.5e-3", 0.0025),
        ("it", "it: -3", -3.0),
        ("latency", "latency: 12.5ms", 12.5),
        ("latency", "latency 12.5 ms", 12.5),
        ("s", "12.5 s", 12.5),
        ("total time", "total time: 3", 3.0),
        ("a.b", "a.b 3", 3.0),
        ("a(b)", "", None),
        (r"took ([\d.]+) of", "took 12.5 of 13", 12.5),
        (r"x=([^ ]+)", "x=1,234 y", 1234.0),
        # What only looks like it.
        ("sentences/s", "sentences/s", None),
        ("sentences/s", "no sentences/s: 0x10", None),
        ("sentences/s", "12,34 sentences/s", None),
        ("sentences/s", "v1.2.3 sentences/s", None),
        ("sentences/s", "1.2k sentences/s", 1200.0),
        ("sentences/s", "sentences/s: 1.2k", 1200.0),
        ("sentences/s", "sentences/s: 12k", 12000.0),
        ("loss", "nano loss 3", 3.0),
        ("loss", "loss nanometre", None),
        ("loss", "loss: infer", None),
        ("sentences/s", "123 sentences/sec", None),
        ("sentences/s", "3-12 sentences/s", None),
        ("images", "120 images/s", None),
        ("loss", "val_loss: 1", None),
        ("loss", "val-loss: 1 train/loss: 2 closs: 3", None),
        ("s", "12 ms", None),
        ("a.b", "axb 3", None),
        (r"x=([^ ]+)", "x=many", None),
        (r"x(=(\d))?", "x", None),
    ],
)  # fmt: skip
def test_number_on_a_line(metric: str, line: str, number: float | None):
    assert number_on(metric, line) == number


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("latency: 12 ms", Value(12.0, "ms")), ("latency=12us", Value(12.0, "us")),
        ("latency 1.5 seconds", Value(1.5, "seconds")), ("latency: 12 requests", Value(12.0, None)),
        ("latency: 12", Value(12.0, None)), ("latency: 12 ms/step", Value(12.0, None)),
        ("latency 12 microseconds", Value(12.0, "microseconds")), ("latency=1.5m", Value(1.5, "m")),
        ("latency: 2 min", Value(2.0, "min")), ("latency: 1 hour", Value(1.0, "hour")),
    ],
)  # fmt: skip
def test_unit_of_a_time(line: str, value: Value):
    assert parse_metric("latency").read(line) == value


@pytest.mark.parametrize(
    ("metric", "line", "value"),
    [
        ("throughput", "throughput: 12.3k/s", Value(12300.0, "/s")),
        ("throughput", "throughput: 1.2GB/s", Value(1.2, "GB/s")),
        ("throughput", "throughput 900 MiB/s,", Value(900.0, "MiB/s")),
        ("throughput", "throughput: 12.5k items/min", Value(12500.0, "items/min")),
        ("throughput", "throughput: 90 Mbps", Value(90.0, "Mbps")),
        ("peak", "peak: 900MB", Value(900.0, "MB")), ("peak", "peak: 12 bytes", Value(12.0, "bytes")),
        ("accuracy", "accuracy: 93 %", Value(93.0, "%")), ("accuracy", "accuracy: 0.93", Value(0.93, None)),
        ("median", "median: 1.5 s", Value(1.5, "s")), ("median", "median: 12.5 +- 0.3 us", Value(12.5, "us")),
        (r"speed ([0-9.]+)", "speed 12 GB/s", Value(12.0, "GB/s")),
        ("loss", "loss 0.5 bits, 3", Value(0.5, "bits")), ("loss", "loss 0.5 big", Value(0.5, None)),
        # The name is the unit.
        ("MB/s", "MB/s: 12", Value(12.0, None)), ("MB/s", "12 MB/s", Value(12.0, None)),
        ("B/s", "0.12 GB/s", Value(1.2e8, None)), ("%", "93%", Value(93.0, None)),
    ],
)  # fmt: skip
def test_unit_of_other_numbers(metric: str, line: str, value: Value):
    assert parse_metric(metric).read(line) == value


@pytest.mark.parametrize(
    ("metric", "line"),
    [
        ("latency", "latency: 1:30"), ("latency", "latency: 00:01:30"), ("latency", "latency: 1m 30s"),
        ("latency", "latency: 1 h, 2 min"), ("latency", "latency: 1h 30 m"), ("latency", "latency: 1m30s"),
        ("latency", "latency: 2 min and 3 s"), ("latency", "latency: 1s 500ms"), ("latency", "latency: 1 day, 2:03:04"),
        ("items/s", "1'234.5 items/s"), ("items/s", "items/s: 1\u202f234"), ("items/s", "1\u00a0234 items/s"),
        ("items/s", "1\u2009234 items/s"), ("items/s", "items/s: 1 234.5"), ("items/s", "items/s: 29-31"),
        ("throughput", "throughput: 1.2 million items/s"),
    ],
)  # fmt: skip
def test_a_part_of_a_number_is_not_read(metric: str, line: str):
    assert parse_metric(metric).read(line) is None


@pytest.mark.parametrize(
    ("metric", "line"),
    [
        ("loss", "step 9 loss nan"), ("loss", '{"loss": NaN, "step": 9}'), ("loss", "loss=-inf"),
        ("loss", "loss: Infinity"), ("sentences/s", "inf sentences/s"), ("sentences/s", "1e999 sentences/s"),
        ("latency", "latency: nan ms"), (r"loss=(\S+)", "loss=NaN"),
    ],
)  # fmt: skip
def test_numbers_that_are_not_finite(metric: str, line: str):
    value = number_on(metric, line)
    assert value is not None
    assert not math.isfinite(value)


@pytest.mark.parametrize(
    ("metric", "line", "number"),
    [
        ("it/s", "10/100 [00:10<01:39, 1.25s/it]", 0.8), ("s/it", "10/100 [00:04<00:36, 2.50it/s]", 0.4),
        ("images/s", "1.25s/ images", 0.8), ("s/it", "1.25kit/s", 0.0008), ("it/s", "0.00s/it", None),
        ("it/s", "1.25s/item", None), ("it/s", "2.50it/s, 1.25s/it", 2.5),
    ],
)  # fmt: skip
def test_a_rate_may_be_printed_as_its_inverse(metric: str, line: str, number: float | None):
    assert number_on(metric, line) == number


def test_millions_are_no_minutes():
    assert number_on("params", "params: 12m") is None


def test_units_are_converted_to_the_first():
    assert convert(Value(1.5, "min"), "s") == 90.0
    assert convert(Value(1500.0, "us"), "ms") == pytest.approx(1.5)
    assert convert(Value(2.0, "s"), "ms") == pytest.approx(2000)
    assert convert(Value(2.0, None), "ms") == 2.0
    assert convert(Value(1.2, "GB/s"), "MB/s") == pytest.approx(1200)
    assert convert(Value(90.0, "Mbit/s"), "MB/s") == pytest.approx(11.25)
    assert convert(Value(1.0, "GiB"), "KiB") == 1 << 20
    assert convert(Value(750.0, "items/min"), "items/s") == pytest.approx(12.5)
    assert conversion("%", "s") is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sentences/s", MetricKind.RATE), ("tokens/sec", MetricKind.RATE), ("images per second", MetricKind.RATE),
        ("images_per_s", MetricKind.RATE), ("samples/min", MetricKind.RATE), ("fps", MetricKind.RATE),
        ("throughput", MetricKind.RATE), ("Throughput", MetricKind.RATE), (r"([\d.]+) images/s", MetricKind.RATE),
        ("latency", MetricKind.TIME), ("latency_ms", MetricKind.TIME), ("ms", MetricKind.TIME), ("s", MetricKind.TIME),
        ("µs", MetricKind.TIME), ("step time", MetricKind.TIME), ("s/it", MetricKind.TIME), ("ms/step", MetricKind.TIME),
        ("elapsed", MetricKind.TIME), (r"took ([\d.]+) ms", MetricKind.TIME),
        ("loss", MetricKind.VALUE), ("accuracy", MetricKind.VALUE), ("timeouts", MetricKind.VALUE),
        ("GB/step", MetricKind.VALUE), (r"loss\s+([\d.]+)", MetricKind.VALUE), ("rate", MetricKind.VALUE),
    ],
)  # fmt: skip
def test_kind_of_a_name(name: str, kind: MetricKind):
    assert kind_of(name) is kind
    assert parse_metric(name).kind is kind


@pytest.mark.parametrize("kind", list(MetricKind))
def test_kind_may_be_said(kind: MetricKind):
    metric = parse_metric(f"{kind.value}:total")
    assert (metric.kind, metric.name) == (kind, "total")
    assert metric.read("total: 4") == Value(4.0, None)


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("step=took ([0-9.]+) s a", "took 2.5 s a step", ("step", MetricKind.TIME, 2.5)),
        ("images/s=did ([0-9]+) images", "did 12 images", ("images/s", MetricKind.RATE, 12.0)),
        ("value:a b=x=([0-9]+)", "x=3", ("a b", MetricKind.VALUE, 3.0)),
    ],
)
def test_a_regular_expression_may_have_a_name(
    text: str, line: str, expected: tuple[str, MetricKind, float]
):
    metric = parse_metric(text)
    assert (metric.name, metric.kind, metric.read(line).number) == expected


@pytest.mark.parametrize(
    "text", [r"loss=([0-9.]+)", r"loss=\s*([0-9.]+)", "loss= ([0-9.]+)", "=a(.)"]
)
def test_an_expression_that_only_has_a_name_before_its_group_is_used_whole(text: str):
    metric = parse_metric(text)
    assert metric.name == text
    assert metric.read("acc=7") is None


def test_time_is_another_word_for_latency():
    assert parse_metric("time:total") == parse_metric("latency:total")


def test_other_words_before_a_colon_are_part_of_the_name():
    metric = parse_metric("train:loss")
    assert metric.name == "train:loss"
    assert metric.read("train:loss 4") == Value(4.0, None)


def test_reported_line():
    for line in (
        "ttft 12.5",
        "ttft: 12.5",
        "ttft = 12.5",
        "  ttft 12.5  ",
        "first ttft 12.5 after",
    ):
        assert parse_metric("ttft").read_report(line) == Value(12.5, None)
    assert parse_metric("a b/c: d").read_report("a b/c: d 1e-3") == Value(0.001, None)
    assert parse_metric("ms").read_report("ms 3") == Value(3.0, "ms")
    assert parse_metric("loss").read_report("loss many") is None


@pytest.mark.parametrize("text", ["", " ", "rate:", "latency: ", "x(", "(?:x)", "x(?P<", "(" * 200])
def test_metric_that_cannot_be(text: str):
    with pytest.raises(UsageError, match=re.escape(repr(text))):
        parse_metric(text)


NAMES = st.sampled_from(["sentences/s", "loss", "ms", "latency", "tokens per second", "%", "a[0]"])


@given(
    NAMES,
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["{}: {}", "{}={}", "{} = {}", '"{}": {}', "{} {}"]),
    st.sampled_from(["", "step 7: ", "[3/9] "]),
    st.sampled_from(["", " ok", ", 5 left", ")"]),
)
def test_number_behind_its_name(name: str, number: float, form: str, before: str, after: str):
    assert number_on(name, before + form.format(name, repr(number)) + after) == number


@given(st.sampled_from(["images/s", "ms", "fps"]), st.integers(0, 10**12), st.booleans())
def test_number_before_its_unit(unit: str, number: int, thousands: bool):
    text = f"{number:,}" if thousands else str(number)
    assert number_on(unit, f"step 7 of 9: {text} {unit}; 3 left") == number


@given(st.text(max_size=30), st.text(max_size=60))
def test_any_line_is_read_or_not_but_never_fails(metric: str, line: str):
    try:
        wanted = parse_metric(metric)
    except UsageError:
        return
    value = wanted.read(line)
    assert value is None or isinstance(value.number, float)
    wanted.read_report(line)


# Lines


def lines_of(chunks: list[bytes]) -> list[str]:
    splitter = LineSplitter()
    found = [line for chunk in chunks for line in splitter.feed(chunk)]
    return [*found, *splitter.finish()]


def test_lines_end_at_newlines_and_updates():
    assert lines_of([b"a\nb\r\nc\rd", b"e\n\n", b"last"]) == ["a", "b", "c", "de", "last"]
    assert lines_of([b"loss 0.5\b\b\b0.4"]) == ["loss 0.5", "0.4"]


def test_a_long_line_ends_before_a_number_that_would_be_cut():
    long = b" " * (MAX_LINE - len("loss: 0.2"))
    (line,) = lines_of([long + b"loss: 0.25"])
    assert number_on("loss", line) is None
    (line,) = lines_of([long[1:] + b"loss: 0.25"])
    assert number_on("loss", line) == 0.25


def test_colours_are_no_part_of_a_line():
    (line,) = lines_of([b"\x1b[1;32m123.4\x1b[0m images/s\x1b[K"])
    assert number_on("images/s", line) == 123.4


def test_bytes_that_are_no_text():
    assert lines_of([b"\xff 1 ms\n"]) == ["\ufffd 1 ms"]


def test_endless_line_is_not_kept():
    splitter = LineSplitter()
    for _ in range(100):
        assert list(splitter.feed(b"x" * 65536)) == []
    (line,) = splitter.feed(b"\n")
    assert line == "x" * MAX_LINE


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_how_the_bytes_arrive_does_not_matter(data: bytes, cuts: list[int]):
    cuts = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    chunks = [data[low:high] for low, high in itertools.pairwise(cuts)]
    assert lines_of(chunks) == lines_of([data])
