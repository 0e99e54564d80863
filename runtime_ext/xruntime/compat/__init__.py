# SPDX-License-Identifier: Apache-2.0
"""Calls of other libraries, as calls of xruntime and torch."""
