# SPDX-License-Identifier: Apache-2.0
"""What each rule finds beyond its example, and what it leaves alone."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from tests.launcher.doctor.lint.checking import codes_in, findings_in

PARSER = "import argparse\nparser = argparse.ArgumentParser()\n"
MODEL = """\
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.dropout = nn.Linear(8, 2), nn.Dropout()
    def forward(self, x):
        return self.dropout(self.layer(x))
"""
SETUP = """\
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = Net().to(device)
optimizer = optim.SGD(model.parameters(), lr=0.1)
train_loader, test_loader = DataLoader(train_set), DataLoader(test_set)
"""
TRAIN = """\
def train(model, device, loader, optimizer):
    model.train()
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
"""
EVALUATE = """\
def test(model, device, loader):
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            output = model(x.to(device))
"""
LOOP = """\
for epoch in range(9):
    train(model, device, train_loader, optimizer)
    test(model, device, test_loader)
"""
WHOLE = MODEL + TRAIN + EVALUATE + SETUP + LOOP

FOUND = {
    "XL001": [
        PARSER + "parser.add_argument('--x', type=bool, nargs='?', const=True)",
        PARSER + "g = parser.add_argument_group()\ng.add_argument('--x', type=bool, default=False)",
        PARSER + "parser.add_argument('--x', type=lambda v: bool(v))",
    ],
    "XL002": [
        PARSER + "parser.add_argument('--no-x', dest='x', action='store_false', default=False)",
        "import click\n@click.option('--x', is_flag=True, default=True)\ndef f(x): ...",
        "import typer\ndef f(x: bool = typer.Option(True, '--x')): ...",
    ],
    "XL003": [
        PARSER + "parser.add_argument('--x', default=-0.5)",
        PARSER + "parser.add_argument('--x', default=[1, 2], nargs='+')",
        PARSER + "parser.add_argument('--x', default=['a'])",
        PARSER + "parser.add_argument('--x', default=True)",
        PARSER + "parser.add_argument('--x', default=1, choices=[1, 2])",
        PARSER + "parser.add_argument('--x', nargs='?', const=True, default=True)",
    ],
    "XL004": [
        "import os\nx = bool(os.environ['X'])",
        "from os import getenv\nx = bool(getenv('X', 'False'))",
        "import os\nx = bool(os.environ.get('USE_FP16'))",
    ],
    "XL010": [
        "import torch\nfrom data import get_loader\nloader = get_loader()\nfor x, y in loader:\n    x.cuda()",
        "import torch as t\nx = t.zeros(3)\nx.cuda()",
        MODEL + "for x, y in DataLoader(data):\n    x.to('cuda')",
        "import torch\ndef f(x: torch.Tensor):\n    x.half()",
        MODEL + "for parameter in Net().parameters():\n    parameter.to('cuda')",
    ],
    "XL025": [
        WHOLE.replace("model.eval()", "correct = 0").replace("output = model", "loss = model"),
        WHOLE.replace("    model.eval()", "    #model.eval()").replace(
            "output = model(x.to(device))", "correct = model(x.to(device)).argmax(1)"
        ),
    ],
    "XL030": [
        WHOLE.replace("loss.backward()\n", "loss.backward()\n        print(loss)\n"),
        WHOLE.replace("loss.backward()\n", "loss.backward()\n        print(f'{loss}')\n"),
        WHOLE.replace("loss.backward()\n", "loss.backward()\n        total += float(loss)\n"),
        MODEL
        + "model = Net().cuda()\ndef step(x):\n    loss = model(x).sum()\n    loss.backward()\n"
        "    return loss.detach()\nfor x in data:\n    print(step(x).item())\n",
    ],
    "XL040": [
        "import numpy as np\nimport os\nos.environ.setdefault('OPENBLAS_NUM_THREADS', '2')",
        "import os, torch\nos.environ.update(OMP_NUM_THREADS='2')",
        "import os, torch\nos.environ.update({'MKL_NUM_THREADS': '2'})",
        "import os, torch\ndef main():\n    os.environ['OMP_NUM_THREADS'] = '1'\nmain()",
    ],
    "XL041": ["from torch import set_num_threads\nset_num_threads(4)"],
    "XL050": [
        "from intel_extension_for_pytorch import optimize",
        "if args.intelligent:\n    import intel_extension_for_pytorch",
        "import intel_extension_for_pytorch",
    ],
    "XL051": [
        "from torch.cuda.amp import autocast, GradScaler",
        "from torch.cuda import amp\nif options.image_generator:\n    amp.autocast()",
        "import torch\n@torch.cuda.amp.custom_fwd\ndef f(): ...",
        "from torch import cuda\nscaler = cuda.amp.GradScaler()",
    ],
}
LEFT_ALONE = {
    "the caller sets the mode": WHOLE.replace("    model.eval()\n", "").replace(
        "    test(model", "    model.eval()\n    test(model"
    ).replace("output = model", "loss = model"),
    "no layer that the mode changes": WHOLE.replace("model.eval()", "correct = 0")
    .replace("output = model", "loss = model")
    .replace("nn.Dropout()", "nn.ReLU()"),
    "no library reads it": "import os, numpy\nos.environ['KMP_AFFINITY'] = 'compact'",
    "not read by numpy": "import os, numpy\nos.environ['MKL_NUM_THREADS'] = '2'",
    "still read by torch": "import os, numpy\nos.environ['OMP_NUM_THREADS'] = '2'\nimport torch",
    "sparse gradients": "import torch\ne = torch.nn.Embedding(9, 9, sparse=True)\n"
    "torch.optim.SGD(e.parameters(), lr=1)",
    "jsonargparse": "from jsonargparse import ArgumentParser\nArgumentParser().add_argument('--x', type=bool)",
    "another bool": "from values import bool\n" + PARSER + "parser.add_argument('--x', type=bool)",
    "click reads bool": "import click\n@click.option('--x', type=bool)\ndef f(x): ...",
    "click with an opposite": "import click\n@click.option('--x/--no-x', is_flag=True, default=True)\n"
    "def f(x): ...",
    "two flags for one value": PARSER
    + "parser.add_argument('--x', dest='x', action='store_true', default=True)\n"
    "parser.add_argument('--no-x', dest='x', action='store_false')",
    "converted where it is used": PARSER
    + "parser.add_argument('--x', default=1)\nx = int(parser.parse_args().x)",
    "converted one by one": PARSER
    + "parser.add_argument('--x', nargs='+', default=(1, 2))\nx = [int(n) for n in parser.parse_args().x]",
    "options from elsewhere": PARSER + "parser.add_argument('--x', default=1, **more)",
    "three states": PARSER + "parser.add_argument('--x', nargs='?', const=True, default=False)",
    "whether a variable is set": "import os\nx = bool(os.environ.get('DISPLAY'))",
    "a number in a variable": "import os\nx = bool(int(os.environ.get('X', '0')))",
    "modules move in place": MODEL + "model = Net()\nmodel.to('cuda')",
    "unknown objects": "import torch\nbatch.to('cuda')",
    "batches of objects": "import torch_geometric\nfrom torch.utils.data import DataLoader\n"
    "for x, y in DataLoader(data, collate_fn=join):\n    x.to('cuda')",
    "the usual script": WHOLE,
    "reads now and then": WHOLE.replace(
        "loss.backward()\n", "loss.backward()\n        if step % 9 == 0:\n            print(loss.item())\n"
    ),
    "outputs that are kept": WHOLE.replace(
        "loss.backward()\n", "loss.backward()\n        kept.append(model(x).cpu().numpy())\n"
    ),
    "actions of an environment": WHOLE.replace(
        "loss.backward()\n", "loss.backward()\n        action = y.argmax()\n        environment.step(action.item())\n"
    ),
    "numbers read before": WHOLE.replace(
        "loss.backward()\n", "loss.backward()\n        losses = len(x)\n        print(epoch, losses.bit_length())\n"
    ),
    "reads without a device": MODEL
    + "model = Net()\nfor x, y in DataLoader(data):\n    loss = F.cross_entropy(model(x), y)\n"
    "    loss.backward()\n    total += loss.item()\n",
    "threads for children": "import os, subprocess, torch\nos.environ['OMP_NUM_THREADS'] = '1'",
    "threads for ranks": "import os, torch.multiprocessing as mp\nos.environ['OMP_NUM_THREADS'] = '1'",
    "threads of a test": "import pytest, torch\ntorch.set_num_threads(2)",
    "threads that are compared": "import torch\nfor n in counts:\n    torch.set_num_threads(n)",
    "one thread on purpose": "import torch\ntorch.set_num_threads(1)",
    "threads that are restored": "import torch\nn = torch.get_num_threads()\ntorch.set_num_threads(4)",
    "an optional extension": "try:\n    import intel_extension_for_pytorch\nexcept ImportError: ...",
    "autocast by version": "import torch\nif version >= (2, 4):\n    a = torch.amp.autocast('cuda')\n"
    "else:\n    a = torch.cuda.amp.autocast()",
    "the name of another version": "import torch\nif NEW:\n    from torch.amp import GradScaler\n"
    "else:\n    from torch.cuda.amp import GradScaler",
    "named, not used": "import torch\nx in (torch.cuda.amp.autocast, 1)",
}  # fmt: skip


@pytest.mark.parametrize(
    ("code", "text"), [(code, text) for code, texts in FOUND.items() for text in texts]
)
def test_found(code: str, text: str, tmp_path: Path):
    assert code in codes_in(text, tmp_path)


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_left_alone(case: str, tmp_path: Path):
    assert codes_in(textwrap.dedent(LEFT_ALONE[case]), tmp_path) == []


def test_no_advice_on_a_few_tensors_and_on_unknown_counts(tmp_path: Path):
    loader = "DataLoader(data, num_workers=workers)\n"
    text = f"{MODEL}{loader}optim.Adam([alpha])\n"
    assert codes_in(text, tmp_path, hints=True) == []
    other = text.replace("=workers", "=99999").replace("[alpha]", "alphas")
    assert codes_in(other, tmp_path, hints=True) == ["XL104", "XL106"]


def test_advice_on_the_first_optimizer(tmp_path: Path):
    names = ("SGD", "Adagrad", "AdamW", "Adam", "SGD")
    text = "import torch\n" + "".join(f"torch.optim.{name}(parameters)\n" for name in names)
    (found,) = findings_in(text, tmp_path, hints=True)
    assert (found.line, found.code) == (2, "XL106")


def test_deep_and_long_expressions(tmp_path: Path):
    long = "import torch\nx = torch.ones(1)" + " + 1" * 900 + "\nx.cuda()\n"
    assert codes_in(long, tmp_path) in ([], ["XL010"])
    circle = "import torch\na = b\nb = c\nc = a\na.to('cuda')\n"
    assert codes_in(circle, tmp_path) == []
