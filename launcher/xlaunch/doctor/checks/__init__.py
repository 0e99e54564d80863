# SPDX-License-Identifier: Apache-2.0
"""Checks of the machine: what was found, why it matters, and the command that changes it."""
