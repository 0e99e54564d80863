# SPDX-License-Identifier: Apache-2.0
"""Options from files: a named preset, the project's file, the user's file; and files of options."""
