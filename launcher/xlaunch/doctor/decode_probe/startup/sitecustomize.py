# SPDX-License-Identifier: Apache-2.0
"""Times the decode steps of transformers' models, from inside a program that knows nothing of it.

A decode step is a call of a model with one token of each sequence and a cache. Once the program has imported
transformers, `PreTrainedModel.__call__` reads the clock before and after the outermost call; models get no
hooks. At 8, 16, 32 ... steps the medians go to a file, so that a program may end in any way.

Python's module `site` imports this, because xlaunch put this directory first on PYTHONPATH. It removes that
entry and its variable, so that processes which the program starts are plain ones, and imports the
sitecustomize that this one hides.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing would be imported by every program
    from typing import Any

PATH = "PYTHONPATH"
VARIABLE = "XLAUNCH_DECODE_PROBE"
MODELS = "transformers.modeling_utils"
"""The module that has `PreTrainedModel`."""
MIN_STEPS = 8
MAX_STEPS = 4096
"""Medians are of the last so many steps."""
MAX_MODELS = 16
"""Later ones are not followed."""
OTHER_PARTS = ("expert", "moe", "router", "vision", "audio")
"""In names of classes: a step may not read all weights of a model with such parts."""


class Finder:
    """Starts the probe once `MODELS` has been imported, and finds it as others do."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.pid = os.getpid()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec that others find. To look for the module alone starts nothing."""
        if name != MODELS:
            return None
        finders = [it for it in sys.meta_path if it is not self and hasattr(it, "find_spec")]
        specs = (finder.find_spec(name, path, target) for finder in finders)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader)
        return spec

    def _follow(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            del loader.exec_module  # the loader stays its own
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                if os.getpid() != self.pid:  # a fork's steps are not the program's
                    return
                try:
                    Probe(self.path).install(module.PreTrainedModel)
                except Exception:  # noqa: BLE001 - another torch or transformers: the program goes on
                    return

        loader.exec_module = exec_module


class Steps:
    """Decode steps of one model with one number of sequences."""

    def __init__(self) -> None:
        self.count = 0
        self.model_s: dict[int, float] = {}
        """Seconds in the model's calls."""
        self.token_s: dict[int, float] = {}
        """Seconds between the beginnings of two of them."""
        self.record: dict[str, Any] = {}


class Probe:
    """The decode steps of one process."""

    def __init__(self, path: str) -> None:
        import threading
        import weakref

        self.path = path
        self.pid = os.getpid()
        self.thread = threading.local()
        self.calls = self.running = 0
        """Of all threads: number of outermost calls, and how many run."""
        self.forms: Any = weakref.WeakKeyDictionary()
        """The `Steps` of each model, by the number of sequences."""
        self.records: list[dict[str, Any]] = []
        self.torch: Any = sys.modules["torch"]

    def install(self, kind: Any) -> None:
        """Give transformers' base class of models a `__call__` that times torch's."""
        if "__call__" in vars(kind):
            return
        module_class, thread = self.torch.nn.Module, self.thread
        compiling = self.torch.compiler.is_compiling
        callback = self.torch._C._dynamo.eval_frame.get_eval_frame_callback  # noqa: SLF001
        clock, probe = time.perf_counter, self

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            # torch.compile evaluates the first condition when it traces this.
            if compiling() or callback() is not None or getattr(thread, "inside", False):
                return module_class.__call__(self, *args, **kwargs)
            thread.inside = True
            alone = probe.running == 0
            probe.running += 1
            probe.calls += 1
            number, began = probe.calls, clock()
            try:
                outputs = module_class.__call__(self, *args, **kwargs)
                ended = clock()
            finally:
                probe.running -= 1
                thread.inside = False
            try:
                probe.add(self, args, kwargs, began, ended, alone and number == probe.calls)
            except Exception:  # noqa: BLE001 - what is not understood is not reported
                thread.before = None
            return outputs

        # torch.compile starts at the first frame that is not in this file of torch's.
        place = module_class.__call__.__code__
        call.__code__ = call.__code__.replace(
            co_filename=place.co_filename,
            co_firstlineno=place.co_firstlineno,
            co_name=place.co_name,
        )
        kind.__call__ = call

    def add(
        self, model: Any, args: Any, kwargs: Any, began: float, ended: float, alone: Any
    ) -> None:
        """Count a call if it is a decode step on the CPU that no other thread's call has slowed down."""
        before, self.thread.before = getattr(self.thread, "before", None), None
        tokens = kwargs.get("input_ids", args[0] if args else None)
        cache = kwargs.get("past_key_values")
        if cache is None or not isinstance(tokens, self.torch.Tensor) or tokens.dim() != 2:
            return
        if tokens.shape[1] != 1 or tokens.device.type != "cpu" or kwargs.get("labels") is not None:
            return
        if not alone or os.getpid() != self.pid:
            return
        of_model = self.forms.get(model)
        if of_model is None:
            if len(self.forms) == MAX_MODELS:
                return
            of_model = self.forms[model] = {}
        steps = of_model.setdefault(tokens.shape[0], Steps())
        self.thread.before = steps, began
        steps.count += 1
        place = steps.count % MAX_STEPS
        steps.model_s[place] = ended - began
        if before is not None and before[0] is steps:
            steps.token_s[place] = began - before[1]
        if steps.count >= MIN_STEPS and steps.count & (steps.count - 1) == 0:
            self.thread.before = None  # what follows is no part of the program
            record = {
                "model": type(model).__name__,
                "batch": tokens.shape[0],
                "steps": steps.count,
                "model_s": median(steps.model_s),
                "token_s": max(median(steps.model_s), median(steps.token_s)),
                **self.described(model, cache),
            }
            if not steps.record:
                self.records.append(steps.record)
            steps.record.update(record)
            self.write()

    def described(self, model: Any, cache: Any) -> dict[str, Any]:
        """What a step reads and how: None where it is not known."""
        torch = self.torch
        return {
            "weight_bytes": self.weights_of(model),
            "cache_bytes": cache_bytes(cache),
            "threads": torch.get_num_threads(),
            "autocast": torch.is_autocast_enabled("cpu"),
            "gradients": torch.is_grad_enabled()
            and any(parameter.requires_grad for parameter in model.parameters()),
            "native": "xruntime.program_hook.interception" in sys.modules
            or any(base.__module__.startswith("xruntime.") for base in type(model).__mro__),
        }

    def weights_of(self, model: Any) -> dict[str, int] | None:
        """The bytes of weights that a step reads, by dtype; None if it may be others than all but embeddings."""
        nn, config = self.torch.nn, model.config
        if config.is_encoder_decoder or getattr(config, "quantization_config", None) is not None:
            return None
        weights: dict[int, tuple[str, int]] = {}
        for module in model.modules():
            name = type(module).__name__
            if any(part in name.lower() for part in OTHER_PARTS):
                return None
            if "Linear" in name and not isinstance(module, nn.Linear):
                return None
            tensors = dict(module.named_parameters(recurse=False))
            if "packed_values" in module._buffers:  # noqa: SLF001 - of xruntime's linears
                tensors.update(module.named_buffers(recurse=False))
            elif isinstance(module, nn.Linear) and "weight" not in tensors:
                return None
            for tensor in tensors.values():
                plain = type(tensor) in (self.torch.Tensor, nn.Parameter)
                if not plain or tensor.dim() > 2 or tensor.device.type != "cpu":
                    return None
                if not isinstance(module, nn.Embedding):
                    weights[tensor.data_ptr()] = str(tensor.dtype).rpartition(".")[2], tensor.nbytes
        totals: dict[str, int] = {}
        for dtype, size_bytes in weights.values():
            totals[dtype] = totals.get(dtype, 0) + size_bytes
        return totals

    def write(self) -> None:
        """Replace the file."""
        import json

        with open(f"{self.path}.new", "w", encoding="utf-8") as file:
            json.dump(self.records, file)
        os.replace(f"{self.path}.new", self.path)


def cache_bytes(cache: Any) -> int:
    """The bytes of keys and values in any of transformers' caches, as far as they can be seen."""
    layers = getattr(cache, "layers", None)
    if layers is not None:
        tensors = [getattr(layer, name, None) for layer in layers for name in ("keys", "values")]
    elif hasattr(cache, "key_cache"):
        tensors = [*cache.key_cache, *cache.value_cache]
    else:
        tensors = [tensor for layer in cache for tensor in layer]
    return sum([getattr(tensor, "nbytes", 0) for tensor in tensors])


def median(values: dict[int, float]) -> float:
    """The middle value; 0 without any."""
    ordered = sorted(values.values())
    return ordered[len(ordered) // 2] if ordered else 0.0


def _remove_traces() -> None:
    here = os.path.dirname(__file__)
    sys.path[:] = [entry for entry in sys.path if entry != here]
    sys.path_importer_cache.pop(here, None)
    first, _, others = os.environ.get(PATH, "").partition(os.pathsep)
    if first == here:
        os.environ[PATH] = others
        if not others:
            del os.environ[PATH]


if __name__ == "sitecustomize":
    _remove_traces()
    if (_path := os.environ.pop(VARIABLE, None)) is not None:
        sys.meta_path.insert(0, Finder(_path))
    # The one that Python would have found. If there is none, the error says so to `site`, which expects it.
    del sys.modules["sitecustomize"]
    __import__("sitecustomize")
