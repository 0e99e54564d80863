# SPDX-License-Identifier: Apache-2.0
"""Faults that a script's source shows: nothing is run."""
