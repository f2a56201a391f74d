"""Guesses why a command failed, from the report of its runner (document 001, failure analysis). Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

SUMMARY_BYTES = 160
DETAILS_BYTES = 512
EXIT_TIMEOUT = 124  # of `timeout`


@dataclass(frozen=True)
class FailureDiagnosis:
    """Columns of `FailureExplanation`."""

    category: str
    confidence: str
    summary: str
    details: str


class DiagnosisRule(NamedTuple):
    """A rule that matches a message which contains one of `signs`, in any case of letters."""

    signs: tuple[str, ...]
    category: str
    confidence: str
    phrase: str


TIMEOUT = DiagnosisRule(("timed out", "timeout", "deadline exceeded"), "INFRA", "MEDIUM", "It took too long")
MESSAGE_RULES = (
    TIMEOUT,
    DiagnosisRule(
        ("out of memory", "no space", "disk full", "signal: killed", "killed"), "INFRA", "HIGH", "Resources ran out"
    ),
    DiagnosisRule(
        ("dial tcp", "connection refused", "i/o timeout", "temporary failure", "tls handshake timeout"),
        *("INFRA", "HIGH", "The network failed"),
    ),
    DiagnosisRule(
        ("command not found", "executable file not found", "no such file or directory"),
        *("TOOLING", "HIGH", "A program or file is missing"),
    ),
    DiagnosisRule(("permission denied",), "TOOLING", "MEDIUM", "A permission is missing"),
)
NAME_RULES = (
    DiagnosisRule(("lint", "vet"), "USER", "MEDIUM", "The lint step failed"),
    DiagnosisRule(("test",), "USER", "MEDIUM", "Tests failed"),
    DiagnosisRule(("build",), "USER", "MEDIUM", "The build failed"),
)
DEFAULT_RULE = DiagnosisRule((), "USER", "LOW", "The command failed")


def classify_failure(*, name: str, exit_code: int | None, message: str, logs: Sequence[str]) -> FailureDiagnosis:
    """Guess the cause of a failure; the first matching rule wins.

    Args:
        name: The name of the job.
        exit_code: The exit code of the command, if it ended.
        message: The runner's message.
        logs: Addresses of logs.
    """
    message = " ".join(message.split())
    rule = _rule(name.lower(), exit_code, message.lower())
    code = "" if exit_code is None else f"exit code {exit_code}"
    generic = not message or message.lower().startswith("exit status ")
    details = ["" if generic else message, code, logs[0] if logs else ""]
    return FailureDiagnosis(
        category=rule.category,
        confidence=rule.confidence,
        summary=_cut(f"{rule.phrase} ({code})." if code else f"{rule.phrase}.", SUMMARY_BYTES),
        details=_cut(" | ".join(filter(None, details)), DETAILS_BYTES),
    )


def _rule(name: str, exit_code: int | None, message: str) -> DiagnosisRule:
    if exit_code == EXIT_TIMEOUT:
        return TIMEOUT
    by_words = (rule for rule in MESSAGE_RULES if any(sign in message for sign in rule.signs))
    by_name = (rule for rule in NAME_RULES if any(sign in name for sign in rule.signs))
    return next(by_words, None) or next(by_name, DEFAULT_RULE)


def _cut(text: str, limit: int) -> str:
    """Return at most `limit` bytes in UTF-8, with an ellipsis for the rest."""
    raw = text.encode()
    return text if len(raw) <= limit else raw[: limit - 3].decode(errors="ignore") + "…"
