# SPDX-License-Identifier: Apache-2.0
"""Which configuration to measure next, and when to stop."""
