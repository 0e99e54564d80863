# SPDX-License-Identifier: Apache-2.0
"""The import of torchao, with one clear error where that is not possible.

Importing its quantizer also registers, in Inductor, the patterns that turn quantized operators into
oneDNN's INT8 kernels, so it comes before anything is compiled.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import sys
import threading
import warnings
from typing import Final

from packaging.version import Version

from xruntime.errors import QuantizationError

MIN_VERSION: Final = (0, 18)

INSTALL: Final = "pip install 'torchao>=0.18'"

_QUANTIZERS: Final = "torchao.quantization.pt2e.quantizer"

_importing = threading.Lock()


def import_torchao() -> None:
    """Import torchao and its quantizers, quietly.

    Raises QuantizationError if torchao is missing, too old, or does not work with this torch.
    """
    if f"{_QUANTIZERS}.arm_inductor_quantizer" in sys.modules:
        return
    with _importing:
        try:
            installed = importlib.metadata.version("torchao")
        except importlib.metadata.PackageNotFoundError:
            installed = None
        if installed is not None and Version(installed).release < MIN_VERSION:
            raise QuantizationError(
                f"INT8 needs torchao {'.'.join(map(str, MIN_VERSION))} or newer, and {installed} is"
                f" installed: {INSTALL}"
            )
        # torchao warns of kernels for GPUs that cannot be loaded, and torch of an enumeration in torchao.
        noisy = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")]
        levels = [logger.level for logger in noisy]
        for logger in noisy:
            logger.setLevel(logging.ERROR)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(f"{_QUANTIZERS}.x86_inductor_quantizer")
                importlib.import_module(f"{_QUANTIZERS}.arm_inductor_quantizer")
        except Exception as error:
            if isinstance(error, ModuleNotFoundError) and error.name == "torchao":
                raise QuantizationError(
                    f"INT8 needs torchao, which is not installed: {INSTALL}"
                ) from None
            import torch

            raise QuantizationError(
                f"torchao {installed} cannot be imported with torch {torch.__version__}"
                f" ({type(error).__name__}: {error}): {INSTALL}"
            ) from error
        finally:
            for logger, level in zip(noisy, levels, strict=True):
                logger.setLevel(level)
