"""Writes results: tables and lines for people, one JSON value for programs (`-o json`)."""

import json
import re
import sys
from collections.abc import Sequence
from typing import Any, Final, TextIO

# Control characters, and those that change the direction of a text, so that it reads differently from what it is.
_DIRECTIONS: Final = r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_CONTROL: Final = re.compile(rf"[\x00-\x1f\x7f-\x9f{_DIRECTIONS}]")
# In the output of jobs, tabs, line ends and colors have a meaning; other sequences would move the cursor or worse.
_LOG_CONTROL: Final = re.compile(r"(\x1b\[[0-9;]{0,32}m)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_UNFINISHED_COLOR: Final = re.compile(r"\x1b(\[[0-9;]{0,32})?\Z")


class Printer:
    """Writes to standard output and standard error.

    Attributes:
        is_json: Whether programs read the output.
    """

    def __init__(self, *, is_json: bool, out: TextIO | None = None, error: TextIO | None = None) -> None:
        self.is_json = is_json
        self._out, self._error = out or sys.stdout, error or sys.stderr
        self._held_back = ""

    def value(self, value: Any) -> None:
        """Write one JSON value as a line."""
        self._write(json.dumps(value))

    def line(self, text: object) -> None:
        """Write a line for people, or for a script that reads one value."""
        self._write(printable(text))

    def result(self, value: Any, line: object) -> None:
        """Write the value for programs, the line for people."""
        if self.is_json:
            self.value(value)
        else:
            self.line(line)

    def fields(self, pairs: Sequence[tuple[str, Any]]) -> None:
        """Write names and values as lines. Values that are None are left out."""
        shown = [(name, value) for name, value in pairs if value is not None]
        width = max((len(name) for name, _ in shown), default=0) + 2
        for name, value in shown:
            self.line(f"{name:<{width}}{value}")

    def table(self, titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Write a table. None is `-`."""
        cells = [list(titles), *(["-" if cell is None else printable(cell) for cell in row] for row in rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(titles))]
        for row in cells:
            self.line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

    def log(self, text: str) -> None:
        """Write output of a job: as it is into a file or pipe, without control sequences to a terminal."""
        if self._out.isatty():
            text = self._held_back + text
            begin = _UNFINISHED_COLOR.search(text)
            self._held_back = begin[0] if begin else ""
            text = _LOG_CONTROL.sub(_colors_only, text[: begin.start()] if begin else text)
        self._out.write(text)
        self._out.flush()

    def note(self, text: object) -> None:
        """Write a line to standard error, beside the result."""
        self._error.write(f"{printable(text)}\n")
        self._error.flush()

    def failure(self, message: str, document: dict[str, Any]) -> None:
        """Write an error to standard error."""
        self.note(json.dumps(document) if self.is_json else f"stella: {message}")

    def _write(self, line: str) -> None:
        self._out.write(f"{line}\n")
        self._out.flush()


def printable(text: object) -> str:
    """Return a text without control characters, which other people's names might contain."""
    return _CONTROL.sub(_escaped, str(text))


def _escaped(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def _colors_only(found: re.Match[str]) -> str:
    return found[1] or _escaped(found)
