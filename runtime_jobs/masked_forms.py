"""Derives the spellings in which a program may print a secret: encoded, quoted or line by line.

The module is pure. SECURITY.md lists the spellings that are not masked.
"""

import base64
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, Final

from runtime_jobs.escapes import COMMON_ENCODERS, RARE_ENCODERS, doubled_percent_forms, markup_forms, percent_forms

MIN_ENCODED_LENGTH: Final = 6  # bytes; the encoded forms of shorter values are ordinary text too often
# The encoded forms of further lines, and of further members of a JSON document, are not masked: the forms of a job have
# a limit, and take time. An indented line counts twice, with its blanks and without them.
MAX_ENCODED_LINES: Final = 200
MAX_RARE_BYTES: Final = 4 << 10  # longer values have no rare forms, which are a hundred times as long together

_LINE_ENDS = re.compile(rb"\r\n|\n|\r")
_UNSAFE_IN_SHELL = (
    re.compile(r"([^A-Za-z0-9_@%+=:,./-])"),
    re.compile(r"""([ \t'"\\|&;()<>!{}*\[\]?^$`,])"""),  # as bash's %q
)
_SPECIAL_IN_DOUBLE_QUOTES = re.compile(r"([\\\"$`])")
_ANSI_C = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\x1b": "\\E", "\a": "\\a", "\b": "\\b"}
_WRAPPED_BYTES = (57, 48)  # of a line of 76 characters (base64, MIME) and of 64 (openssl)
_BASE64_FIRST = (0, 2, 3)  # per alignment: the characters before these depend on the bytes before the value
_BASE32_FIRST = (0, 2, 4, 5, 7)
_URL_ALPHABET = bytes.maketrans(b"+/", b"-_")


def masked_forms(value: bytes) -> set[bytes]:
    """Return all spellings of a secret that are masked: the value, its lines, and the encoded forms of both.

    Args:
        value: The secret. A value below MIN_ENCODED_LENGTH bytes is masked as it is only; an empty one never.
    """
    return common_forms(value) | rare_forms(value)


def common_forms(value: bytes) -> set[bytes]:
    """Return the spellings in which programs print a secret often. They are masked first if not all can be."""
    if len(value) < MIN_ENCODED_LENGTH:
        return {value} - {b""}
    lines = list(dict.fromkeys(_lines(value)))  # without repeats, in their order
    document = _json_document(value)
    members = list(dict.fromkeys(_members(document)))
    forms = {value, *lines, *members, *_json_texts(document)}
    for encoded in {value, *lines[:MAX_ENCODED_LINES], *members[:MAX_ENCODED_LINES]}:
        forms.update(_encoded_forms(encoded))
    forms.add(_LINE_ENDS.sub(b"\r\n", value))  # a terminal writes it so
    for text in (value, *members[:MAX_ENCODED_LINES]):
        forms.update(map(_utf8, (*percent_forms(text, COMMON_ENCODERS), *_quoted_forms(text))))
    return forms


def rare_forms(value: bytes) -> set[bytes]:
    """Return further spellings: those of less common encoders, and of two encoders one after the other."""
    if not MIN_ENCODED_LENGTH <= len(value) <= MAX_RARE_BYTES:
        return set()
    forms: set[bytes] = set()
    for text in (value, *itertools.islice(_members(_json_document(value)), MAX_ENCODED_LINES)):
        forms.update(_base32_forms(text), _doubled_base64_forms(text))
        percent = {*percent_forms(text, COMMON_ENCODERS), *percent_forms(text, RARE_ENCODERS)}
        forms.update(map(_utf8, (*percent, *doubled_percent_forms(percent), *_rare_text_forms(text))))
    return forms


def _lines(value: bytes) -> Iterator[bytes]:
    for line in _LINE_ENDS.split(value):
        for form in (line, line.strip()):
            if len(form) >= MIN_ENCODED_LENGTH:
                yield form


def _json_document(value: bytes) -> Any:
    """Return the object or list that the value is in JSON, or None."""
    if value.lstrip()[:1] not in {b"{", b"["}:
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _members(document: Any) -> Iterator[bytes]:
    """Yield the texts and numbers in a JSON document: each may be printed alone."""
    waiting = [document]
    while waiting:
        member = waiting.pop()
        if isinstance(member, dict):
            waiting += reversed(member.values())
        elif isinstance(member, list):
            waiting += reversed(member)
        elif isinstance(member, str | int | float) and not isinstance(member, bool):
            text = _utf8(str(member))
            if len(text) >= MIN_ENCODED_LENGTH:
                yield text


def _json_texts(document: Any) -> Iterator[bytes]:
    """Yield a JSON document in other layouts, as `jq -c` and Python write it."""
    if document is not None:
        for separators, ensure_ascii in itertools.product(((",", ":"), (", ", ": ")), (True, False)):
            yield _utf8(json.dumps(document, separators=separators, ensure_ascii=ensure_ascii))


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _encoded_forms(value: bytes) -> Iterator[bytes]:
    """Yield the value in base64 and in hexadecimal digits."""
    yield from _base64_forms(value)
    yield from _wrapped_base64_forms(value)
    yield value.hex().encode()
    yield value.hex().upper().encode()


def _base64_forms(value: bytes) -> Iterator[bytes]:
    """Yield what base64 makes of the value after any 0, 1 or 2 bytes, in both alphabets.

    The characters at the ends that other bytes influence are left out. If nothing follows the value, its last character
    and the padding are known, too.
    """
    for alignment, first in enumerate(_BASE64_FIRST):
        aligned = bytes(alignment) + value
        known = len(aligned) * 8 // 6
        whole = base64.b64encode(aligned)
        for encoded in (whole, whole.translate(_URL_ALPHABET)):
            yield encoded[first:known]
            yield encoded[first:].rstrip(b"=")
            yield encoded[first:]


def _wrapped_base64_forms(value: bytes) -> Iterator[bytes]:
    """Yield the lines into which programs wrap the base64 of a long value."""
    for width in _WRAPPED_BYTES:
        for begin in range(0, len(value) if len(value) > width else 0, width):
            piece = value[begin : begin + width]
            if len(piece) >= MIN_ENCODED_LENGTH:
                encoded = base64.b64encode(piece)
                yield encoded
                yield encoded[: len(piece) * 8 // 6]


def _doubled_base64_forms(value: bytes) -> Iterator[bytes]:
    """Yield what base64 makes of the base64 of the value, each after any bytes."""
    for inner in {*itertools.islice(_base64_forms(value), 0, None, 3)}:  # without what may follow the value
        for alignment, first in enumerate(_BASE64_FIRST):
            aligned = bytes(alignment) + inner
            yield base64.b64encode(aligned)[first : len(aligned) * 8 // 6]
    alone = base64.b64encode(base64.b64encode(value))
    yield from (alone, alone.rstrip(b"="))


def _base32_forms(value: bytes) -> Iterator[bytes]:
    """Yield what base32 makes of the value after any 0 to 4 bytes, in capitals and in small letters."""
    for alignment, first in enumerate(_BASE32_FIRST):
        aligned = bytes(alignment) + value
        whole = base64.b32encode(aligned)[first:]
        for encoded in (whole, whole.lower()):
            yield encoded[: len(aligned) * 8 // 5 - first]
            yield encoded.rstrip(b"=")
            yield encoded


def _quoted_forms(value: bytes) -> Iterator[str]:
    """Yield the value as messages of workflow commands, JSON and shells quote it."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return
    # The messages of workflow commands escape these characters only.
    yield text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    yield from _json_forms(text)
    yield from _shell_forms(text)


def _rare_text_forms(value: bytes) -> Iterator[str]:
    """Yield the value in another case, in markup, and between doubled quotes as in SQL and CSV."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return
    yield from (text.upper(), text.lower(), text[:1].upper() + text[1:])
    yield from markup_forms(text)
    yield text.replace("'", "''")
    yield text.replace('"', '""')
    yield text.replace("\\", "\\\\")  # as Python's repr


def _json_forms(text: str) -> Iterator[str]:
    for ensure_ascii in (True, False):
        quoted = json.dumps(text, ensure_ascii=ensure_ascii)[1:-1]
        yield quoted
        yield quoted.replace("/", "\\/")
        # Go and some templates also escape what HTML interprets.
        yield quoted.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
        yield json.dumps(quoted)[1:-1]  # JSON within JSON


def _shell_forms(text: str) -> Iterator[str]:
    yield text.replace("'", "'\\''")
    yield text.replace("'", "'\"'\"'")  # as Python's shlex.quote
    yield _SPECIAL_IN_DOUBLE_QUOTES.sub(r"\\\1", text)
    for unsafe in _UNSAFE_IN_SHELL:
        yield unsafe.sub(r"\\\1", text)
    yield "".join(_ANSI_C.get(character, character) for character in text)
