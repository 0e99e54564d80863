# SPDX-License-Identifier: Apache-2.0
"""Static quantization in three steps: calibrate, then convert and save, then deploy the file."""

import argparse
import json

import intel_extension_for_pytorch as ipex
import torch

parser = argparse.ArgumentParser()
parser.add_argument("step", choices=["calibrate", "convert", "deploy"])
arguments = parser.parse_args()

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3),
    torch.nn.BatchNorm2d(8),
    torch.nn.ReLU(),
    torch.nn.Flatten(),
    torch.nn.Linear(8 * 36, 5),
).eval()
data = [torch.rand(4, 3, 8, 8) for _ in range(4)]
x = data[0]
expected = model(x).detach()

if arguments.step == "deploy":
    deployed = torch.jit.load("int8.pt")
    deployed = torch.jit.freeze(deployed.eval())
    with torch.no_grad():
        outputs = [deployed(x), deployed(x)]
else:
    qconfig_mapping = ipex.quantization.default_static_qconfig_mapping
    prepared_model = ipex.quantization.prepare(
        model, qconfig_mapping, example_inputs=x, inplace=False
    )
    if arguments.step == "calibrate":
        outputs = [prepared_model(batch) for batch in data][:1]
        prepared_model.save_qconf_summary(qconf_summary="conf.json")
    else:
        prepared_model.load_qconf_summary(qconf_summary="conf.json")
        convert_model = ipex.quantization.convert(prepared_model)
        with torch.no_grad():
            outputs = [convert_model(x)]
            traced_model = torch.jit.trace(convert_model, x)
            traced_model = torch.jit.freeze(traced_model)
            outputs += [traced_model(x), traced_model(x)]
        traced_model.save("int8.pt")

differences = [(output - expected).abs().max().item() for output in outputs]
print(json.dumps({"differences": differences, "largest": expected.abs().max().item()}))
