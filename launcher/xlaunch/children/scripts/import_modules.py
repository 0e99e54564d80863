# SPDX-License-Identifier: Apache-2.0
"""Import the modules that the arguments name, then print as JSON what failed and which files are mapped.

It is the last line: what a module prints comes before.
"""

import os
import sys

sys.path[:] = [entry for entry in sys.path if entry != os.path.dirname(__file__)]

import importlib.util  # noqa: E402 - after the line above
import json  # noqa: E402

if __name__ == "__main__":
    names = sys.argv[1:]
    # Before torch is imported, which takes seconds.
    absent = [
        name for name in names[1:] if importlib.util.find_spec(name.partition(".")[0]) is None
    ]
    failed = {name: [True, "no such module"] for name in absent}
    for name in () if absent else names:
        try:
            importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 - a module may do anything
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            is_absent = missing and (name == missing or name.startswith(f"{missing}."))
            failed[name] = [bool(is_absent), f"{type(error).__name__}: {error}"]
    with open("/proc/self/maps", errors="surrogateescape") as maps:
        paths = sorted({line.split(None, 5)[5].rstrip("\n") for line in maps if line.count("/")})
    sys.stdout.write("\n" + json.dumps({"failed": failed, "paths": paths}))
