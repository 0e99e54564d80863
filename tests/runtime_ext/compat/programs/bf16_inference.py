# SPDX-License-Identifier: Apache-2.0
"""Inference in bf16, channels-last: traced and frozen, and compiled."""

import json

import intel_extension_for_pytorch as ipex
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 16, 3)
        self.norm = torch.nn.BatchNorm2d(16)
        self.dropout = torch.nn.Dropout(0.5)
        self.classifier = torch.nn.Linear(16 * 36, 10)

    def forward(self, images):
        found = torch.relu(self.norm(self.convolution(images)))
        return self.classifier(self.dropout(found.flatten(1)))


torch.manual_seed(0)
model = Net()
model.eval()
data = torch.rand(2, 3, 8, 8)
expected = model(data).detach()

model = model.to(memory_format=torch.channels_last)
data = data.to(memory_format=torch.channels_last)
model = ipex.optimize(model, dtype=torch.bfloat16)

with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
    traced_model = torch.jit.trace(model, torch.rand(2, 3, 8, 8))
    traced_model = torch.jit.freeze(traced_model)
    compiled_model = torch.compile(model)
    # TorchScript optimizes in the second call.
    traced = [traced_model(data) for _ in range(3)]
    compiled = [compiled_model(data) for _ in range(2)]


def differences(outputs):
    return [(output - expected).abs().max().item() for output in outputs]


largest = expected.abs().max().item()
found = {"traced": differences(traced), "compiled": differences(compiled), "largest": largest}
print(json.dumps(found))
