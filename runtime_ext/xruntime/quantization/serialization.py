# SPDX-License-Identifier: Apache-2.0
"""INT8 modules in files of torch.export's format.

The file can be read without this package, where torch and torchao are installed:

    import torch
    import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer
    model = torch.export.load("model.pt2").module()
"""

from __future__ import annotations

import copy
import dataclasses
import errno
import io
import json
import os
import warnings
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from xlaunch.files import open_input, write_whole
from xruntime.compilation.inductor import first_line
from xruntime.errors import QuantizationError
from xruntime.quantization.quantized_module import QuantizedModule
from xruntime.quantization.recipe import QuantConf
from xruntime.quantization.torchao_package import import_torchao

SCHEMA_VERSION: Final = 1

EXTRA_FILE: Final = "xruntime_int8.json"
"""The file in the archive that holds the recipe and the module's name."""


def save(module: QuantizedModule, path: str | os.PathLike[str]) -> None:
    """Write an INT8 module, whole or not at all. Raises QuantizationError.

    Classes of outputs, such as transformers' ModelOutput, become dicts and tuples in the file: whoever
    reads it may not have them. The example inputs are left out.
    """
    if not isinstance(module, QuantizedModule):
        raise QuantizationError(
            f"save takes what convert() returned, and this is a {type(module).__name__}"
        )
    extra = {
        "schema_version": SCHEMA_VERSION,
        "name": module.name,
        "torch": torch.__version__,
        "recipe": module.conf.plain(),
    }
    archive = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="No complete tensor found in the group")
            torch.export.save(
                _stored_form(module.exported), archive, extra_files={EXTRA_FILE: json.dumps(extra)}
            )
        write_whole(os.fspath(path), archive.getvalue())
    except QuantizationError as error:
        raise QuantizationError(f"{module.name} cannot be written: {error}") from None
    except OSError as error:
        raise QuantizationError(f"{path} cannot be written: {error.strerror}") from None
    except Exception as error:
        raise QuantizationError(
            f"{module.name} cannot be written in torch.export's format: {first_line(error)}"
        ) from error


def load(path: str | os.PathLike[str]) -> QuantizedModule:
    """Read what `save` wrote. Raises QuantizationError, RecipeError.

    Load only files that you trust. The module compiles when it is first called.
    """
    import_torchao()
    name = os.fspath(path)
    extra = {EXTRA_FILE: ""}
    try:
        with open_input(name) as stream:
            exported = torch.export.load(stream, extra_files=extra)
    except OSError as error:
        # What is not a file of torch.export may be an invalid argument to its reader.
        if error.errno != errno.EINVAL:
            raise QuantizationError(f"{name} cannot be read: {error.strerror}") from None
        raise QuantizationError(
            f"{name} is not a file that xruntime.quantization.save wrote"
        ) from None
    except Exception as error:
        raise QuantizationError(
            f"{name} is not a file of torch.export that torch {torch.__version__} can read:"
            f" {first_line(error)}"
        ) from error
    content = _content(name, extra[EXTRA_FILE])
    conf = QuantConf.from_plain(content["recipe"], f"{name}, recipe")
    return QuantizedModule(exported, conf, str(content["name"]))


def _stored_form(exported: ExportedProgram) -> ExportedProgram:
    """Return the same program without example inputs, and with outputs of Python's own classes."""
    spec = exported.call_spec.out_spec
    assert spec is not None
    order = list(range(spec.num_leaves))
    leaves, builtin_spec = pytree.tree_flatten(_builtin_value(spec.unflatten(order)))
    if leaves != order:
        raise QuantizationError("its outputs have a class that is not a tuple, list or dict")
    first, *others = exported.module_call_graph
    assert first.signature is not None
    signature = dataclasses.replace(first.signature, out_spec=builtin_spec)
    stored = copy.copy(exported)
    # There is no public way to change either.
    stored._module_call_graph = [dataclasses.replace(first, signature=signature), *others]  # noqa: SLF001
    stored._example_inputs = None  # noqa: SLF001
    return stored


def _builtin_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _builtin_value(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple([_builtin_value(item) for item in value])
    if isinstance(value, list):
        return [_builtin_value(item) for item in value]
    return value


def _content(name: str, text: str) -> dict[str, Any]:
    if not text:
        raise QuantizationError(
            f"{name} was not written by xruntime.quantization.save: torch.export.load reads it"
        )
    content: dict[str, Any] = json.loads(text)
    version = content.get("schema_version")
    if version != SCHEMA_VERSION:
        raise QuantizationError(
            f"{name}: schema version {version!r:.80} is not {SCHEMA_VERSION}, which this xruntime reads:"
            " use the xruntime that wrote it, or convert the model again"
        )
    return content
