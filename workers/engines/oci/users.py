"""Finds the user of an image, as the OCI image specification defines it: by number or by name, in the image's files."""

from __future__ import annotations

import re
from dataclasses import dataclass

from workers.engines.oci.documents import ImageInvalid
from workers.engines.oci.inside import read_small

_FILE_BYTES = 1 << 20
_NUMBER = re.compile(r"\d{1,10}")
_MAX_ID = 2**31 - 1


@dataclass(frozen=True)
class ImageUser:
    """The numbers that the command sees as its own, and its home."""

    uid: int
    gid: int
    home: str


def find_user(root: int, user: str) -> ImageUser:
    """Return the user that a configuration names: `user`, `uid`, each with `:group` or `:gid`; root if it is empty.

    Raises:
        ImageInvalid: The image has no such user or group.
    """
    name, _, group = user.partition(":")
    accounts = _lines(root, "etc/passwd", 7)
    name = name or "0"
    number = _id(name)
    found = next((line for line in accounts if line[0] == name or (number is not None and line[2] == name)), None)
    uid = number if number is not None else _id(found[2]) if found else None
    if uid is None:
        raise ImageInvalid(f"The image has no user {ascii(name)[:100]} in its /etc/passwd.")
    gid = _group(root, group) if group else (_id(found[3]) or 0) if found else 0
    home = found[5] if found and found[5].startswith("/") else "/"
    return ImageUser(uid, gid, home)


def _group(root: int, group: str) -> int:
    number = _id(group)
    if number is None:
        number = next((_id(line[2]) for line in _lines(root, "etc/group", 4) if line[0] == group), None)
    if number is None:
        raise ImageInvalid(f"The image has no group {ascii(group)[:100]} in its /etc/group.")
    return number


def _lines(root: int, path: str, columns: int) -> list[list[str]]:
    text = read_small(root, path, _FILE_BYTES).decode("utf-8", "replace")
    lines = (line.replace("\0", "").split(":") for line in text.split("\n"))
    return [line for line in lines if len(line) >= columns]


def _id(text: str) -> int | None:
    number = int(text) if _NUMBER.fullmatch(text) and text.isascii() else _MAX_ID + 1
    return number if number <= _MAX_ID else None
