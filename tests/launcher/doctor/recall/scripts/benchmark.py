# SPDX-License-Identifier: Apache-2.0
#!/usr/bin/env python
"""How many images a second does each network infer on this GPU?"""

import sys
import time

import torch
import torchvision.models as models

NAMES = ["resnet18", "resnet50", "mobilenet_v3_large", "convnext_tiny"]


def bench(model, x, n=50):
    for _ in range(10):
        model(x)
    t0 = time.perf_counter()
    for _ in range(n):
        model(x)
    dt = time.perf_counter() - t0
    return n * x.shape[0] / dt


def bench_properly(model, x, n=50):
    for _ in range(10):
        model(x)
    torch.cuda.synchronize()
    t0 = time.perf_counter()
    for _ in range(n):
        model(x)
    torch.cuda.synchronize()
    dt = time.perf_counter() - t0
    return n * x.shape[0] / dt


def main(batch):
    torch.set_num_threads(4)  # expect: XL041
    x = torch.randn(batch, 3, 224, 224, device="cuda")
    print(f"{'network':20s} {'eager':>10s} {'compiled':>10s} {'synchronized':>12s}")
    with torch.inference_mode():
        for name in NAMES:
            model = models.get_model(name, weights=None).cuda().eval()
            eager = bench(model, x)
            compiled = bench(torch.compile(model), x)
            proper = bench_properly(model, x)
            print(f"{name:20s} {eager:10.1f} {compiled:10.1f} {proper:12.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 32)
