# SPDX-License-Identifier: Apache-2.0
"""xlaunch as another system would see it: other_system.py darwin|win32 ARGUMENTS...

`sys.platform` is the other system's, and what only Linux (or only POSIX) offers is gone from `os`
and `signal` before the first module of xlaunch is imported. The standard library and click, loaded
before, keep the real ones: they are what makes up for the difference there.
"""

import importlib
import os
import pkgutil
import signal
import sys
import types

LINUX_ONLY = {
    "os": "sched_getaffinity sched_setaffinity sched_yield pidfd_open memfd_create eventfd setns "
    "unshare splice getxattr setxattr listxattr removexattr getresuid setresuid waitid copy_file_range "
    "posix_fallocate process_cpu_count",
    "signal": "pidfd_send_signal sigwaitinfo sigtimedwait SIGRTMIN SIGRTMAX SIGPOLL SIGPWR SIGSTKFLT",
}  # fmt: skip
POSIX_ONLY = {
    "os": "fork forkpty getpgid getpgrp setpgid setsid getsid killpg getuid geteuid getgid getegid "
    "setuid setgid getgroups uname wait wait3 wait4 waitstatus_to_exitcode WIFSIGNALED WTERMSIG "
    "WIFEXITED WEXITSTATUS mkfifo sysconf confstr tcgetpgrp tcsetpgrp ttyname openpty fchmod fchown "
    "chown nice getloadavg pread pwrite writev readv posix_spawn posix_spawnp lockf chroot "
    "O_NONBLOCK O_CLOEXEC O_DIRECTORY O_NOFOLLOW set_blocking get_blocking "
    "getpriority setpriority register_at_fork",
    "signal": "SIGKILL SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGWINCH SIGCHLD SIGTSTP SIGCONT SIGSTOP "
    "SIGTTIN SIGTTOU SIGPIPE SIGALRM SIGXFSZ SIGXCPU pthread_sigmask pthread_kill sigpending "
    "sigwait alarm setitimer pause",
}  # fmt: skip
MISSING_MODULES = {
    "darwin": (),
    "win32": ("fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"),
}

LOADED_BEFORE = (
    "click", "ctypes", "hashlib", "json", "lzma", "pickle", "select", "selectors", "shutil", "socket",
    "subprocess", "tarfile", "tempfile", "threading",
)  # fmt: skip


def become(platform: str) -> None:
    for name in LOADED_BEFORE:
        importlib.import_module(name)
    click = sys.modules["click"]
    for module in pkgutil.iter_modules(click.__path__, "click."):
        if module.name != "click._winconsole":
            importlib.import_module(module.name)
    tables = [LINUX_ONLY] if platform == "darwin" else [LINUX_ONLY, POSIX_ONLY]
    for real in (os, signal):
        gone = {name for table in tables for name in table[real.__name__].split()}
        copy = types.ModuleType(real.__name__)
        vars(copy).update({name: value for name, value in vars(real).items() if name not in gone})
        sys.modules[real.__name__] = copy
    for name in MISSING_MODULES[platform]:
        sys.modules[name] = None
    sys.platform = platform


if __name__ == "__main__":
    platform, *arguments = sys.argv[1:]
    become(platform)
    assert not [name for name in sys.modules if name.partition(".")[0] == "xlaunch"]
    sys.argv[:] = ["xlaunch", *arguments]
    from xlaunch.cli import main

    main()
