"""Diagnostics of a workflow file: what is wrong, at which path and line."""

import json
import re
from dataclasses import dataclass, field
from enum import StrEnum

MAX_DIAGNOSTICS = 50  # of one file; a file may be wrong in each of its lines
_MAX_KEY = 60  # characters of a key in a path
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


class Severity(StrEnum):
    """The severity of a diagnostic. A file with an error starts no run."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True)
class Diagnostic:
    """One fault of a workflow file.

    Attributes:
        path: The keys that lead to the fault, such as `jobs.build.steps[0].run`; empty for the whole file.
        line: The line of the file, from 1.
        message: The fault and its remedy, for people.
        severity: Whether the fault prevents a run.
    """

    path: str
    line: int
    message: str
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{self.line}: {self.severity}: {where}{self.message}"

    def as_json(self) -> dict[str, str | int]:
        return {"path": self.path, "line": self.line, "message": self.message, "severity": str(self.severity)}


@dataclass
class Diagnostics:
    """Collects the diagnostics of one file, up to `MAX_DIAGNOSTICS`."""

    found: list[Diagnostic] = field(default_factory=list)
    has_errors: bool = False

    def error(self, path: str, line: int, message: str) -> None:
        """Add a fault that prevents a run."""
        self.has_errors = True
        self._add(Diagnostic(path, line, message))

    def warning(self, path: str, line: int, message: str) -> None:
        """Add a fault that does not prevent a run."""
        self._add(Diagnostic(path, line, message, Severity.WARNING))

    def _add(self, diagnostic: Diagnostic) -> None:
        if len(self.found) < MAX_DIAGNOSTICS:
            self.found.append(diagnostic)
        elif len(self.found) == MAX_DIAGNOSTICS:
            message = f"Further diagnostics are left out: at most {MAX_DIAGNOSTICS} are reported."
            self.found.append(Diagnostic("", diagnostic.line, message, diagnostic.severity))

    def in_order(self) -> tuple[Diagnostic, ...]:
        """Return the diagnostics in the order of the file's lines."""
        return tuple(sorted(self.found, key=lambda diagnostic: diagnostic.line))


def member_path(parent: str, key: str) -> str:
    """Return the path of a member of a mapping. A key that is no identifier is quoted, and cut if it is long."""
    shown = key if len(key) <= _MAX_KEY else f"{key[:_MAX_KEY]}…"
    if not _IDENTIFIER.fullmatch(shown):
        return f"{parent}[{json.dumps(shown)}]"
    return f"{parent}.{shown}" if parent else shown


def item_path(parent: str, index: int) -> str:
    """Return the path of an item of a list."""
    return f"{parent}[{index}]"


def quoted(text: str) -> str:
    """Return text of the file for a message: in ASCII, on one line, cut if it is long."""
    return json.dumps(text if len(text) <= _MAX_KEY else f"{text[:_MAX_KEY]}…")
