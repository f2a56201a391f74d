"""Rules about files. Each returns the detail of the finding, or None."""

from __future__ import annotations

import re

from workers.report.events import DENIED, FileEvent
from workers.report.rules.context import RuleContext
from workers.report.rules.credential_paths import is_credential

_SET_ID = 0o6000

# Devices without effect or of the process itself, and the files of /proc that set a process's own attributes.
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


def credential_read(context: RuleContext[FileEvent]) -> str | None:
    """Find reads of files with credentials."""
    use = context.event
    if not use.ops & {"read", "rename"}:
        return None
    paths = (use.path,) if use.path == use.requested else (use.path, use.requested)
    if any(is_credential(path, context.program, context.paths, is_directory=use.directory) for path in paths):
        return context.paths.shown(use.path)
    return None


def write_outside(context: RuleContext[FileEvent]) -> str | None:
    """Find changes outside of the directories of the job."""
    use = context.event
    if not use.changes or context.paths.is_own(use.path) or _KERNEL.match(use.path) or _HARMLESS.match(use.path):
        return None
    if use.directory and use.errno == "EEXIST":  # `mkdir -p` asks for every part of a path
        return None
    if use.errno in DENIED and _CACHE.search(use.path):
        return None
    return _with_errno(use.path, use)


def kernel_write(context: RuleContext[FileEvent]) -> str | None:
    """Find changes below /proc and /sys."""
    use = context.event
    if use.changes and _KERNEL.match(use.path) and not _HARMLESS.match(use.path):
        return _with_errno(use.path, use)
    return None


def persistence_write(context: RuleContext[FileEvent]) -> str | None:
    """Find writes to files that shells, hooks or schedulers execute."""
    use = context.event
    is_git = context.program.is_one_of(_GIT) and not context.program.own
    if not use.changes or is_git or not _PICKED_UP.search(use.path):
        return None
    return _with_errno(context.paths.shown(use.path), use)


def setuid_bit(context: RuleContext[FileEvent]) -> str | None:
    """Find files that get a set-id bit."""
    use = context.event
    if use.mode is None or not use.mode & _SET_ID or use.directory:
        return None
    return _with_errno(context.paths.shown(use.path), use)


def _with_errno(path: str, use: FileEvent) -> str:
    return f"{path} ({use.errno})" if use.errno else path
