"""The values inside a strace line: strings, descriptors, lists, structures, addresses.

Every byte may have been chosen by the traced program. strace escapes quotes, angle brackets and control characters in
what it prints, so reading from left to right, string by string, is safe. Nothing here raises: what cannot be parsed is
None or empty.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# What can change how the following bytes are to be read; everything else is skipped at the speed of `re`. A string is
# one step. A lone quote never closes; a lone `<` opens a decoration if a descriptor precedes it (`1<<3` is a sum).
_SIGN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|["()\[\]{},]|(?<=[0-9D])<(?!<)', re.DOTALL)
# A decoration ends where an argument can end; "(deleted)" follows the bracket. With -yy they may be nested.
_DECORATION_END = re.compile(rb">(?:\(deleted\))?(?=[,)\]} =]|$)")
_DESCRIPTOR = re.compile(rb"(-?\d{1,10}|AT_FDCWD)(?:<(.*)>(\(deleted\))?)?$", re.DOTALL)
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_NAMED = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"v": b"\v", b"f": b"\f"}
_NUMBER = re.compile(rb"-?\d{1,19}$")
_IN_CALL = re.compile(rb'[a-z_0-9]+\((?:AF_INET6, )?"?([^"()]*)"?')

MAX_ITEMS = 1200  # strace itself stops at the string limit (-s 1024) when it prints argv


@dataclass(frozen=True, slots=True)
class Descriptor:
    """An open file as strace shows it with -y: `3</etc/hosts>`. `number` is None for AT_FDCWD."""

    number: int | None
    path: bytes | None
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class Address:
    """A socket address. `family`: inet, inet6, unix or the kernel's name; `host` is text, a path for unix."""

    family: str
    host: str
    port: int | None = None


def pieces(line: bytes, start: int = 0) -> tuple[list[bytes], int]:
    """Split at the commas of one level, up to the bracket that closes it.

    Returns:
        The pieces, and the position of the bracket; -1 if the line ended first, and the last piece is incomplete.
    """
    found: list[bytes] = []
    begin = position = start
    depth = 0
    while len(found) < MAX_ITEMS and (token := _SIGN.search(line, position)):
        position = token.end()
        byte = token[0]
        if byte == b",":
            if not depth:
                found.append(line[begin : position - 1].strip())
                begin = position
        elif byte in b"([{":
            depth += 1
        elif byte in b")]}":
            if not depth:
                return _closed(found, line[begin : position - 1]), position - 1
            depth -= 1
        elif byte == b"<" and (end := _DECORATION_END.search(line, position)):
            position = end.end()
        elif byte in b'<"':
            break
    return _closed(found, line[begin:]), -1


def _closed(found: list[bytes], last: bytes) -> list[bytes]:
    last = last.strip()
    return [*found, last] if last or found else []


def text(value: bytes) -> bytes | None:
    """Return the bytes of `"…"` or `@"…"` (an abstract socket), escapes undone; None if it is something else."""
    start = 1 if value.startswith(b'"') else 2 if value.startswith(b'@"') else 0
    if not start:
        return None
    stop = value.rfind(b'"')
    inner = value[start:stop] if stop >= start else value[start:]
    prefix = b"\0" if start == 2 else b""
    return prefix + (_ESCAPE.sub(_unescaped, inner) if b"\\" in inner else inner)


def _unescaped(found: re.Match[bytes]) -> bytes:
    body = found[1]
    if body[:1].isdigit():
        return bytes([int(body, 8) & 0xFF])
    if len(body) == 3:
        return bytes([int(body[1:], 16)])
    return _NAMED.get(body, body)


def descriptor(value: bytes) -> Descriptor | None:
    """Parse a descriptor such as `3</etc/hosts>`; None if it is something else."""
    found = _DESCRIPTOR.match(value)
    if not found:
        return None
    path = found[2]
    if path is not None and b"\\" in path:
        path = _ESCAPE.sub(_unescaped, path)
    return Descriptor(None if found[1] == b"AT_FDCWD" else int(found[1]), path, found[3] is not None)


def items(value: bytes) -> list[bytes]:
    """Return the elements of `[…]` or `{…}`."""
    return pieces(value, 1)[0] if value[:1] in (b"[", b"{") else []


def strings(value: bytes) -> list[bytes]:
    """Return an array of strings, such as argv; other elements (`...`) are left out."""
    return [found for item in items(value) if (found := text(item)) is not None]


def fields(value: bytes) -> dict[bytes, bytes]:
    """Return `{a=1, b="x"}` as a mapping; a part without a name is under its first word (`inet_pton`)."""
    named: dict[bytes, bytes] = {}
    for item in items(value):
        name, token, rest = item.partition(b"=")
        if token and b"(" not in name and b'"' not in name:
            named.setdefault(name, rest)
        else:
            named.setdefault(item.partition(b"(")[0], item)
    return named


def number(value: bytes) -> int | None:
    """Parse a decimal number; None if it is something else."""
    return int(value) if _NUMBER.match(value) else None


def address(value: bytes) -> Address | None:
    """Parse a `struct sockaddr`. None: NULL, or something else."""
    named = fields(value)
    family = named.get(b"sa_family", b"").removeprefix(b"AF_").lower()
    if family == b"inet":
        return Address("inet", _called(named.get(b"sin_addr")), _port(named.get(b"sin_port")))
    if family == b"inet6":
        return Address("inet6", _called(named.get(b"inet_pton")), _port(named.get(b"sin6_port")))
    if family == b"unix":
        path = text(named.get(b"sun_path", b"")) or b""
        return Address("unix", path.replace(b"\0", b"@").decode(errors="replace"))
    return Address(family.decode(errors="replace"), "") if family else None


def _called(value: bytes | None) -> str:
    """Return the argument of `inet_addr("…")`, `inet_pton(AF_INET6, "…", …)` or `htons(…)`."""
    found = _IN_CALL.match(value or b"")
    return found[1].decode(errors="replace") if found else ""


def _port(value: bytes | None) -> int | None:
    words = _called(value)
    return int(words) if words.isascii() and words.isdigit() and len(words) < 6 else None
