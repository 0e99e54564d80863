# SPDX-License-Identifier: Apache-2.0
"""What runs inside a Python program before the program itself: ``startup/sitecustomize.py``."""
