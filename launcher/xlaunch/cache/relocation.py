# SPDX-License-Identifier: Apache-2.0
"""Files of a cache that name the directory they are in, and must be changed when they move.

Triton's ``__grp__*.json`` lists the files of a kernel with their absolute paths, and ignores those that
do not exist; see FileCacheManager in triton/runtime/cache.py. Inductor keeps what Triton compiles in its
own cache.
"""

from __future__ import annotations

import fnmatch
import json
import os

GROUP = "__grp__*.json"


def relocate(path: str, place: str) -> bool:
    """Change the file at `path` for `place`, where it is going to be; whether that was necessary.

    Content of another form is left as it is. Raises OSError.
    """
    if not fnmatch.fnmatchcase(os.path.basename(place), GROUP):
        return False
    home = os.path.dirname(place)
    with open(path, "r+b") as stream:
        try:
            content = json.loads(stream.read())
            children = {
                name: os.path.join(home, os.path.basename(name))
                for name in dict(content["child_paths"])
            }
            data = json.dumps(content | {"child_paths": children}).encode()
        except (ValueError, LookupError, TypeError, RecursionError):
            return False
        stream.seek(0)
        stream.write(data)
        stream.truncate()
    return True
