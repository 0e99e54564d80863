# SPDX-License-Identifier: Apache-2.0
"""Signatures of bundles by SSH keys, made and verified by ``ssh-keygen -Y``; see ssh-keygen(1)."""

from __future__ import annotations

import os
import subprocess
import tempfile
from subprocess import CompletedProcess

from xlaunch.errors import UsageError
from xlaunch.files import open_input
from xlaunch.ownership import inspect_ownership
from xlaunch.text import printable

NAMESPACE = "xlaunch-cache"
"""Signatures for another namespace are refused."""

TIMEOUT_S = 60
"""For one call of ssh-keygen; a hardware key may wait for a touch."""

_PROMPTS = ("SSH_ASKPASS", "DISPLAY", "WAYLAND_DISPLAY")


def sign(data: bytes, key: str) -> bytes:
    """Sign with the private key in the file `key`, or with its copy in the SSH agent.

    Raises `UsageError`. Never asks for a passphrase.
    """
    done = _ssh_keygen("sign", "-f", os.path.abspath(key), "-n", NAMESPACE, data=data)
    if done.returncode != 0:
        raise UsageError(
            f"--sign {key!r}: ssh-keygen cannot sign with it: {_reason(done)}; name the file of a "
            "private key without a passphrase, or add the key to the SSH agent"
        )
    return done.stdout


def verify(data: bytes, signature: bytes, allowed_signers: str) -> str:
    """Return the identity in the file `allowed_signers` whose key has signed. Raises `UsageError`."""
    option = f"--allowed-signers {allowed_signers!r}"
    try:
        open_input(allowed_signers).close()
    except OSError as error:
        raise UsageError(f"{option} cannot be read: {error.strerror}") from None
    trusted = inspect_ownership(allowed_signers)
    shared = trusted.refusal or trusted.note
    if shared:
        raise UsageError(f"{option}: others could add a key to it: {shared}")
    if not signature:
        raise UsageError(f"{option}: the bundle is not signed")
    with tempfile.TemporaryFile() as file:
        file.write(signature)
        file.flush()
        descriptor = file.fileno()
        key = ("-f", os.path.abspath(allowed_signers), "-s", f"/proc/self/fd/{descriptor}")
        done = found = _ssh_keygen("find-principals", *key, inherited=descriptor)
        words = found.stdout.decode(errors="replace").replace(",", "\n").splitlines()
        for identity in [word for word in words if word and not word.startswith("!")]:
            done = _ssh_keygen(
                "verify", *key, "-I", identity, "-n", NAMESPACE, data=data, inherited=descriptor
            )
            if done.returncode == 0:
                return identity
    reason = _reason(done)
    if found.returncode != 0 and "principal" in reason:
        reason = "its key is not in that file"
    raise UsageError(f"{option}: the bundle is not signed by one of them: {reason}")


def _ssh_keygen(
    action: str, *arguments: str, data: bytes = b"", inherited: int | None = None
) -> CompletedProcess[bytes]:
    # In a new session there is no terminal at which it could ask for a passphrase.
    # One without a name, as of `env =x`, cannot be passed on.
    environment = {n: value for n, value in os.environ.items() if n and n not in _PROMPTS}
    environment |= {"SSH_ASKPASS_REQUIRE": "never", "LC_ALL": "C"}
    try:
        return subprocess.run(
            ["ssh-keygen", "-Y", action, *arguments],
            input=data,
            capture_output=True,
            env=environment,
            start_new_session=True,
            pass_fds=() if inherited is None else (inherited,),
            timeout=TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        what = "ssh-keygen, which signs and checks bundles, is not installed"
        raise UsageError(f"{what}; install OpenSSH's client (Debian: openssh-client)") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"ssh-keygen -Y {action} did not end within {TIMEOUT_S} s") from None


def _reason(done: CompletedProcess[bytes]) -> str:
    """The last line of its messages, with unprintable characters replaced."""
    text = (done.stderr or done.stdout).decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip("@ \t\r")]
    # It prompts even where it cannot be answered.
    return printable(
        lines[-1].removeprefix("Enter passphrase: ") if lines else f"exit code {done.returncode}"
    )
