"""Replaces lease ids, tokens and keys by their fingerprint in every log line, whichever code wrote it."""

import logging
import re
import traceback

from runtime_jobs.identifiers import ULID_PATTERN, fingerprint

# Complete secrets first, then truncated ones and other spellings.
_SECRET = re.compile(
    rf"rtl_{ULID_PATTERN}|rto_(?:api|worker)_[A-Za-z0-9_-]{{43}}|rto_hook_[0-9a-f]{{64}}"
    r"|rtl_[0-9A-Za-z]{8,}|rto_(?:api|worker|hook)_[A-Za-z0-9_-]{8,}"
    r"|whsec_[A-Za-z0-9+/]{8,}={0,2}"  # of outgoing webhooks
    r"|bencher_(?:runner|user|run)_[0-9A-Za-z]{8,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)?"  # a JSON Web Token
)
# A registration token of document 003. Texts of users may contain such digits, which are digests there.
_HEXADECIMAL = re.compile(r"(?<!sha256:)(?<![0-9A-Za-z])[0-9A-Fa-f]{64}(?![0-9A-Za-z])")


def redacted(text: str) -> str:
    """Return the text with each secret replaced by its first three letters and 16 hex digits of its SHA-256.

    `rtl_…` becomes `rtl:…`, `rto_…` becomes `rto:…`, `bencher_…_…` becomes `ben:…`, and a JSON Web Token `eyJ:…`.
    """
    return _SECRET.sub(_replacement, text)


def redacted_for_log(text: str) -> str:
    """Return the text as `redacted` does, and with 64 hexadecimal digits replaced, too: they may be a token."""
    return _HEXADECIMAL.sub(_replacement, redacted(text))


def _replacement(found: re.Match[str]) -> str:
    return f"{found[0][:3]}:{fingerprint(found[0])}"


class Redaction(logging.Filter):
    """Filter of a log handler: redacts the message, its arguments and the text of its exception."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = redacted_for_log(_message(record)), None
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        if record.exc_text:
            record.exc_text, record.exc_info = redacted_for_log(record.exc_text), None
        if record.stack_info:
            record.stack_info = redacted_for_log(record.stack_info)
        return True


def _message(record: logging.LogRecord) -> str:
    """Return the message, also of a record whose arguments do not match its format."""
    try:
        return record.getMessage()
    except (TypeError, ValueError):
        return f"{record.msg} {record.args}"
