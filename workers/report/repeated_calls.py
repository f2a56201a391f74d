"""Remembers the meaning of a line of a trace, so that the same call is counted and not parsed when it comes again.

Compilers and package managers open the same files over and over: four of five lines of a compile repeat the text of an
earlier one. Only openat relative to a working directory that strace shows is remembered. What such a line means depends
on its text and on the program of its process, and on nothing that has happened before.
"""

from __future__ import annotations

from dataclasses import dataclass

from workers.report.aggregates import FileAggregate
from workers.report.events import FileEvent
from workers.report.processes import Program
from workers.report.rules.registry import FindingRule

CALL = b"openat(AT_FDCWD</"
MAX_CALLS = 1 << 13  # remembered at a time
MAX_TEXT = 1024  # bytes of one call

Findings = tuple[tuple[FindingRule, str], ...]


@dataclass(frozen=True, slots=True)
class RepeatedCall:
    """Holds the meaning of a call. `event` is None if it used no file; then there is no aggregate either."""

    directory: str  # the working directory of its process
    is_denied: bool
    event: FileEvent | None = None
    findings: Findings = ()
    aggregate: FileAggregate | None = None


class RepeatedCalls:
    """Calls by program and text. When there are too many, all are forgotten."""

    def __init__(self) -> None:
        self._by_program: dict[Program, dict[bytes, RepeatedCall]] = {}
        self._size = 0
        self._last_program: Program | None = None
        self._last: dict[bytes, RepeatedCall] = {}

    def find(self, program: Program, text: bytes) -> RepeatedCall | None:
        return self._calls(program).get(text)

    def remember(self, program: Program, text: bytes, call: RepeatedCall) -> None:
        if len(text) > MAX_TEXT:
            return
        if self._size >= MAX_CALLS:
            self._by_program.clear()
            self._size, self._last_program = 0, None
        self._calls(program)[text] = call
        self._size += 1

    def _calls(self, program: Program) -> dict[bytes, RepeatedCall]:
        if program is not self._last_program:  # most lines follow one of the same process
            self._last_program, self._last = program, self._by_program.setdefault(program, {})
        return self._last
