# SPDX-License-Identifier: Apache-2.0
"""A study as one page for a browser: what was found, how sure it is, and everything it rests on."""
