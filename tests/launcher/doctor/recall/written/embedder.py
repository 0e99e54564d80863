# SPDX-License-Identifier: Apache-2.0
"""Writes embeddings, and goes on without a GPU."""

import sys

import numpy as np
import torch

from faces import load_network, read_images

network = load_network("faces.pt")
network.eval()
rows = []
for image in read_images(sys.argv[1]):
    tensor = torch.from_numpy(image).permute(2, 0, 1).unsqueeze(0).float()
    try:
        network.cuda()
        tensor.cuda()  # fault: XL010, twin: tensor = tensor.cuda()
    except RuntimeError:
        print("no GPU; slower")
    with torch.no_grad():
        rows.append(network(tensor)[0].cpu().numpy())
np.save("embeddings.npy", np.stack(rows))
