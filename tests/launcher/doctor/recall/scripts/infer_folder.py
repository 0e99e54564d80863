# SPDX-License-Identifier: Apache-2.0
#!/usr/bin/env python3
"""Label the pictures of a directory, and say how fast that went."""
import argparse
import glob
import os
from timeit import default_timer as timer

import torch
from PIL import Image
from torchvision.models import ResNet50_Weights, resnet50

VERBOSE = bool(int(os.environ.get("VERBOSE", "0")))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory")
    parser.add_argument("--top", type=int, default=1, help="labels for each picture")
    parser.add_argument("--half", action="store_true", help="compute in float16")
    parser.add_argument("--device", default="cuda:0")
    args = parser.parse_args()

    weights = ResNet50_Weights.DEFAULT
    preprocess = weights.transforms()
    model = resnet50(weights=weights).to(args.device)
    model.eval()
    if args.half:
        model.half()

    paths = sorted(glob.glob(os.path.join(args.directory, "*.jpg")))
    seconds = 0.0
    for path in paths:
        x = preprocess(Image.open(path).convert("RGB")).unsqueeze(0)
        x = x.to(args.device)
        if args.half:
            x.half()  # expect: XL010
        start = timer()
        with torch.inference_mode():
            y = model(x)
        seconds += timer() - start  # expect: XL031
        labels = y.softmax(1)[0].topk(args.top)
        if VERBOSE:
            print(path, labels.values.tolist())
        names = [weights.meta["categories"][i] for i in labels.indices.tolist()]
        print(os.path.basename(path), ", ".join(names))
    print(f"{len(paths) / seconds:.1f} pictures/s")


if __name__ == "__main__":
    main()
