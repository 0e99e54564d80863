# SPDX-License-Identifier: Apache-2.0
"""CPU pools, and threads with OpenMP teams of their own that work on them."""
