# SPDX-License-Identifier: Apache-2.0
"""Compiled code that the next process finds again, and that a child process makes meanwhile.

`served_model` has the libraries of a model, by kind of call; `call_libraries` says how a call is served. `fingerprint`
names a model by its code and weights. `calls` describes what calls the code serves. `making` compiles in a child
process, as an AOTInductor library. `store` is the cache directory that keeps it, `library` what it keeps of each. `kept_weights` keeps packed weights there, too.
"""
