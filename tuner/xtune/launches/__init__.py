# SPDX-License-Identifier: Apache-2.0
"""One launch: starting the workload, watching it, and reading what it measured."""
