"""Derives the spellings in which a program may print a secret: encoded, quoted or line by line.

The module is pure. A spelling that is not listed here is not masked: reversed text, UTF-16, one character per line, or
colours between the characters.
"""

import base64
import json
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote, quote_plus

MIN_ENCODED_LENGTH: Final = 6  # bytes; the encoded forms of shorter values are ordinary text too often
# The encoded forms of further lines are not masked: the forms of a job have a limit, and take time. An indented line
# counts twice, with its blanks and without them.
MAX_ENCODED_LINES: Final = 200

_LINE_ENDS = re.compile(rb"\r\n|\n|\r")
_PERCENT_ESCAPES = re.compile(r"%[0-9A-F]{2}")
_UNSAFE_IN_SHELL = (
    re.compile(r"([^A-Za-z0-9_@%+=:,./-])"),
    re.compile(r"""([ \t'"\\|&;()<>!{}*\[\]?^$`,])"""),  # as bash's %q
)
_SPECIAL_IN_DOUBLE_QUOTES = re.compile(r"([\\\"$`])")
_ANSI_C = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\x1b": "\\E", "\a": "\\a", "\b": "\\b"}
# Characters that encoders leave as they are: RFC 3986, paths, encodeURIComponent, encodeURI, paths in Go.
_SAFE_IN_URLS = ("", "/", "!'()*", ";,/?:@&=+$!'()*#", "$&+,/:;=@")
_WRAPPED_BYTES = (57, 48)  # of a line of 76 characters (base64, MIME) and of 64 (openssl)
_BASE64_FIRST = (0, 2, 3)  # per alignment: the characters before these depend on the bytes before the value


def masked_forms(value: bytes) -> set[bytes]:
    """Return all spellings of a secret that are masked: the value, its lines, and the encoded forms of both.

    Args:
        value: The secret. A value below MIN_ENCODED_LENGTH bytes is masked as it is only; an empty one never.
    """
    if len(value) < MIN_ENCODED_LENGTH:
        return {value} - {b""}
    lines = list(dict.fromkeys(_lines(value)))  # without repeats, in their order
    forms = {value, *lines}
    for encoded in {value, *lines[:MAX_ENCODED_LINES]}:
        forms.update(_encoded_forms(encoded))
    forms.add(_LINE_ENDS.sub(b"\r\n", value))  # a terminal writes it so
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return forms | {quote(value, safe="").encode()}
    forms.update(form.encode() for form in (*_percent_forms(text), *_json_forms(text), *_shell_forms(text)))
    return forms


def _lines(value: bytes) -> Iterator[bytes]:
    for line in _LINE_ENDS.split(value):
        for form in (line, line.strip()):
            if len(form) >= MIN_ENCODED_LENGTH:
                yield form


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
        for encoded in (whole, whole.translate(bytes.maketrans(b"+/", b"-_"))):
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


def _percent_forms(text: str) -> Iterator[str]:
    for escaped in (quote_plus(text), *(quote(text, safe=safe) for safe in _SAFE_IN_URLS)):
        yield escaped
        yield _PERCENT_ESCAPES.sub(lambda found: found[0].lower(), escaped)
    # The messages of workflow commands escape these characters only.
    yield text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


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
