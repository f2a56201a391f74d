"""Writes text as the encoders of URLs and of markup in common libraries do.

Their standards and habits differ in the characters that they leave as they are. The module is pure.
"""

import functools
import itertools
import string
from collections.abc import Iterable, Iterator
from typing import Final

_PUNCTUATION: Final = " " + string.punctuation


def _unescaped_but(escaped: str) -> str:
    return "".join(character for character in _PUNCTUATION if character not in escaped)


# The characters that encoders of URLs leave as they are, besides letters and digits.
_COMPONENTS: Final = (
    "-._~",  # RFC 3986: Python, curl, Go's QueryEscape
    "-._*",  # forms of WHATWG, Java's URLEncoder
    "-._~!'()*",  # JavaScript's encodeURIComponent, jq, Perl
)
COMMON_ENCODERS: Final = (
    *_COMPONENTS,
    "-._~/",  # Python's quote
    "-._~!$&'()*+,/:;=?@#",  # JavaScript's encodeURI
    "-._~$&+,/:;=@",  # paths in Go
)
RARE_ENCODERS: Final = (
    "",  # Rust's NON_ALPHANUMERIC
    "-._",  # PHP's urlencode
    "-._!*()",  # .NET's UrlEncode
    "-._~!'()*:",  # user info: Node's url.format
    "-._~$&+,;=",  # user info: Go
    "-._~!$&'()*+,;=",  # user info: RFC 3986, yarl
    "-._~!$&'()*+,;=:",  # user info: RFC 3986, urllib3, Java
    "-._~ +",  # user info: SQLAlchemy 2
    _unescaped_but(":@/"),  # user info: SQLAlchemy 1
    _unescaped_but(' "#<>?`{}/:;=@[\\]^|'),  # user info: WHATWG
    _unescaped_but(' "#<>?`{}/:;=@[\\]^|$%&+,'),  # components: WHATWG
    _unescaped_but(' "#<>?`{}'),  # paths: WHATWG
    _unescaped_but(' "#<>?`{}^'),  # paths: WHATWG, since 2024
    _unescaped_but(' "#<>'),  # queries: WHATWG
    _unescaped_but(" \"#<>'"),  # queries of https: WHATWG
    _unescaped_but(' "<>`'),  # fragments: WHATWG
    "-._~$&+=:@",  # segments of paths: Go
    "-._~!$&()*+,/:;=?@",  # fragments: Go
    "-._~!$&'()*+,;=:@",  # segments of paths: RFC 3986, Guava
    "-._~!$&'()*+,;=:@/",  # paths: RFC 3986, Java, yarl
    "-._~!$&'()*+,;=:@/?",  # queries: RFC 3986
    "-._~!$'()*,/:?@",  # queries: yarl
    "-._~!$&'()*+,/:;=?@[]",  # queries: Java, Ruby
    "-._~!$&'()*+,/:;=?@[]#%",  # Python's requests
)
_QUOTES_IN_MARKUP: Final = (
    ("&quot;", "&#x27;"),  # Python, Django
    ("&#34;", "&#39;"),  # Go, MarkupSafe
    ("&quot;", "&#39;"),  # Rails, lodash
    ("&quot;", "&#039;"),  # PHP
    ("&quot;", "&apos;"),  # XML
    ("&quot;", "'"),  # attributes
    ('"', "&apos;"),
    ('"', "'"),  # text
)
_BLANKS_IN_MARKUP: Final[tuple[dict[str, str], ...]] = (
    {},
    {"\n": "&#10;", "\r": "&#13;", "\t": "&#9;"},
    {"\n": "&#10;", "\r": "&#13;", "\t": "&#09;"},
    {"\n": "&#xA;", "\r": "&#xD;", "\t": "&#x9;"},
)


def percent_forms(value: bytes, encoders: Iterable[str]) -> Iterator[str]:
    """Yield a value as encoders of URLs write it, with capital and with small hexadecimal digits.

    Args:
        value: The value.
        encoders: Of each encoder, the characters that it leaves as they are.
    """
    texts = [value.decode("latin-1")]  # a character for each byte
    if not value.isascii():
        texts += _decoded(value)  # some encoders leave what is not ASCII
    for text, unescaped, digits in itertools.product(texts, encoders, ("%{:02X}", "%{:02x}")):
        escaped = text.translate(_percent_table(unescaped, digits, ascii_only=text is not texts[0]))
        yield escaped
        if "%20" in escaped:
            yield escaped.replace("%20", "+")


def doubled_percent_forms(forms: Iterable[str]) -> Iterator[str]:
    """Yield percent-encoded forms as an encoder of components writes them once more."""
    for form in forms:
        if "%" in form:
            yield form.replace("%", "%25")
            for unescaped, digits in itertools.product(_COMPONENTS, ("%{:02X}", "%{:02x}")):
                yield form.translate(_percent_table(unescaped, digits, ascii_only=True))


@functools.cache
def _percent_table(unescaped: str, digits: str, *, ascii_only: bool) -> dict[int, str | int | None]:
    kept = set(map(ord, string.ascii_letters + string.digits + unescaped))
    return {byte: digits.format(byte) for byte in range(128 if ascii_only else 256) if byte not in kept}


def _decoded(value: bytes) -> list[str]:
    try:
        return [value.decode()]
    except UnicodeDecodeError:
        return []


def markup_forms(text: str) -> Iterator[str]:
    """Yield a text as writers of HTML and XML write it, between tags and in attributes."""
    for (double, single), greater, blanks in itertools.product(_QUOTES_IN_MARKUP, ("&gt;", ">"), _BLANKS_IN_MARKUP):
        table: dict[str, str | int | None] = {
            "&": "&amp;",
            "<": "&lt;",
            ">": greater,
            '"': double,
            "'": single,
            **blanks,
        }
        escaped = text.translate(str.maketrans(table))
        yield escaped
        yield escaped.encode("ascii", "xmlcharrefreplace").decode()
