"""Reads the commands `::notice …::text`, `::warning …::text` and `::error …::text` in the lines of a log.

The module is pure. Only whole lines count. The end of a part of a log is kept while it may still become a command.
"""

import re
from dataclasses import dataclass
from typing import Final

MAX_LINE_BYTES: Final = 16 << 10  # a longer line is no command
MAX_MESSAGE_LENGTH: Final = 4096
MAX_TITLE_LENGTH: Final = 255
MAX_PATH_LENGTH: Final = 1024
MAX_POSITION: Final = 2**31 - 1

_COMMAND = re.compile(
    r"\s*::(?P<level>notice|warning|error)(?:[ \t]+(?P<properties>[^\n]*?))?::(?P<message>.*)", re.DOTALL
)
_LEVELS = (b"::notice", b"::warning", b"::error")
_NO_COMMAND: Final = b"\x00"  # in place of an unfinished line that is no command, however it ends
_MESSAGE_ESCAPES = (("%0D", "\r"), ("%0A", "\n"), ("%25", "%"))
_PROPERTY_ESCAPES = (("%3A", ":"), ("%2C", ","), *_MESSAGE_ESCAPES)


@dataclass(frozen=True)
class WorkflowCommand:
    """A notice, warning or error of a program.

    Attributes:
        level: `notice`, `warning` or `error`.
        message: The text.
        title: A short text, or empty.
        path: The file that it concerns, or empty.
        start_line: The first line, from 1; None if unknown. Likewise the others.
    """

    level: str
    message: str
    title: str = ""
    path: str = ""
    start_line: int | None = None
    end_line: int | None = None
    start_column: int | None = None
    end_column: int | None = None


def read_commands(open_line: bytes, data: bytes) -> tuple[list[WorkflowCommand], bytes]:
    """Read the commands in the lines that end in a part of a log.

    Args:
        open_line: What the call for the part before has returned; empty at the beginning.
        data: The next part.

    Returns:
        The commands in their order, and the unfinished line at the end if it may become one.
    """
    text = open_line + data
    *lines, tail = text.split(b"\n") if b"::" in text else (text.rpartition(b"\n")[2],)
    commands = [command for line in lines if (command := read_command(line)) is not None]
    return commands, tail if _may_be_command(tail) else _NO_COMMAND


def read_command(line: bytes) -> WorkflowCommand | None:
    """Return the command that a whole line is, or None."""
    if len(line) > MAX_LINE_BYTES or not line.lstrip().startswith(_LEVELS):
        return None
    found = _COMMAND.fullmatch(line.decode(errors="replace").rstrip("\r"))
    if found is None:
        return None
    given = _properties(found["properties"] or "")
    return WorkflowCommand(
        level=found["level"],
        message=_clean(_unescaped(found["message"], _MESSAGE_ESCAPES), MAX_MESSAGE_LENGTH),
        title=_clean(given.get("title", ""), MAX_TITLE_LENGTH),
        path=_clean(given.get("file", ""), MAX_PATH_LENGTH),
        start_line=_position(given.get("line")),
        end_line=_position(given.get("endline")),
        start_column=_position(given.get("col")),
        end_column=_position(given.get("endcolumn")),
    )


def _may_be_command(line: bytes) -> bool:
    """Return whether a line without its end may be the beginning of a command."""
    begun = line.lstrip()
    return len(line) <= MAX_LINE_BYTES and any(begun.startswith(level) or level.startswith(begun) for level in _LEVELS)


def _properties(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(","))
    return {
        name.strip().lower(): _unescaped(value.strip(), _PROPERTY_ESCAPES)
        for name, is_given, value in pairs
        if is_given
    }


def _unescaped(text: str, escapes: tuple[tuple[str, str], ...]) -> str:
    for escape, character in escapes:
        text = text.replace(escape, character)
    return text


def _clean(text: str, limit: int) -> str:
    """Return a text that PostgreSQL stores: without NUL, and not too long."""
    return text.replace("\x00", "\ufffd")[:limit]


def _position(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_POSITION))):
        return None
    return number if 1 <= (number := int(text)) <= MAX_POSITION else None
