# SPDX-License-Identifier: Apache-2.0
"""Compile caches that are kept between runs: where each is, what it is valid for, and its upkeep.

Below one base directory, ``~/.cache/xlaunch/compiled`` unless `--cache-dir` names another:

    inductor/torch2.13.0-py3.11-x86_64-5f0c9a21/            the files of one cache under one key
    inductor/torch2.13.0-py3.11-x86_64-5f0c9a21.json        its key; the modification time is the last use
    inductor/torch2.13.0-py3.11-x86_64-5f0c9a21.imported    SHA-256 of imported files
    pruned                                                  its modification time is the last pruning

The first two names are a row of `table.CACHES` and a `key.Key`. A launch goes through `use`
(which caches, whether they may be used, the first files in them) and `store`
(directories and locks); `warm` says what it compiled, and `prune` starts beside it once a day.
"""
