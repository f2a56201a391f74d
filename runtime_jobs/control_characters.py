"""Control characters and bidirectional formatting characters in text that people read.

ESC steers a terminal. A bidirectional override makes text read differently from what it is (CVE-2021-42574).
"""

import re

_ANYWHERE = "\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069"
# Text has tabs and newlines. Directional marks reorder nothing but themselves: right-to-left prose has them.
_IN_TEXT = re.compile(f"[\\r{_ANYWHERE}]")
_IN_LABEL = re.compile(f"[\\t\\n\\r\\u061c\\u200e\\u200f{_ANYWHERE}]")
_IN_PAGE = re.compile(  # the same in UTF-8; HTML may have CR
    rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xa8-\xae]|\xe2\x81[\xa6-\xa9]"
)


def wrong_label(text: str) -> str | None:
    """Return what is wrong with a name that is shown in one line, or None."""
    found = _IN_LABEL.search(text)
    if found is None:
        return None
    return (
        f"Character {found.start() + 1} is U+{ord(found[0]):04X}: "
        "control characters and bidirectional formatting characters are not allowed."
    )


def escape_controls(text: str) -> str:
    r"""Return the text with these characters spelled out, such as `\x1b` and `\u202e`. Tabs and newlines stay."""
    return _IN_TEXT.sub(lambda found: _spelled(ord(found[0])), text)


def escape_controls_in_page(page: bytes) -> bytes:
    """Return a page in UTF-8 with these characters spelled out, wherever in the page they came from."""
    return _IN_PAGE.sub(lambda found: _spelled(ord(found[0].decode())).encode(), page)


def _spelled(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
