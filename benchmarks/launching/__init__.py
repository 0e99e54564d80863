# SPDX-License-Identifier: Apache-2.0
"""Starting, planning, allocators and OpenMP runtimes, and launches beside torch's run_cpu."""
