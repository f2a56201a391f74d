"""Completes a JSON text whose end is missing."""

import re
from typing import Final

# A string, or as much of it as has no incomplete escape and no half of a surrogate pair.
_PAIR: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_STRING: Final = rf'"(?:[^"\\]++|\\[^u]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{{4}}|{_PAIR})*+(?P<end>")?'
_TOKEN: Final = re.compile(rf"{_STRING}|[][{{}}:,]", re.DOTALL)
_CLOSERS: Final = {"{": "}", "[": "]"}
MAX_TOKENS: Final = 100_000  # a text with more is not worth the time


def close_json(text: str) -> str:
    """Return the text with its open string, lists and objects closed. A member or number that is cut is left out.

    The result is no JSON if the text is not the beginning of any, or has too many values.
    """
    closers: list[str] = []
    complete = 0  # the end of the last value that is complete; what closes the text there are always the closers
    before = ""
    for count, token in enumerate(_TOKEN.finditer(text)):
        found, is_value = token[0][0], before == ":" or closers[-1:] == ["]"]
        if count == MAX_TOKENS or (found in "]}" and not closers):
            return ""
        if found == '"' and token["end"] is None:
            return f'{text[: token.end()]}"{_join(closers)}' if is_value else text[:complete] + _join(closers)
        if found in _CLOSERS:
            closers.append(_CLOSERS[found])
        elif found in "]}":
            closers.pop()
        if found in "[{]}" or (found == '"' and is_value):
            complete = token.end()
        elif found == ",":
            complete = token.start()
        before = found
    return text[:complete] + _join(closers)


def _join(closers: list[str]) -> str:
    return "".join(reversed(closers))
