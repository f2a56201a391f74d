"""Rules about files. Each takes a use, the process and the scene, and returns what to say about it, or None."""

from __future__ import annotations

import re

from workers.report.events import DENIED, FileUse
from workers.report.rules.context import RuleContext
from workers.report.rules.credential_paths import is_credential

_SET_ID = 0o6000

# Devices that swallow or belong to the process itself; of /proc what a process may say about itself.
_HARMLESS = re.compile(
    r"/dev/(?:null|zero|full|random|urandom|tty|ptmx|pts/\d+|stdin|stdout|stderr|fd(?:/\d+)?)$"
    r"|/proc/(?:self|thread-self|\d+)/(?:fd/\d+|(?:task/\d+/)?(?:comm|oom_score_adj|oom_adj|timerslack_ns|clear_refs"
    r"|coredump_filter))$"
)
_KERNEL = re.compile(r"/(?:proc|sys)/")
_CACHE = re.compile(r"/__pycache__(?:/|$)")  # Python tries to keep its bytecode wherever it read the source
_PICKED_UP = re.compile(
    r"/\.(?:bashrc|bash_profile|bash_login|profile|bash_logout|zshrc|zprofile|zshenv|kshrc|cshrc|gitconfig)$"
    r"|/\.config/(?:fish/config\.fish|autostart/.+|systemd/user/.+|git/config)$"
    r"|/\.ssh/(?:authorized_keys|config|rc)$"
    r"|/etc/(?:cron[^/]*(?:/.*)?|profile(?:\.d/.*)?|ld\.so\.preload|rc\.local|init\.d/.*|systemd/.*)$|/var/spool/cron/.*$"
    r"|/\.git/hooks/(?!.*\.sample$).+$"
)
_GIT = frozenset({"git"})


def credential_read(case: RuleContext[FileUse]) -> str | None:
    use = case.fact
    if not use.ops & {"read", "rename"}:
        return None
    paths = (use.path,) if use.path == use.asked else (use.path, use.asked)
    if any(is_credential(path, case.program, case.ground, is_directory=use.directory) for path in paths):
        return case.ground.shown(use.path)
    return None


def write_outside(case: RuleContext[FileUse]) -> str | None:
    use = case.fact
    if not use.changes or case.ground.is_own(use.path) or _KERNEL.match(use.path) or _HARMLESS.match(use.path):
        return None
    if use.directory and use.errno == "EEXIST":  # `mkdir -p` asks for every part of a path
        return None
    if use.errno in DENIED and _CACHE.search(use.path):
        return None
    return _with_errno(use.path, use)


def kernel_write(case: RuleContext[FileUse]) -> str | None:
    use = case.fact
    if use.changes and _KERNEL.match(use.path) and not _HARMLESS.match(use.path):
        return _with_errno(use.path, use)
    return None


def persistence_write(case: RuleContext[FileUse]) -> str | None:
    use = case.fact
    is_git = case.program.is_one_of(_GIT) and not case.program.own
    if not use.changes or is_git or not _PICKED_UP.search(use.path):
        return None
    return _with_errno(case.ground.shown(use.path), use)


def setuid_bit(case: RuleContext[FileUse]) -> str | None:
    use = case.fact
    if use.mode is None or not use.mode & _SET_ID or use.directory:
        return None
    return _with_errno(case.ground.shown(use.path), use)


def _with_errno(path: str, use: FileUse) -> str:
    return f"{path} ({use.errno})" if use.errno else path
