# SPDX-License-Identifier: Apache-2.0
"""A switch in the environment that is always on."""

import os

import torch

from detector import Detector, frames

if os.environ.get("USE_CUDA", "False"):  # fault: XL004, twin: if os.environ.get("USE_CUDA", "False") == "True":
    device = torch.device("cuda")
else:
    device = torch.device("cpu")
detector = Detector().to(device).eval()
with torch.inference_mode():
    for frame in frames():
        print(detector(frame.to(device)).tolist())
