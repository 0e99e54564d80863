# SPDX-License-Identifier: Apache-2.0
"""Check who can change a file: the one rule for libraries, presets, configuration and caches.

A file that another user owns, or that every user may write, is refused, and so is one below such a
directory. One that a group may write is accepted with a note where this process is in that group.
Access lists (acl(5)) count like modes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

_MAX_LINKS = 40
"""The kernel's limit, see path_resolution(7)."""


class Ownership(NamedTuple):
    """Whether a file may be used."""

    refusal: str | None = None
    """Why it may not; None: it may."""
    note: str | None = None
    """What the user should know if it is used."""


def inspect_ownership(path: str, *, named: bool = False, private: bool = False) -> Ownership:
    """Decide whether `path` may be used, by who can change the file that it leads to.

    The file, every directory above it, and the same for each symbolic link on the way are checked.
    A sticky directory that everyone may write is accepted if its entry belongs to a trusted user.
    The owner of ``/`` counts as root, as root appears inside a user namespace, where it can be told
    from other users. On Windows, which has access lists instead, nothing is checked.

    `named`: the user typed this path; a refusal becomes a note. `private`: a directory of xlaunch for
    this user alone, which no group may write.
    """
    if not hasattr(os, "geteuid"):
        return Ownership()
    unmapped = _unmapped_user()
    trusted = {0, os.geteuid(), os.stat("/").st_uid}
    if unmapped is not None:
        trusted.discard(unmapped)
    mine = {os.getegid(), *os.getgroups()}
    shared: str | None = None
    refusal: str | None = None
    try:
        for here, status in _steps(os.path.abspath(path), [_MAX_LINKS]):
            if status.st_uid != unmapped:
                refusal = refusal or _danger(here, status, trusted)
            elif os.path.dirname(here) != "/":  # nobody but root puts anything there
                refusal = refusal or f"the owner of {here} is unknown in this user namespace"
            users, groups = _writers(here, status)
            for user in sorted(users - trusted):
                refusal = refusal or f"another user ({user_name(user)}) may write {here}"
            for group in sorted(groups):
                if shared is None or group not in mine:
                    shared = f"a group ({_group(group)}) may write {here}"
                if private or group not in mine:
                    refusal = refusal or shared
        if private and os.stat(path).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            refusal = refusal or f"{path} is for one user, and others may write it; chmod go-w it"
    except (OSError, ValueError) as error:
        if named:  # a pipe has no path to look at; what is not there is seen when it is opened
            return Ownership()
        reason = getattr(error, "strerror", None) or error
        return Ownership(f"{path} cannot be checked ({reason})")
    if refusal is not None:
        return Ownership(None, f"{refusal}; used as you named it") if named else Ownership(refusal)
    return Ownership(None, None if shared is None else f"{shared}, and you are in it")


def _steps(path: str, links_left: list[int]) -> Iterator[tuple[str, os.stat_result]]:
    """Every file on the way to an absolute path, which may contain ``..`` after a link."""
    here = "/"
    parts = [part for part in path.split("/") if part not in ("", ".")]
    for index, part in enumerate(["", *parts]):
        if part == "..":
            here = os.path.dirname(here)
            continue
        here = os.path.join(here, part)
        status = os.lstat(here)
        yield here, status
        if stat.S_ISLNK(status.st_mode):
            links_left[0] -= 1
            if links_left[0] < 0:
                raise OSError(errno.ELOOP, "a loop of symbolic links")
            target = os.path.join(os.path.dirname(here), os.readlink(here))
            yield from _steps(os.path.join(target, *parts[index:]), links_left)
            return


def _unmapped_user() -> int | None:
    """The user ID that stands for users without one in this user namespace: see user_namespaces(7)."""
    try:
        with open("/proc/self/uid_map", "rb") as stream:
            mapped = stream.read().split()
        if mapped == [b"0", b"0", b"4294967295"]:
            return None
        with open("/proc/sys/kernel/overflowuid", "rb") as stream:
            return int(stream.read())
    except (OSError, ValueError):  # no Linux, or no /proc
        return OVERFLOW_USER if sys.platform == "linux" else None


OVERFLOW_USER = 65534
"""The default of /proc/sys/kernel/overflowuid."""


def _danger(path: str, status: os.stat_result, trusted: set[int]) -> str | None:
    if status.st_uid not in trusted:
        return f"{path} belongs to another user ({user_name(status.st_uid)})"
    if _has_no_mode(status):
        return None
    return f"every user may write {path}" if status.st_mode & stat.S_IWOTH else None


def _writers(path: str, status: os.stat_result) -> tuple[set[int], set[int]]:
    """The users and groups, besides the owner and the user's own, that may write the file."""
    if _has_no_mode(status) or not status.st_mode & stat.S_IWGRP:
        return set(), set()
    users: set[int] = set()
    groups = {status.st_gid}
    # If there is an access list, the mode's bits for the group are the most that it can allow.
    with contextlib.suppress(OSError):  # there is none
        data = _access_list(path)
        for tag, permissions, number in struct.iter_unpack("<HHI", data[4:]):
            if permissions & ACL_WRITE and tag in (ACL_USER, ACL_GROUP):
                (users if tag == ACL_USER else groups).add(number)
    return users, {group for group in groups if not _is_own(group)}


def _access_list(path: str) -> bytes:
    """The file's access list in the kernel's form; empty without Linux. Raises OSError if it has none."""
    if sys.platform != "linux":
        return b""
    if hasattr(os, "getxattr"):
        return os.getxattr(path, ACL_NAME, follow_symlinks=False)
    import ctypes  # CPython offers os.getxattr with glibc only

    data = ctypes.create_string_buffer(ACL_MAX_BYTES)
    name, size = os.fsencode(path), ctypes.c_size_t(ACL_MAX_BYTES)
    length = ctypes.CDLL(None).lgetxattr(name, ACL_NAME.encode(), data, size)
    return data.raw[: max(0, length)]


ACL_NAME = "system.posix_acl_access"
ACL_MAX_BYTES = 1 << 16
"""XATTR_SIZE_MAX of linux/limits.h."""
ACL_USER, ACL_GROUP, ACL_WRITE = 0x02, 0x08, 0x02
"""Of named users and groups, from linux/posix_acl_xattr.h."""


def _has_no_mode(status: os.stat_result) -> bool:
    """Whether the mode is irrelevant, as it is for links and sticky directories."""
    mode = status.st_mode
    return stat.S_ISLNK(mode) or bool(stat.S_ISDIR(mode) and mode & stat.S_ISVTX)


def _is_own(gid: int) -> bool:
    """Whether the group is root's, or the user's own and nobody else's.

    Many systems give each user a group of the same name, and files that it may write.
    """
    if gid == 0:
        return True
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return (
        user.pw_gid == gid
        and group.gr_name == user.pw_name
        and not {*group.gr_mem} - {user.pw_name}
    )


def user_name(uid: int) -> str:
    """The name of a user. **Ex.:** ``alice``, or ``user 1000`` if it has none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _group(gid: int) -> str:
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return f"group {gid}"
