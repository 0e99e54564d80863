# SPDX-License-Identifier: Apache-2.0
"""Small trees of sysfs and procfs, written by the test that reads them."""

from __future__ import annotations

from pathlib import Path

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"


def write_files(root: Path, files: dict[str, str]) -> str:
    """Write files below `root` and return it. A path that ends in a slash is an empty directory."""
    for path, text in files.items():
        target = root / path
        if path.endswith("/"):
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text + "\n")
    return str(root)


def cpus(online: str, **topology: dict[int, str] | list[str]) -> dict[str, str]:
    """The list of online CPUs, and files of their ``topology`` directories by name.

    **Ex.:** ``cpus("0-1", core_id=["0", "1"])`` gives CPUs 0 and 1 each a ``core_id``.
    """
    files = {f"{CPU}/online": online, f"{CPU}/cpu0/": ""}
    for name, values in topology.items():
        by_cpu = dict(enumerate(values)) if isinstance(values, list) else values
        for cpu, text in by_cpu.items():
            files[f"{CPU}/cpu{cpu}/topology/{name}"] = text
    return files


def cache(cpu: int, index: int, level: int, shared: str, kind: str = "Unified") -> dict[str, str]:
    """The files of one cache of one CPU; `shared` is a list."""
    directory = f"{CPU}/cpu{cpu}/cache/index{index}"
    return {
        f"{directory}/level": str(level),
        f"{directory}/type": kind,
        f"{directory}/shared_cpu_list": shared,
    }


def each(cpus: range, name: str, values: list[str]) -> dict[str, str]:
    """A file of the CPUs' own directories. **Ex.:** ``each(range(2), "online", ["1", "0"])``."""
    return {f"{CPU}/cpu{cpu}/{name}": value for cpu, value in zip(cpus, values, strict=True)}
