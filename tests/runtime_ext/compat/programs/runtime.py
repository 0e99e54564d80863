# SPDX-License-Identifier: Apache-2.0
"""The runtime extension: a pool, a pinned block and function, a Task, and streams with hints."""

import json

import intel_extension_for_pytorch as ipex
import torch


class TwoInputs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 8, 3)
        self.linear = torch.nn.Linear(8, 5)

    def forward(self, images, scale, flags):
        pooled = self.convolution(images).relu().mean((2, 3))
        return self.linear(pooled) * scale.t(), {"flags": flags}


torch.manual_seed(0)
model = TwoInputs().eval()
images, scale, flags = torch.rand(5, 3, 16, 16), torch.rand(5, 5), {"keep": True}
with torch.no_grad():
    expected = model(images, scale, flags)[0]
results = {}

cpu_pool = ipex.cpu.runtime.CPUPool([1, 2])
results["core_ids"] = cpu_pool.core_ids
results["core_list"] = cpu_pool.cpu_pool.get_core_list()

whole_pool = ipex.cpu.runtime.CPUPool(node_id=0)


@ipex.cpu.runtime.pin(cpu_pool)
def infer():
    results["threads_when_pinned"] = torch.get_num_threads()
    return model(images, scale, flags)[0]


with torch.no_grad():
    outputs = {"decorator": infer()}
    with ipex.cpu.runtime.pin(whole_pool):
        outputs["block"] = model(images, scale, flags)[0]

    task = ipex.cpu.runtime.Task(model, cpu_pool)
    future = task(images, scale, flags)
    outputs["task"] = future.get()[0]
    outputs["run_sync"] = task.run_sync(images, scale, flags)[0]

    # Dimension 0 of the images and 1 of the scale hold the batch; every stream gets the flags.
    multi_stream_model = ipex.cpu.runtime.MultiStreamModule(
        model,
        num_streams=2,
        cpu_pool=ipex.cpu.runtime.CPUPool(),
        input_split_hint=ipex.cpu.runtime.MultiStreamModuleHint(0, 1, None),
        output_concat_hint=ipex.cpu.runtime.MultiStreamModuleHint((0, {"flags": None})),
    )
    results["streams"] = multi_stream_model.get_stream_number()
    outputs["streams"], kept = multi_stream_model(images, scale, flags)
    results["kept"] = kept

    parts_model = ipex.cpu.runtime.MultiStreamModule(
        model.convolution, num_streams=2, cpu_pool=ipex.cpu.runtime.CPUPool(), concat_output=False
    )
    parts = parts_model(images)
    results["parts"] = [len(part) for part in parts]

results["differences"] = {
    name: (output - expected).abs().max().item() for name, output in outputs.items()
}
print(json.dumps(results))
