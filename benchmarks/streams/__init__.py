# SPDX-License-Identifier: Apache-2.0
"""Threads in one process beside processes, and a Task beside other ways to hand over a call."""
