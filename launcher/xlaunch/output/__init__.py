# SPDX-License-Identifier: Apache-2.0
"""The output of instances: relayed by whole tagged lines, or written to log files."""
