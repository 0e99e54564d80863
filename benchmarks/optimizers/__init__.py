# SPDX-License-Identifier: Apache-2.0
"""Optimizer steps beside torch's and IPEX's, and how well networks train with them."""
