# SPDX-License-Identifier: Apache-2.0
"""The table of rules: code, name, what it finds, why that matters, and two examples."""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    code: str
    """XL0.. are faults, which are always looked for; XL1.. are hints."""
    name: str
    summary: str
    """One sentence: what is found."""
    reason: str
    """Why it matters."""
    failing: str
    """A script with exactly one finding of this rule."""
    passing: str
    """The same script without it."""

    @property
    def is_hint(self) -> bool:
        """Whether this is advice on performance."""
        return self.code.startswith("XL1")


_TRAINING = """\
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(8, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
total = torch.zeros((), device=device)
for x, y in train_loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
    loss.backward()
    optimizer.step()
"""

_EVALUATION = f"""\
{_TRAINING.replace("nn.Linear(8, 2)", "nn.Sequential(nn.Linear(8, 2), nn.Dropout())")}
correct = 0
for x, y in test_loader:
    correct += (model(x.to(device)).argmax(1) == y.to(device)).sum()
"""

_PARSER = "import argparse\n\nparser = argparse.ArgumentParser()\n"
_OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
_NEW_HEAD = "model[0] = torch.nn.Linear(8, 2)"
_HEAD = """\
import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 3))
{first}
{second}
optimizer.step()
"""
_SCALED = """\
import torch

scaler = torch.amp.GradScaler("cuda"{})
with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = model(x).sum()
scaler.scale(loss).backward()
"""
_CAST = """\
import torch

model.to("xpu")
with torch.autocast("{}", dtype=torch.bfloat16):
    model(x)
"""

RULES = (
    Rule("XL000", "not-python",
        "The file does not parse.",
        "Nothing else in it can be checked.",
        "def f(:\n",
        "def f(): ...\n",
    ),
    Rule("XL001", "bool-as-type",
        "An option converts what is typed with `bool`.",
        'Every text but the empty one is true, so `--cuda False` turns cuda on. A training then runs '
        "for hours on a device that its user thinks is off, or the reverse.",
        f'{_PARSER}parser.add_argument("--cuda", type=bool)\n',
        f'{_PARSER}parser.add_argument("--cuda", action=argparse.BooleanOptionalAction)\n',
    ),
    Rule("XL002", "flag-that-cannot-change",
        "A flag stores the value that it has by default, and has no opposite.",
        "The setting looks like an option, and no command line changes it.",
        f'{_PARSER}parser.add_argument("--shuffle", action="store_true", default=True)\n',
        f'{_PARSER}parser.add_argument("--shuffle", action=argparse.BooleanOptionalAction, default=True)\n',
    ),
    Rule("XL003", "default-without-type",
        "An option of argparse has a number, a truth value or a list as its default and no type.",
        "What is typed stays text, of another type than the default: an error later, or a comparison "
        "that is never true.",
        f'{_PARSER}parser.add_argument("--epochs", default=10)\n',
        f'{_PARSER}parser.add_argument("--epochs", default=10, type=int)\n',
    ),
    Rule("XL004", "bool-of-environment",
        "`bool()` of an environment variable that holds a truth value.",
        "Variables are text: 0, no and False are true.",
        'import os\n\nuse_cuda = bool(os.environ.get("USE_CUDA", "0"))\n',
        'import os\n\nuse_cuda = os.environ.get("USE_CUDA", "0") == "1"\n',
    ),
    Rule("XL005", "collection-as-type",
        "An option converts what is typed with `list`, `tuple`, `set` or `dict`.",
        "A text is a sequence of letters: `--layers 64` gives `['6', '4']`. `dict` fails for every text.",
        f'{_PARSER}parser.add_argument("--layers", type=list)\n',
        f'{_PARSER}parser.add_argument("--layers", type=int, nargs="+")\n',
    ),
    Rule("XL006", "option-never-read",
        "A script reads most of its options, and this one nowhere; or a command of click never reads one.",
        "What is typed changes nothing, and nobody is told.",
        f'{_PARSER}parser.add_argument("--lr")\nparser.add_argument("--decay")\n'
        'parser.add_argument("--data")\nargs = parser.parse_args()\nrun(args.lr, args.data)\n',
        f'{_PARSER}parser.add_argument("--lr")\nparser.add_argument("--decay")\n'
        'parser.add_argument("--data")\nargs = parser.parse_args()\nrun(args.lr, args.data, args.decay)\n',
    ),
    Rule("XL010", "to-result-unused",
        "The result of `.to()`, `.cuda()` or a conversion of a tensor is thrown away.",
        "Modules move in place; tensors do not: the tensor stays where it was.",
        'import torch\n\nx = torch.ones(8)\nx.to("cuda")\n',
        'import torch\n\nx = torch.ones(8)\nx = x.to("cuda")\n',
    ),
    Rule("XL014", "optimizer-of-replaced-model",
        "An optimizer takes the parameters of a model or layer that is replaced before it is used.",
        "The new parameters are in no optimizer: they keep their first values, and no error is raised.",
        _HEAD.format(first=_OPTIMIZER, second=_NEW_HEAD),
        _HEAD.format(first=_NEW_HEAD, second=_OPTIMIZER),
    ),
    Rule("XL015", "needless-scaler",
        "A `GradScaler` scales the loss of an autocast to bfloat16.",
        "bfloat16 has the range of float32. The scaler checks all gradients for infinities at every step, "
        "waits for the result, and skips steps while it looks for a factor.",
        _SCALED.format(""),
        _SCALED.format(", enabled=False"),
    ),
    Rule("XL016", "autocast-of-another-device",
        "An autocast is for a device to which the file moves nothing.",
        "It has no effect where the model is: everything is computed in float32.",
        _CAST.format("cuda"),
        _CAST.format("xpu"),
    ),
    Rule("XL025", "evaluation-in-training-mode",
        "A model with Dropout or BatchNorm is evaluated, and no `eval()` comes before.",
        "Dropout leaves out outputs and BatchNorm uses the statistics of the batch: the accuracy that "
        "is printed is not that of the model, and BatchNorm learns from the test data.",
        _EVALUATION,
        _EVALUATION.replace("correct = 0", "correct = 0\nmodel.eval()"),
    ),
    Rule("XL030", "waits-in-hot-loop",
        "Every step of a training on a device reads a value of a tensor.",
        "`.item()`, `.cpu()` and `print` wait for all work that the device was given, so the CPU cannot "
        "prepare the next step meanwhile.",
        f"{_TRAINING}    total += loss.item()\n",
        f"{_TRAINING}    total += loss.detach()\n",
    ),
    Rule("XL033", "loader-built-each-epoch",
        "A `DataLoader` with workers is built again in each epoch.",
        "Its processes start and import everything again, and the device has no work meanwhile.",
        f"{_TRAINING}for epoch in range(9):\n"
        "    loader = torch.utils.data.DataLoader(data, num_workers=1, pin_memory=True)\n",
        f"{_TRAINING}loader = torch.utils.data.DataLoader(data, num_workers=1, pin_memory=True)\n",
    ),
    Rule("XL040", "threads-set-late",
        "OMP_NUM_THREADS or its like is set after the library that reads it was imported.",
        "The libraries read them once, when they are loaded: setting them later has no effect.",
        'import os\n\nimport torch\n\nos.environ["OMP_NUM_THREADS"] = "4"\n',
        'import os\n\nos.environ["OMP_NUM_THREADS"] = "4"\n\nimport torch\n',
    ),
    Rule("XL041", "threads-fixed",
        "`torch.set_num_threads` with a constant above 1.",
        "The count fits one machine, and overrides what xlaunch or another launcher chose for each "
        "instance.",
        "import torch\n\ntorch.set_num_threads(8)\n",
        "import torch\n\nprint(torch.get_num_threads())\n",
    ),
    Rule("XL050", "archived-extension",
        "`intel_extension_for_pytorch` is imported.",
        "It was archived in March 2026 and fits torch up to 2.8. torch itself runs xpu devices and has "
        "most of its kernels; `xruntime.compat.ipex` has the extension's calls.",
        "import intel_extension_for_pytorch as ipex\n",
        "import xruntime\n",
    ),
    Rule("XL051", "old-autocast",
        "`torch.cuda.amp`, `torch.cpu.amp` or `torch.xpu.amp` is used.",
        "They are deprecated since torch 2.4, and each serves one kind of device; `torch.amp` takes the "
        "device as an argument.",
        "import torch\n\nwith torch.cuda.amp.autocast():\n    pass\n",
        'import torch\n\nwith torch.amp.autocast("cuda"):\n    pass\n',
    ),
    Rule("XL104", "more-workers-than-cpus",
        "A `DataLoader` has more workers than the process has CPUs.",
        "They take time from each other and from the training.",
        "from torch.utils.data import DataLoader\n\nloader = DataLoader(dataset, num_workers=99999)\n",
        "import os\n\nfrom torch.utils.data import DataLoader\n\n"
        "loader = DataLoader(dataset, num_workers=len(os.sched_getaffinity(0)))\n",
    ),
    Rule("XL106", "optimizer-not-fused",
        "SGD, Adam, AdamW or Adagrad without `fused=True`.",
        "The fused form reads and writes parameters, gradients and states once.",
        "import torch\n\noptimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n",
        "import torch\n\noptimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)\n",
    ),
    Rule("XL111", "evaluation-with-gradients",
        "A model is evaluated, and neither `no_grad` nor `inference_mode` is around it.",
        "What a backward pass would need stays in memory until the outputs are gone.",
        _EVALUATION.replace("correct = 0", "correct = 0\nmodel.eval()"),
        _EVALUATION.replace("correct = 0", "correct = 0\nmodel.eval()").replace(
            "    correct +=", "    with torch.no_grad(): correct +="
        ),
    ),
    Rule("XL112", "constant-copied-each-step",
        "Each step makes a constant tensor or a loss on the CPU, and copies it to the device.",
        "The copy is from memory that is not pinned, so the step waits for it.",
        f"{_TRAINING}    mask = torch.ones(8).to(device)\n",
        f"{_TRAINING}    mask = torch.ones(8, device=device)\n",
    ),
    Rule("XL113", "memory-not-pinned",
        "The batches of a `DataLoader` without `pin_memory` are copied to a GPU.",
        "Such copies go through a second buffer, and the CPU waits for each of them.",
        f"{_TRAINING}loader = torch.utils.data.DataLoader(data)\n",
        f"{_TRAINING}loader = torch.utils.data.DataLoader(data, pin_memory=True)\n",
    ),
    Rule("XL118", "load-without-map-location",
        "`torch.load` of a checkpoint that another script saved, without `map_location`, where the CPU is allowed.",
        "A checkpoint of a GPU cannot be read where there is none.",
        f'{_TRAINING}model.load_state_dict(torch.load("model.pt"))\n',
        f'{_TRAINING}model.load_state_dict(torch.load("model.pt", map_location=device))\n',
    ),
    Rule("XL119", "anomaly-mode",
        "`torch.autograd.set_detect_anomaly(True)` without a condition.",
        "It keeps the stack of each operation and looks for NaN in each gradient: several times slower.",
        "import torch\n\ntorch.autograd.set_detect_anomaly(True)\n",
        "import torch\n\ntorch.autograd.set_detect_anomaly(options.debug)\n",
    ),
)  # fmt: skip

BY_CODE = {rule.code: rule for rule in RULES}
