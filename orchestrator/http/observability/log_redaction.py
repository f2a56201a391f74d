"""No log line shows a capability: lease ids and tokens stand in it by their fingerprint, whoever wrote the line."""

import logging
import re
import traceback

from runtime_jobs.identifiers import ULID_PATTERN, fingerprint

# Whole ones first, then parts and upper case: what was cut off or shouted is still better not shown.
_SECRET = re.compile(
    rf"rtl_{ULID_PATTERN}|rto_(?:api|worker)_[A-Za-z0-9_-]{{43}}|rtl_[0-9A-Za-z]{{8,}}|rto_(?:api|worker)_[A-Za-z0-9_-]{{8,}}"
)


def redacted(text: str) -> str:
    """The text with `rtl_…` and `rto_…` replaced by `rtl:` or `rto:` and 16 hex digits of its SHA-256."""
    return _SECRET.sub(lambda found: f"{found[0][:3]}:{fingerprint(found[0])}", text)


class Redaction(logging.Filter):
    """For a handler: changes every record that passes, its arguments and its exception's text included."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = redacted(_message(record)), None
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        if record.exc_text:
            record.exc_text, record.exc_info = redacted(record.exc_text), None
        if record.stack_info:
            record.stack_info = redacted(record.stack_info)
        return True


def _message(record: logging.LogRecord) -> str:
    """A line whose arguments do not fit its format is still told: this is no place to fail."""
    try:
        return record.getMessage()
    except (TypeError, ValueError):
        return f"{record.msg} {record.args}"
