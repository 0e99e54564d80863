# SPDX-License-Identifier: Apache-2.0
"""Starting the workload and telling what was seen."""
