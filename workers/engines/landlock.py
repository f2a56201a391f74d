"""Landlock: the files that a job may touch without a mount namespace, and the processes that it may reach."""

from __future__ import annotations

import ctypes
from pathlib import Path

from workers.engines.sandbox.launcher import PathRule

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIRECTORY = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHARACTER_DEVICE, _MAKE_BLOCK_DEVICE = 1 << 6, 1 << 11
_REFER, _TRUNCATE, _DEVICE_IOCTL = 1 << 13, 1 << 14, 1 << 15
_FIRST_RIGHTS = (1 << 13) - 1
_TCP_BIND_AND_CONNECT, _ABSTRACT_SOCKETS_AND_SIGNALS = 3, 3

SCOPES_SINCE = 6  # from here on a job cannot signal processes outside its domain
_CREATE_RULESET, _VERSION = 444, 1

READABLE = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
    *(f"/etc/{name}" for name in (
        "alternatives", "bash.bashrc", "ca-certificates", "debian_version", "gai.conf", "group", "host.conf", "hosts",
        "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "nsswitch.conf", "os-release", "passwd",
        "pki", "profile", "protocols", "resolv.conf", "services", "ssl/certs", "ssl/openssl.cnf", "timezone",
    )),
    # Not /proc itself: it shows every process of the machine. What a runtime asks about itself is lost with it.
    *(f"/proc/{name}" for name in ("cpuinfo", "filesystems", "loadavg", "meminfo", "stat", "uptime", "version")),
    "/proc/sys/kernel/cap_last_cap", "/proc/sys/kernel/osrelease", "/proc/sys/vm/overcommit_memory",
    "/proc/sys/kernel/ngroups_max", "/sys/devices/system/cpu",
)  # fmt: skip
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def version() -> int:
    """Return the version of Landlock that this kernel has; 0: none, or switched off."""
    libc = ctypes.CDLL(None, use_errno=True)
    return max(int(libc.syscall(_CREATE_RULESET, None, 0, _VERSION)), 0)


def handled(abi: int) -> int:
    """Return the file rights that this version of Landlock can restrict."""
    rights = _FIRST_RIGHTS
    rights |= _REFER if abi >= 2 else 0
    rights |= _TRUNCATE if abi >= 3 else 0
    return rights | (_DEVICE_IOCTL if abi >= 5 else 0)


def shape(abi: int) -> tuple[int, int, int, int]:
    """Return the attributes of a ruleset: their size in this version, and the rights that need a rule."""
    size = 8 if abi < 4 else 16 if abi < SCOPES_SINCE else 24
    return size, handled(abi), _TCP_BIND_AND_CONNECT, _ABSTRACT_SOCKETS_AND_SIGNALS


def domain(abi: int) -> tuple[tuple[int, int, int, int] | None, list[PathRule]]:
    """Return the smallest domain: it restricts no file, and no process in it reaches a process outside of it.

    The kernel refuses ptrace, and so `/proc/PID/mem` and the like, to a process in a domain that the target is not in;
    from `SCOPES_SINCE` on signals too. A domain without rights on files costs nothing at an `open`. Older kernels
    require at least one right: linking and renaming between directories, which version 1 forbids in every domain.

    Returns:
        The attributes as `shape` returns them, or None where the kernel has no such domain; and the rules.
    """
    if abi >= SCOPES_SINCE:
        return (24, 0, 0, _ABSTRACT_SOCKETS_AND_SIGNALS), []
    if abi >= 2:
        return (8, _REFER, 0, 0), [PathRule(_REFER, 0, "/")]
    return None, []


def rules(abi: int, *, writable: list[Path], readable: tuple[str, ...]) -> list[PathRule]:
    """Return the rules for the files of a job.

    Args:
        abi: The version of Landlock.
        writable: The directories of the job.
        readable: Further paths of the machine that the job may read.
    """
    known = handled(abi)
    read = _EXECUTE | _READ_FILE | _READ_DIRECTORY
    write = known & ~(_MAKE_CHARACTER_DEVICE | _MAKE_BLOCK_DEVICE | _DEVICE_IOCTL)
    use = _READ_FILE | (_WRITE_FILE | _TRUNCATE) & known
    return [
        *(PathRule(read, read & ~_READ_DIRECTORY, path) for path in (*READABLE, *readable)),
        *(PathRule(0, use, path) for path in DEVICES),
        *(PathRule(write, 0, str(path)) for path in writable),
    ]
