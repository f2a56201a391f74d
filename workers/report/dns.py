"""Reads the names of DNS queries. The bytes may be anything; what is no query has no name."""

from __future__ import annotations

_HEADER = 12


def questioned(message: bytes) -> str | None:
    """Return the first name of a DNS query (over TCP the length may come first), in lower case, or None.

    Bytes that a host name cannot have become U+FFFD: names are also a way to send data out.
    """
    return _name(message) or _name(message[2:])


def _name(message: bytes) -> str | None:
    if len(message) < _HEADER + 5 or message[2] & 0x80 or message[4:6] != b"\0\1":  # an answer, or not one question
        return None
    labels: list[str] = []
    position = _HEADER
    while position < len(message) and (length := message[position]):
        if length > 63 or len(labels) > 127:
            return None
        labels.append(_label(message[position + 1 : position + 1 + length]))
        position += 1 + length
    return ".".join(labels) if position < len(message) and labels else None


def _label(part: bytes) -> str:
    return "".join(chr(byte) if 0x20 < byte < 0x7F and byte != 0x2E else "\ufffd" for byte in part).lower()
