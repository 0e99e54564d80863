# SPDX-License-Identifier: Apache-2.0
"""Shows a search and its result: lines and a live status while it runs, then text, JSON and HTML."""
