"""A slow and plain implementation of masking, as the reference of properties: it searches each form at each position."""

import functools
from collections.abc import Iterable

from runtime_jobs.masked_forms import masked_forms

MASK = b"***"


def forms_of(values: list[bytes]) -> set[bytes]:
    return {form for value in values for form in _forms_of_one(value)}


_forms_of_one = functools.lru_cache(masked_forms)


def occurrences(text: bytes, forms: set[bytes]) -> list[tuple[int, int]]:
    present = [form for form in forms if form in text]
    return [
        (begin, begin + len(form)) for begin in range(len(text)) for form in present if text.startswith(form, begin)
    ]


def revealing_suffix(text: bytes, forms: set[bytes]) -> int:
    """Return the length of the longest suffix that begins a longer form, and is six bytes or half of it."""
    sizes = range(len(text), 0, -1)
    return next((size for size in sizes if any(reveals(text[-size:], form) for form in forms)), 0)


def reveals(text: bytes, form: bytes) -> bool:
    return len(form) > len(text) and form.startswith(text) and (len(text) >= 6 or 2 * len(text) >= len(form))


def scrubbed(text: bytes, values: list[bytes], gaps: Iterable[int] = ()) -> bytes:
    """Replace each connected piece of the union of all occurrences, and of beginnings at the gaps and at the end."""
    output, position = b"", 0
    pieces: list[tuple[int, int]] = []
    forms = forms_of(values)
    cut = [(end - revealing_suffix(text[:end], forms), end) for end in (*gaps, len(text))]
    for begin, end in sorted(occurrences(text, forms) + [(begin, end) for begin, end in cut if begin < end]):
        if pieces and begin < pieces[-1][1]:
            pieces[-1] = (pieces[-1][0], max(pieces[-1][1], end))
        else:
            pieces.append((begin, end))
    for begin, end in pieces:
        output += text[position:begin] + MASK
        position = end
    return output + text[position:]


def longest_open_suffix(text: bytes, values: list[bytes]) -> int:
    """Return how many bytes at the end may be the beginning of a form."""
    forms = forms_of(values)
    return max(
        (
            size
            for size in range(1, len(text) + 1)
            for form in forms
            if len(form) > size and form.startswith(text[-size:])
        ),
        default=0,
    )
