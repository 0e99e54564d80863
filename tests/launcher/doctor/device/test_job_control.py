# SPDX-License-Identifier: Apache-2.0
"""`xlaunch doctor --device` as a job of a real shell: Ctrl-Z and fg, and the verdict after Ctrl-C."""

from __future__ import annotations

import sys

import pexpect
from tests.launcher.cli.commands import clean_environment

PROMPT = "ready> "
DOCTOR = f"{sys.executable} -m xlaunch doctor --device -- --ncores 1"


def test_ctrl_z_suspends_fg_goes_on_and_ctrl_c_is_reported():
    env = clean_environment(PS1=PROMPT, TERM="dumb")
    with pexpect.spawn("bash", ["--norc", "--noprofile", "-i"], env=env, timeout=20, encoding="utf-8") as shell:  # fmt: skip
        shell.setwinsize(40, 200)
        shell.expect_exact(PROMPT)
        # Words that are waited for are written so that the shell's echo does not show them.
        shell.sendline(f"{DOCTOR} sh -c 'echo star\"\"ted; exec sleep 100'")
        shell.expect_exact("started")
        shell.sendcontrol("z")
        shell.expect_exact("Stopped")
        shell.expect_exact(PROMPT)
        shell.sendline("fg")
        shell.expect_exact("of 1 CPUs")
        shell.sendintr()
        shell.expect_exact("was ended by SIGINT")
        shell.expect("(hardly used|worked on) the CPU|too short to say")  # the latter with a GPU
        shell.expect_exact(PROMPT)
        shell.sendline('echo "code $?"')
        shell.expect_exact("code 130")
        shell.sendeof()
        shell.close(force=True)
