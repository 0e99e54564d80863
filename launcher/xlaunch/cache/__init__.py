# SPDX-License-Identifier: Apache-2.0
"""Compile caches, kept between runs: where each lies, what makes it valid, and its upkeep.

Below one base directory, ``~/.cache/xlaunch/compiled`` unless `--cache-dir` names another:

    inductor/torch2.13.0-py3.11-x86_64-5f0c9a21/            the files of one cache under one key
    inductor/torch2.13.0-py3.11-x86_64-5f0c9a21.json        its key; the time stamp is its last use
    inductor/torch2.13.0-py3.11-x86_64-5f0c9a21.imported    SHA-256 of imported files
    pruned                                                  the time stamp is that of the last pruning

The first two names are a row of `table.CACHES` and a `key.Key`.
"""
