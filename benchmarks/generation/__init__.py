# SPDX-License-Identifier: Apache-2.0
"""Generating tokens beside eager and compiled transformers and llama.cpp."""
