# SPDX-License-Identifier: Apache-2.0
"""Compiling modules with Inductor, and comparing them with the eager module."""
