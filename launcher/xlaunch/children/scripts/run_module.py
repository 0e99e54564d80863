# SPDX-License-Identifier: Apache-2.0
"""Run the module that the first argument names as ``python -m`` does, without the current directory on its path."""

import os
import sys

sys.path[:] = [entry for entry in sys.path if entry != os.path.dirname(__file__)]

import runpy  # noqa: E402 - after the line above

if __name__ == "__main__":
    module = sys.argv.pop(1)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except ImportError as error:
        if error.name is not None:  # of a module that it imports
            raise
        sys.exit(f"xlaunch: error: {sys.executable} cannot run the module {module}: {error}")
