# SPDX-License-Identifier: Apache-2.0
"""Shows a running search: live in a terminal, as plain lines elsewhere."""
