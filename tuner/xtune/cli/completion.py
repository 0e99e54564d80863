# SPDX-License-Identifier: Apache-2.0
"""`xtune completion`: a script that completes command lines in a shell."""

from xlaunch.options.completion import completion_command

command = completion_command("xtune")
