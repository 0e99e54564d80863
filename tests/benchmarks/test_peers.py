# SPDX-License-Identifier: Apache-2.0
"""The commands of the peers do what they are named for, and a file of results gives its table again."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.harness.bar_chart import Bar, read_panels, svg
from benchmarks.harness.turns import DIRECTORY, ContenderResults, LaunchResults
from benchmarks.harness.works import MODULES, named_work
from benchmarks.launching.peers import (
    PEERS,
    Peers,
    best_of,
    cell,
    panels,
    print_rows,
    read_rows,
)
from tests.golden import Golden
from tests.libraries import find_library


def asked(**given) -> argparse.Namespace:
    defaults = {"peers": PEERS, "instances": [2], "tcmalloc": None, "jemalloc": None}
    return argparse.Namespace(**{**defaults, "ipex_python": None, **given})


def measured(*rates: float) -> ContenderResults:
    return ContenderResults(tuple(LaunchResults([rate], [], [], []) for rate in rates))


def test_a_work_is_read_from_its_name() -> None:
    work = named_work("bert-training-bf16-8")
    assert work.arguments == ["bert-training", "--dtype", "bfloat16", "--batch", "8"]
    assert work.items == 8
    assert named_work("sentences").items == 6 * 32
    assert named_work("served-bf16-16").arguments[-2:] == ["--clients", "16"]
    assert (
        named_work("torchvision:regnet_y_400mf-fp32").arguments[0] == "torchvision:regnet_y_400mf"
    )
    for wrong in ("nothing", "keras:vgg16", "timm:", ""):
        with pytest.raises(argparse.ArgumentTypeError):
            named_work(wrong)


def test_every_named_work_is_one_of_the_workloads() -> None:
    pytest.importorskip("torch")
    from benchmarks.harness.workloads import MODELS, OTHERS

    assert set(MODULES) == {*MODELS, *OTHERS, "served"}


def test_a_missing_package_is_named() -> None:
    work = named_work("resnet50")._replace(arguments=["absent_library:model"])
    assert work.missing_modules() == ["absent_library"]


def test_the_fastest_count_of_instances_is_shown() -> None:
    row = {
        "python": measured(10, 10),
        "xlaunch+instances=2": measured(30, 30),
        "xlaunch+instances=8": measured(250, 250),
    }
    best = best_of(row)
    assert cell(best, "xlaunch+instances", "python") == "250 by 8 (25.00 [25.00, 25.00])"
    assert cell(best, "python", "python") == "10"
    assert cell(best, "numactl", "python") == "-"


def test_a_file_of_results_gives_its_table_again(golden: Golden, tmp_path, capsys) -> None:
    row = {
        "python": measured(10, 10),
        "python+tcmalloc": measured(20, 20),
        "xlaunch": measured(19, 19),
    }
    content = {
        "machine": "a machine",
        "absent": {"numactl": "numactl is not installed"},
        "raw": {"digits": {name: one.plain() for name, one in row.items()}},
    }
    file = tmp_path / "peers.json"
    file.write_text(json.dumps(content))
    machine, absent, rows = read_rows(file)
    print_rows(rows, absent)
    printed = capsys.readouterr().out
    assert machine == "a machine"
    golden(printed)


def test_bars_are_the_rates_of_peers_that_did_every_work(golden: Golden, tmp_path) -> None:
    rows = {
        "digits": {
            "python": measured(10, 10),
            "numactl": measured(9, 9),
            "xlaunch+instances=2": measured(19, 19),
            "xlaunch+instances=8": measured(20, 20),
        },
        "sentences": {"python": measured(4, 4), "xlaunch+instances=2": measured(5, 5)},
    }
    digits, sentences = panels(rows)
    assert [(bar.name, bar.rate, round(bar.ratio, 6)) for bar in digits.bars] == [
        ("python", "10", 1),
        ("xlaunch+instances", "20 by 8", 2),
    ]
    assert [bar.name for bar in sentences.bars] == ["python", "xlaunch+instances"]
    golden(svg([digits, sentences]))
    del rows["digits"]["python"]
    assert panels(rows) == []


def test_the_picture_of_readme_is_that_of_the_published_table() -> None:
    docs = Path(__file__).parents[2] / "docs"
    text = (docs / "measurements.md").read_text()
    drawn = read_panels(text, "Beside what a reader would type")
    assert [panel.title for panel in drawn] == ["ResNet-50", "BERT-base"]
    assert drawn[0].bars[-1] == Bar("xlaunch --instances 8", "615", 2.66, 2.09, 3.40)
    assert (docs / "pictures" / "peers.svg").read_text() == svg(drawn)


PRINT_ALLOCATORS = """
import sys
found = [line.split()[-1] for line in open("/proc/self/maps") if "malloc" in line][:1]
sys.stdout.write(f"{found}\\n")  # at once: two instances write to one pipe
"""


@pytest.mark.long
def test_each_preload_is_in_the_process(tmp_path, needs) -> None:
    pytest.importorskip("torch")
    found = find_library("tcmalloc", sys.prefix, {})
    needs(found, "libtcmalloc (Debian: libtcmalloc-minimal4)")
    file = tmp_path / "carried_tcmalloc.so"
    file.write_bytes(Path(found.path).read_bytes())
    script = tmp_path / "script.py"
    script.write_text(f"def uses() -> None:\n    import torch\n\n\n{PRINT_ALLOCATORS}")
    (tmp_path / "peers").mkdir()
    peers = Peers(asked(tcmalloc=file), tmp_path / "peers")
    loaded = {}
    for name, contender in peers.contenders(named_work("digits")).items():
        command = [word for word in contender.command if word != DIRECTORY]
        at = next(i for i, word in enumerate(command) if word.endswith("workloads.py"))
        done = subprocess.run(
            [*command[:at], str(script)], capture_output=True, text=True, check=False, timeout=120
        )
        loaded[name] = done.stdout.strip().splitlines()[-1] if done.returncode == 0 else done.stderr
    assert loaded["python"] == "[]"
    for name in ("python+tcmalloc", "run_cpu+tcmalloc", "run_cpu+instances=2", "xlaunch"):
        assert loaded[name] == f"['{file}']", name
    if "python+jemalloc" in loaded:
        assert "jemalloc" in loaded["python+jemalloc"]
