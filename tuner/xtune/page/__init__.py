# SPDX-License-Identifier: Apache-2.0
"""A study as one HTML page: the verdict, its uncertainty and the data behind it."""
