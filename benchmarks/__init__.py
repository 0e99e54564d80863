# SPDX-License-Identifier: Apache-2.0
"""Commands that measure, with the peer in the same run: `python -m benchmarks.SUBJECT[.COMMAND]`."""
