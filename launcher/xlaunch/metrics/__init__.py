# SPDX-License-Identifier: Apache-2.0
"""What instances measure of themselves: metric lines, start barrier, the common window."""
