# SPDX-License-Identifier: Apache-2.0
"""Who could change a file before it is used: nobody but root and the user, or it is refused."""

from __future__ import annotations

import os
import stat

_MOST_LINKS = 40
"""As many as the kernel follows, see path_resolution(7)."""


def writable_by_others(path: str) -> str | None:
    """Why another user could change what `path` leads to; None when none can.

    Looked at: the file, every folder above it, and the same for each symbolic link on the way. A
    folder that all may write is no danger where it is sticky and what is in it is not another's.
    The owner of ``/`` counts as root: that is what root looks like from inside a user namespace.
    Windows has access lists instead, which are not looked at.
    """
    if not hasattr(os, "geteuid"):
        return None
    try:
        trusted = {0, os.geteuid(), os.stat("/").st_uid}
        return _check(os.path.abspath(path), trusted, [_MOST_LINKS])
    except (OSError, ValueError) as error:
        return f"{path} cannot be looked at ({getattr(error, 'strerror', None) or error})"


def _check(path: str, trusted: set[int], links_left: list[int]) -> str | None:
    """The same for an absolute path, which may hold ``..`` behind a link."""
    here = "/"
    parts = [part for part in path.split("/") if part not in ("", ".")]
    for index, part in enumerate(["", *parts]):
        if part == "..":
            here = os.path.dirname(here)
            continue
        here = os.path.join(here, part)
        status = os.lstat(here)
        if status.st_uid not in trusted:
            return f"{here} belongs to another user ({_user(status.st_uid)})"
        if stat.S_ISLNK(status.st_mode):
            links_left[0] -= 1
            if links_left[0] < 0:
                return f"{here} is a loop of symbolic links"
            target = os.path.join(os.path.dirname(here), os.readlink(here))
            return _check(os.path.join(target, *parts[index:]), trusted, links_left)
        reason = _mode_reason(here, status)
        if reason is not None:
            return reason
    return None


def _mode_reason(path: str, status: os.stat_result) -> str | None:
    mode = status.st_mode
    if stat.S_ISDIR(mode) and mode & stat.S_ISVTX:
        return None
    if mode & stat.S_IWOTH:
        return f"every user may write {path}"
    if mode & stat.S_IWGRP and not _private_group(status.st_gid):
        return f"a group ({_group(status.st_gid)}) may write {path}"
    return None


def _private_group(gid: int) -> bool:
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


def _user(uid: int) -> str:
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
