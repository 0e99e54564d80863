# SPDX-License-Identifier: Apache-2.0
"""Options from a file, through configargparse."""

import configargparse
import torch

from rays import Field, batches

parser = configargparse.ArgParser(default_config_files=["field.conf"])
parser.add("-c", "--config", is_config_file=True)
parser.add("--rays", type=int, default=1024)
parser.add("--use_viewdirs", type=bool, default=True)  # fault: XL001, twin: parser.add("--use_viewdirs", action="store_true")
options = parser.parse_args()
field = Field(options.use_viewdirs)
optimizer = torch.optim.Adam(field.parameters(), lr=5e-4)
for origins, directions, colours in batches(options.config, options.rays):
    loss = (field(origins, directions) - colours).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
