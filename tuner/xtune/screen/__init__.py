# SPDX-License-Identifier: Apache-2.0
"""What a search shows while it runs: lines, or a few that change in a terminal."""
