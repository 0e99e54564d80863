# SPDX-License-Identifier: Apache-2.0
"""How often the rules of `xlaunch doctor` are right, on scripts and on GPUs."""
