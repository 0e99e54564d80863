# SPDX-License-Identifier: Apache-2.0
"""The program that hypertune's manual tunes: the latency of a model, announced with the marker."""

import time

import intel_extension_for_pytorch as ipex
import torch


def inference(model, data):
    with torch.no_grad():
        for _ in range(3):
            model(data)
        start = time.time()
        for _ in range(10):
            model(data)
        latency = (time.time() - start) * 1000 / 10
    print("@hypertune {'name': 'latency (ms)'}")
    print(latency)


def main():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
    data = torch.rand(1, 3, 32, 32)
    model = ipex.optimize(model, dtype=torch.float32)
    inference(model, data)


if __name__ == "__main__":
    main()
