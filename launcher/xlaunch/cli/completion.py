# SPDX-License-Identifier: Apache-2.0
"""`xlaunch completion`: a script that completes command lines in a shell."""

from xlaunch.options.completion import completion_command

command = completion_command("xlaunch")
