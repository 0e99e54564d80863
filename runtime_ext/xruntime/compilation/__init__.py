# SPDX-License-Identifier: Apache-2.0
"""The compiler front end: modules compiled by Inductor, frozen, and compared with the eager module.

`compiled_code.CompiledCode` compiles, calls and compares one module; `for_streams` is built on it.
"""
