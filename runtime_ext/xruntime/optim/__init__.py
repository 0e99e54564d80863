# SPDX-License-Identifier: Apache-2.0
"""Optimizers for bf16 parameters with fp32 accuracy, and Lamb and Lars, on native kernels.

    from xruntime.optim import AdamW

    model.to(torch.bfloat16)
    optimizer = AdamW(model.parameters(), lr=1e-3)  # torch's signature
    ...
    torch.save(optimizer.master_state_dict(model), "weights.pt")  # in fp32

A bf16 parameter has a 16-bit remainder in the optimizer's state; both together are the fp32 weight. SGD,
Adagrad, Adam and AdamW leave fp32 parameters to torch's fused implementations.
"""

from xruntime.optim.optimizers import SGD, Adagrad, Adam, AdamW, Lamb, Lars

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Lamb", "Lars"]
