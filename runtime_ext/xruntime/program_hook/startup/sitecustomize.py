# SPDX-License-Identifier: Apache-2.0
"""The start of `xlaunch --optimize` in a program's interpreter, before the program itself.

Python's module `site` imports it, because xlaunch put this directory first on PYTHONPATH. It removes
that entry and xlaunch's variable, so that processes which the program starts are plain ones, then
imports the sitecustomize that this one hides. xruntime is imported when the program has imported torch.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
from typing import Any

VARIABLE = "XLAUNCH_OPTIMIZE"
PATH = "PYTHONPATH"


class _AfterTorch:
    """A finder that starts the hook once torch has been imported, and finds torch as others do."""

    def __init__(self, precision: str, *, wait: bool) -> None:
        self.precision = precision
        self.wait = wait
        self.pid = os.getpid()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Only to look for torch (`importlib.util.find_spec`) starts nothing."""
        if name != "torch":
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
            del loader.exec_module  # the loader stays torch's own
            execute(module)
            self._start()

        loader.exec_module = exec_module

    def _start(self) -> None:
        self.remove()
        if os.getpid() != self.pid:
            return
        try:
            from xruntime.program_hook.interception import Interception

            Interception(self.precision, wait=self.wait).install()
        except Exception as error:  # noqa: BLE001 - the program runs as it was
            _say(f"nothing is optimized: {type(error).__name__}: {error}")

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def report_idle(self) -> None:
        """At the end of the program."""
        if self in sys.meta_path and os.getpid() == self.pid:
            _say("nothing is optimized: the program did not import torch")


def _say(text: str) -> None:
    if sys.stderr is not None:
        print(f"xruntime: optimize: {' '.join(text.split())}", file=sys.stderr, flush=True)


def _remove_traces() -> str | None:
    """Remove what xlaunch set. Return the value of `VARIABLE`: a precision, and ``wait`` if it was
    asked for.
    """
    here = os.path.dirname(__file__)
    first, _, others = os.environ.get(PATH, "").partition(os.pathsep)
    if first == here:
        os.environ[PATH] = others
        if not others:
            del os.environ[PATH]
    sys.path[:] = [entry for entry in sys.path if entry != here]
    sys.path_importer_cache.pop(here, None)
    return os.environ.pop(VARIABLE, None)


def _prepare() -> None:
    value = _remove_traces()
    if value is None:
        return
    precision, _, word = value.partition(" ")
    finder = _AfterTorch(precision, wait=word == "wait")
    sys.meta_path.insert(0, finder)
    atexit.register(finder.report_idle)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=finder.remove)


_prepare()
# The one that Python would have found. If there is none, the error says so to `site`, which expects it.
sys.modules.pop("sitecustomize", None)
importlib.import_module("sitecustomize")
