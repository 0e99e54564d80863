# SPDX-License-Identifier: Apache-2.0
"""`xruntime.optimize` beside torch.compile: speed, the pause before it, second starts."""
