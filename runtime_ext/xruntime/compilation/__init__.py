# SPDX-License-Identifier: Apache-2.0
"""The compiler front end: modules compiled by Inductor, frozen, and compared with the eager module.

`compiled_code.CompiledCode` compiles, calls and compares one module; `streams.compiled_module` and
`kept.stream_code` are built on it.
"""
