# SPDX-License-Identifier: Apache-2.0
"""What the commands share: rounds, turns of launches, ratios with intervals, other Pythons."""
