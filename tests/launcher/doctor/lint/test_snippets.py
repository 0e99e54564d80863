# SPDX-License-Identifier: Apache-2.0
"""What each rule finds beyond its example, and what it leaves alone."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from tests.golden import Golden
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

UNSET = WHOLE.replace("model.eval()", "correct = 0").replace("output = model", "loss = model")

TRAIN_OF_CALLER = "import torch\nfrom torch.nn import functional as F\n" + TRAIN
METHOD = """\
import torch
class Trainer:
    def one(self, x):
        loss = self.model(x.cuda())
        loss.backward()
        return loss.item()
"""
OPTIONS = PARSER + "".join(f"parser.add_argument('--{name}')\n" for name in ("a", "b", "unread"))
STEP = "loss.backward()\n"
IN_STEP = "loss.backward()\n        "
TRAINING = MODEL + SETUP + TRAIN + LOOP.replace("    test(model, device, test_loader)\n", "")
EPOCHS = "import torch\nfrom torch.utils.data import *\ndef train():\n    for epoch in range(9):\n"
BUILT = "        for x in DataLoader(data, num_workers=2, pin_memory=True):\n            net(x).backward()\n"
BF16 = "from torch import autocast\nwith autocast('cuda', dtype=torch.bfloat16):\n    x = scaler.scale(model(x))\n"
CHOICE = "import torch\nd = 'cuda' if torch.cuda.is_available() else 'cpu'\n"
CLICK = "import click\n@click.command()\n@click.option('--lr')\n@click.option('--batch')\n"
MAKE = """\
            net(x).backward()
def make(data, shuffle):
    return DataLoader(data, shuffle=shuffle, num_workers=2)
"""
SCORE = """\
@torch.no_grad()
def score(model, device, batches):
    for x, y in batches:
        right += (model(x.to(device)).argmax(1) == y).sum()
"""
AGENT = """\
import torch
class Agent:
    def learn(self, loss):
        self.optimizer.step()
    def __init__(self):
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1)
"""
FOUND = {
    "XL001": [
        PARSER + "parser.add_argument('--x', type=bool, nargs='?', const=True)",
        PARSER + "g = parser.add_argument_group()\ng.add_argument('--x', type=bool, default=False)",
        PARSER + "parser.add_argument('--x', type=lambda v: bool(v))",
        "import configargparse\np = configargparse.ArgParser()\np.add('--x', type=bool)",
        PARSER + "parser.add_argument('--x', type=bool)\na, _ = parser.parse_known_args()",
    ],
    "XL005": [PARSER + f"parser.add_argument('--x', type={name})" for name in ("tuple", "dict")],
    "XL006": [
        OPTIONS
        + "def main(args):\n    run(args.a, args.b)\nargs = parser.parse_args()\nmain(args)",
        OPTIONS.replace(PARSER, f"{PARSER}def build(): return parser\n")
        + "a = build().parse_args()\nrun(a.a, a.b)",
        OPTIONS.replace(PARSER, f"{PARSER}def read(): return parser.parse_args()\n")
        + "a = read()\nrun(a.a, a.b)",
        CLICK + "def fit(lr, batch): print(lr)",
        CLICK.replace("'--batch'", "'-b', '--batch', 'size'") + "def fit(lr, size): print(lr)",
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
        PARSER + "parser.add_argument('--x', type=str, default='False')\nif not args.x: ...",
        "from absl import flags\nflags.DEFINE_string('gpu', 'False', 'help')\nif flags.FLAGS.gpu: ...",
        "import fire, os\ndef main(gpus='0'):\n    os.environ['CUDA_VISIBLE_DEVICES'] = gpus\nfire.Fire(main)",
    ],
    "XL004": [
        "import os\nx = bool(os.environ['X'])",
        "from os import getenv\nx = bool(getenv('X', 'False'))",
        "import os\nx = bool(os.environ.get('USE_FP16'))",
        "import os\nx = 'cuda' if os.getenv('USE_CUDA', '0') else 'cpu'",
        "import os\nif fast and not os.environ.get('X', 'no'): ...",
    ],
    "XL010": [
        "import torch\nfrom data import get_loader\nloader = get_loader()\nfor x, y in loader:\n    x.cuda()",
        "import torch as t\nx = t.zeros(3)\nx.cuda()",
        MODEL + "for x, y in DataLoader(data):\n    x.to('cuda')",
        "import torch\ndef f(x: torch.Tensor):\n    x.half()",
        MODEL + "for parameter in Net().parameters():\n    parameter.to('cuda')",
        "import torch\nfor batch in loader:\n    for k, v in batch.items():\n        v.to(d)",
        "import torch\nfor v in batch.values():\n    v.cuda(non_blocking=True)",
        "import torch\nfor t in targets:\n    t.to(d)",
        "import torch\nx = torch.ones(2)\ntry:\n    x.cuda()\nexcept RuntimeError: ...\nprint(x)",
        "import torch\nx, y = load()\nx = x.to(d)\ny.to(d)",
        "import torch\nfor b in data:\n    x, y = b['x'], b['y']\n    x = x.to(d)\n    y.to(d)",
        "import torch\ndef scaled(x, mean):\n    mean.to(x.device)\n    return x - mean",
        "import torch\nfor b in data:\n    x = b['x'].to(d)\n    b['y'].to(d)",
    ],
    "XL014": [
        TRAINING.replace("train_loader, test", "model.layer = nn.Linear(8, 3)\ntrain_loader, test"),
        TRAINING.replace("train_loader, test", "model = Net()\ntrain_loader, test"),
        TRAINING.replace("train_loader, test", "model = torch.load('m')\ntrain_loader, test"),
        AGENT + "        self.model = torch.load('m')\n",
    ],
    "XL015": [
        "import torch\nscaler = torch.cuda.amp.GradScaler()\n" + BF16,
        "import functools, torch\nscaler = torch.amp.GradScaler()\n"
        "amp = functools.partial(torch.autocast, 'cuda', dtype=torch.bfloat16)\n"
        "with amp(): y = f(x)\nscaler.scale(y).backward()",
        "import torch\nscaler = torch.amp.GradScaler()\nkind = torch.bfloat16\n"
        + BF16.replace("torch.bfloat16", "kind"),
    ],
    "XL016": [
        "import torch\nd = torch.device('mps')\nwith torch.autocast('cuda'):\n    model.to(d)",
        "import torch\nwith torch.amp.autocast(device_type='cpu'):\n    model.cuda()",
    ],
    "XL025": [
        WHOLE.replace("model.eval()", "correct = 0").replace("output = model", "loss = model"),
        WHOLE.replace("    model.eval()", "    #model.eval()").replace(
            "output = model(x.to(device))", "correct = model(x.to(device)).argmax(1)"
        ),
        WHOLE.replace("model.eval()", "b = iter(loader)").replace(
            "x, y in loader:\n            output =",
            "i in range(9):\n            x = next(b)\n            correct =",
        ),
        UNSET.replace("def test(model", "def test(net").replace("loss = model", "loss = net"),
        *(
            UNSET.replace(*change)
            for change in (
                ("loader):\n    c", "loader):\n    evaluator.eval(loader)\n    c"),
                ("loss = model(", "loss = model.module("),
                (LOOP, LOOP + "model.eval()\n"),  # after all evaluations
                (LOOP, f"model.eval()\n{LOOP}"),  # and training undoes it
                (SETUP, SETUP + "teacher = Net().eval()\n"),
            )
        ),
        MODEL + TRAIN + SCORE + SETUP + LOOP.replace(" test(", " score("),
        UNSET.replace("def test(model, device", "def test(model, teacher, device").replace(
            "    correct = 0\n", "    teacher.eval()\n"
        ),
    ],
    "XL030": [
        WHOLE.replace("loss.backward()\n", "loss.backward()\n        print(loss)\n"),
        WHOLE.replace("loss.backward()\n", "loss.backward()\n        print(f'{loss}')\n"),
        WHOLE.replace("loss.backward()\n", "loss.backward()\n        total += float(loss)\n"),
        MODEL
        + "model = Net().cuda()\ndef step(x):\n    loss = model(x).sum()\n    loss.backward()\n"
        "    return loss.detach()\nfor x in data:\n    print(step(x).item())\n",
        WHOLE.replace(STEP, IN_STEP + "torch.cuda.synchronize()\n"),
        WHOLE.replace(STEP, IN_STEP + "bar.set_postfix(loss=loss)\n"),
        WHOLE.replace(STEP, IN_STEP + "print('%d %.3f' % (9, loss))\n"),
        WHOLE.replace(STEP, IN_STEP + "if y: a = loss.item()\n        else: b = float(loss)\n"),
        WHOLE.replace(STEP, IN_STEP + "try: a = loss.item()\n        finally: pass\n"),
        TRAIN_OF_CALLER.replace(STEP, IN_STEP + "total += loss.item()\n"),
        WHOLE.replace("backward()\n", "backward()\n        loss.item()\n").replace(
            "loss.backward", "accelerator.backward(loss); loss.mean"
        ),
        "import torch\nfrom pytorch_lightning import LightningModule\nclass M(LightningModule):\n"
        "    def training_step(self, batch, i):\n        loss = self(batch)\n        print(loss)\n",
        METHOD + "trainer = Trainer()\nfor x in data:\n    total += trainer.one(x)\n",
    ],
    "XL033": [
        EPOCHS + BUILT,
        EPOCHS.replace("def train():\n    for epoch in range(9):\n", "def train():\n")
        + BUILT.replace("        for", "    for")
        + "for epoch in range(9):\n    train()\n",
        EPOCHS.replace("9):\n", "9):\n        for x in make(data, True):\n") + MAKE,
    ],
    "XL040": [
        "import numpy as np\nimport os\nos.environ.setdefault('OPENBLAS_NUM_THREADS', '2')",
        "import os, torch\nos.environ.update(OMP_NUM_THREADS='2')",
        "import os, torch\nos.environ.update({'MKL_NUM_THREADS': '2'})",
        "import os, torch\ndef main():\n    os.environ['OMP_NUM_THREADS'] = '1'\nmain()",
        "import os, torch\nos.environ['OMP_PLACES'] = 'cores'\ntorch.set_num_threads(n)",
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
    "a print of each epoch": TRAIN.replace("for x, y in loader", "for epoch in range(9)").replace(
        STEP, IN_STEP + "print(loss.item(), 'cuda')\n"
    ),
    "text that is converted in place": PARSER
    + "parser.add_argument('--x', type=str, default='False')\nargs.x = args.x == 'True'\nif args.x: ...",
    "text that is converted by a registered bool": PARSER
    + "parser.register('type', bool, parse_bool)\nparser.add_argument('--x', type=bool)",
    "text that is only shown": PARSER
    + "parser.add_argument('--x', default=1)\nprint(f'run {parser.parse_args().x}')",
    "options that leave the file": OPTIONS + "args = parser.parse_args()\nrun(args, args.a, args.b)",
    "options as a dictionary": OPTIONS + "args = parser.parse_args()\nrun(args.a, args.b, **vars(args))",
    "an option that notebooks pass": OPTIONS + "parser.add_argument('-f')\na = parser.parse_args()\n"
    "run(a.a, a.b, a.unread)",
    "options of another file": OPTIONS + "args = parser.parse_args()",
    "text that is compared": PARSER
    + "parser.add_argument('--x', type=str, default='False')\nif args.x == 'True': ...",
    "text for a command": PARSER + "parser.add_argument('--x', default=1)\ndef run(y): return f'run -x {y}'\n"
    "run(y=parser.parse_args().x)",
    "fire with numbers": "import fire\ndef main(gpus='0'):\n    print(gpus)\nfire.Fire(main)",
    "whether a variable is set, else empty": "import os\nif os.environ.get('X', ''): ...",
    "modules of a dictionary": "import torch\nfor name, module in modules.items():\n    module.to('cuda')",
    "modules of a dictionary by name": "import torch\nnets = build()\nx = nets['a'].to(d)\nnets['b'].to(d)",
    "an entry of a batch of objects": "import torch\nfor b in data:\n    b['net'].to(d)",
    "options that a function reads and another file gets": OPTIONS.replace(
        PARSER, f"{PARSER}def read(): return parser.parse_args()\n")
    + "a = read()\nrun(a, a.a, a.b)",
    "a scaler for a type that may be half": "import torch\nscaler = torch.amp.GradScaler()\n"
    "kind = torch.bfloat16 if new else torch.float16\n" + BF16.replace("torch.bfloat16", "kind"),
    "tried and not used": "import torch\nx = torch.ones(2)\ntry:\n    x.cuda()\nexcept RuntimeError: ...",
    "a model that wraps the first": TRAINING.replace(
        "train_loader, test", "model = nn.DataParallel(model)\ntrain_loader, test"),
    "a model for another training": TRAINING + "model = Net()\n",
    "a scaler that is off": "import torch\nscaler = torch.amp.GradScaler(enabled=False)\n" + BF16,
    "a scaler for float16": "import torch\nscaler = torch.amp.GradScaler()\n"
    + BF16.replace("bfloat16", "float16"),
    "autocast for the chosen device": CHOICE + "with torch.autocast('cuda'):\n    model.to(d)",
    "a loader of each fold": EPOCHS.replace("epoch in", "fold in") + BUILT,
    "a loader of each epoch's data": EPOCHS + BUILT.replace("(data,", "(Data(epoch),"),
    "a function's loader of each epoch's data": EPOCHS.replace(
        "9):\n", "9):\n        for x in make(Data(epoch), True):\n") + MAKE,
    "a loader that a condition makes": EPOCHS.replace(
        "9):\n", "9):\n        if epoch % 5 == 0: make(data, True)\n        for x in data:\n") + MAKE,
    "a parameter that is read": CLICK + "def fit(lr, batch): print(lr, batch)",
    "parameters that are read together": CLICK + "def fit(lr, batch): print(locals())",
    "a model that moves in place": "import torch\ndef f(x, net):\n    net.to(x.device)\n    return x - net(x)",
    "an optimizer of the loaded model": AGENT.replace("        self.optimizer", "        self.model = torch"
    ".load('m')\n        self.optimizer"),
    "a loader without workers": EPOCHS + BUILT.replace("=2", "=0"),
    "one branch reads": WHOLE.replace(STEP, IN_STEP + "if y: a = loss.item()\n        else: b = 2\n"),
    "steps that are timed": WHOLE.replace(STEP, IN_STEP + "torch.cuda.synchronize(); time.time()\n"),
    "a check for NaN": WHOLE.replace(STEP, IN_STEP + "v = loss.item()\n        if v != v: exit()\n"),
    "an engine that reads nothing": TRAIN_OF_CALLER,
    "a method that nothing calls": METHOD,
    "the caller sets the mode": WHOLE.replace("    model.eval()\n", "").replace(
        "    test(model", "    model.eval()\n    test(model"
    ).replace("output = model", "loss = model"),
    "no layer that the mode changes": UNSET.replace("nn.Dropout()", "nn.ReLU()"),
    "the mode of a wrapped model": UNSET.replace(
        "    correct = 0\n", "    inner = model.module\n    inner.eval()\n"
    ),
    "a model that evaluates by itself": UNSET.replace("loss = model(", "loss = model.predict(").replace(
        "    def forward", "    def predict(self, x):\n        self.eval()\n    def forward"
    ),
    "modules that come together": "import torch\na, b = networks()\nb = b.cuda()\na.cuda()\na.train()",
    "no library reads it": "import os, numpy\nos.environ['KMP_AFFINITY'] = 'compact'",
    "torch's threads are set by a call": "import os, torch\nos.environ['OMP_NUM_THREADS'] = '2'\n"
    "torch.set_num_threads(n)",
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


def test_found(tmp_path: Path):
    cases = [(code, text) for code, texts in FOUND.items() for text in texts]
    assert [(code, text) for code, text in cases if code not in codes_in(text, tmp_path)] == []


def test_left_alone(tmp_path: Path):
    codes = {name: codes_in(textwrap.dedent(text), tmp_path) for name, text in LEFT_ALONE.items()}
    assert {name: found for name, found in codes.items() if found} == {}


HINTS = {
    "XL111": [
        (WHOLE.replace("with torch.no_grad()", "if 1").replace("output", "correct"), WHOLE),
        (
            WHOLE.replace("with torch.no_grad()", "if 1").replace("output", "correct"),
            WHOLE.replace("with torch.no_grad()", "if 1").replace(
                "def test", "@torch.no_grad()\ndef test"
            ),
        ),
    ],
    "XL112": [
        (
            WHOLE.replace(STEP, IN_STEP + f"{made}.to(device)\n"),
            WHOLE.replace(STEP, IN_STEP + other),
        )
        for made, other in (
            ("torch.zeros(4)", "torch.zeros(4, device=device)\n"),
            ("nn.L1Loss()", "x.to(device)\n"),
        )
    ],
    "XL113": [(WHOLE, WHOLE.replace("_set)", "_set, pin_memory=True)"))],
    "XL118": [
        (CHOICE + "m = torch.load('model.pt')", CHOICE + "m = torch.load('model.pt', d)"),
        (CHOICE + "m = torch.load('model.pt')", "import torch\nm = torch.load('model.pt')"),
    ],
    "XL119": [
        (
            "import torch\ntorch.autograd.set_detect_anomaly(True)",
            "import torch\nif args.debug:\n    torch.autograd.set_detect_anomaly(True)",
        ),
        (
            "from torch import autograd\nwith autograd.detect_anomaly(): ...",
            "import torch\ntorch.autograd.set_detect_anomaly(False)",
        ),
    ],
}


@pytest.mark.parametrize(
    ("code", "text", "twin"), [(code, *pair) for code, pairs in HINTS.items() for pair in pairs]
)
def test_hints(code: str, text: str, twin: str, tmp_path: Path):
    assert code in codes_in(text, tmp_path, hints=True)
    assert code not in codes_in(twin, tmp_path, hints=True)


def test_a_file_shows_three_hints_of_a_kind(tmp_path: Path):
    text = CHOICE + "torch.load('m.pt')\n" * 5
    found = findings_in(text, tmp_path, hints=True)
    assert [(one.code, one.line) for one in found] == [("XL118", 3), ("XL118", 4), ("XL118", 5)]
    assert found[2].message.endswith(" (and 2 more: line 6, 7)")


def test_one_finding_a_step_names_the_cause(golden: Golden, tmp_path: Path):
    text = WHOLE.replace(STEP, IN_STEP + "a = loss.item()\n        torch.cuda.synchronize()\n")
    (found,) = findings_in(text, tmp_path)
    golden(found.message)


def test_advice_for_parsers_that_drop_words(tmp_path: Path):
    known = PARSER + "parser.add_argument('--x', type=bool)\na, _ = parser.parse_known_args()"
    (found,) = findings_in(known, tmp_path)
    assert "BooleanOptionalAction" not in found.message
    assert "type=lambda text" in found.message


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
