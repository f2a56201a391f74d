"""Text for people about a job: one line, no control characters, nothing of the machine that ran it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Any

MAX_MESSAGE_LENGTH = 2000
# Lease ids and tokens, by their prefixes: knowing one is enough to use it.
CAPABILITY = re.compile(r"\b(rtl|rto|bencher_runner)_[\w-]+")


def one_line(text: Any, max_length: int = MAX_MESSAGE_LENGTH) -> str:
    """Return `text` with every run of blanks and control characters as one blank, no capability, cut with "…"."""
    plain = "".join(" " if unicodedata.category(sign)[0] in "CZ" else sign for sign in str(text)[: max_length * 4])
    plain = CAPABILITY.sub(r"\1_…", " ".join(plain.split()))
    return plain if len(plain) <= max_length else plain[: max_length - 1] + "…"


def scrubbed(text: Any, hidden: Iterable[tuple[str, str]], max_length: int = MAX_MESSAGE_LENGTH) -> str:
    """Return one line in which each of `hidden` (text, replacement) is replaced, longest first."""
    line = str(text)
    for original, replacement in sorted(hidden, key=lambda pair: -len(pair[0])):
        line = line.replace(original, replacement) if original else line
    return one_line(line, max_length)


def counted(number: int, noun: str) -> str:
    """Return "1,234 bytes", "1 byte"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
