# SPDX-License-Identifier: Apache-2.0
"""The options of a launch: their table, the layers that set them, and preset files."""
