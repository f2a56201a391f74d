"""Replaces secrets in a stream of bytes by `***`, wherever the stream is split.

`Scrubber` is pure: the caller stores the state of a stream, `HeldBytes`, between two parts. A part never reveals the
beginning of a secret whose end may follow. The longest suffix that may still become a secret is held back instead. If
the end never comes, because the program was stopped or a part is lost, a beginning that reveals much is masked.

All occurrences of all masked forms count, also those that overlap: the union of their bytes is replaced, each connected
piece by one `***`. An Aho-Corasick automaton finds them in one pass over the bytes. Two measures keep that linear:

- Of periodic forms, such as `aaaaaaa` and `aaaaaaaa`, only the shortest ones are searched. They cover the longer ones.
- The search returns the occurrences of a few KiB at a time, so that its memory does not grow with their number.
"""

import itertools
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ahocorasick_rs import BytesAhoCorasick, Implementation

from runtime_jobs.masked_forms import common_forms, rare_forms

MASK: Final = b"***"
# The forms of one scrubber. Values come first, then their lines; the encoded forms of the longest values are left out.
MAX_FORM_BYTES: Final = 24 << 20
SEARCH_BYTES: Final = 16 << 10
REVEALING_BYTES: Final = 6  # a beginning of this length is masked where a stream ends; of short forms, half of them
PREFIX_LENGTH: Final = 6  # of the automaton that finds where a form may begin
CACHED_FORM_BYTES: Final = 64 << 20  # of all scrubbers that a process keeps

Interval = tuple[int, int]  # first byte, byte after the last one


@dataclass(frozen=True)
class HeldBytes:
    """The state of a stream between two parts.

    Attributes:
        data: The last bytes of the stream, which may be the beginning of a secret.
        masked: Number of leading bytes of `data` for which a mask was returned already.
    """

    data: bytes = b""
    masked: int = 0


@dataclass(frozen=True)
class Scrubbed:
    """A part of a stream without secrets.

    Attributes:
        output: The bytes that may be stored and displayed.
        held: The state after them.
        replacements: Number of masks in `output`.
    """

    output: bytes
    held: HeldBytes
    replacements: int


class Scrubber:
    """Finds a set of secrets in streams of bytes. It keeps no state of a stream, and any number of threads may use it.

    Attributes:
        form_bytes: The size of all forms that are searched.
        omitted: Number of forms that were left out, because the limit was reached.
    """

    def __init__(self, values: Iterable[str | bytes], *, max_form_bytes: int = MAX_FORM_BYTES) -> None:
        """Compile the automaton. That takes about a second for each 10 MB of forms.

        Args:
            values: The secrets. Empty ones are ignored.
            max_form_bytes: Limit of the size of all forms. The values themselves always count as forms.
        """
        limited, self.omitted = _limited_forms({_encoded(value) for value in values} - {b""}, max_form_bytes)
        forms = _without_covered(limited)
        self.form_bytes = sum(map(len, forms))
        self._sorted = sorted(forms)
        self._longest = max(map(len, forms), default=0)
        self._forms = _automaton(self._sorted)
        long_prefixes = sorted({form[:PREFIX_LENGTH] for form in forms if len(form) > PREFIX_LENGTH})
        self._prefixes = _automaton(long_prefixes)
        self._short_prefixes = {form[:size] for form in forms for size in range(1, min(PREFIX_LENGTH, len(form)))}

    def scrub(self, data: bytes) -> bytes:
        """Return the whole of a text without secrets."""
        return self.finish(HeldBytes(data)).output

    def is_in(self, text: bytes) -> bool:
        """Return whether a text contains a whole secret, in any form."""
        return next(self._occurrences(text), None) is not None

    def feed(self, held: HeldBytes, data: bytes) -> Scrubbed:
        """Continue a stream.

        Args:
            held: The state after the parts so far; `HeldBytes()` at the beginning.
            data: The next part.
        """
        text = held.data + data
        return self._replaced(text, held.masked, end=self._first_open(text), revealing=len(text))

    def interrupt(self, held: HeldBytes) -> Scrubbed:
        """Note that a part is missing after what is held back, and mask it if it reveals much of a secret.

        It stays held back: the next part may still complete the secret, which then has one mask.
        """
        if not held.data or self._first_revealing(held.data) > 0:
            return Scrubbed(b"", held, 0)
        output = b"" if held.masked else MASK
        return Scrubbed(output, HeldBytes(held.data, len(held.data)), len(output) // len(MASK))

    def finish(self, held: HeldBytes) -> Scrubbed:
        """End a stream: return what was held back, without a beginning that reveals much of a secret."""
        revealing = self._first_revealing(held.data)
        return self._replaced(held.data, held.masked, end=len(held.data), revealing=revealing)

    def _replaced(self, text: bytes, masked: int, *, end: int, revealing: int) -> Scrubbed:
        """Mask the text up to `end`, and hold back the rest.

        Args:
            text: The bytes that were held back, and those that follow them.
            masked: Number of leading bytes that are covered by a mask already.
            end: The first byte that may be part of a secret of which the end is not known yet.
            revealing: The first byte of a beginning that is masked as if it were the whole secret.
        """
        parts: list[bytes] = []
        replacements, written, covered = 0, min(masked, end), masked
        for begin, after in self._masked_intervals(text, masked, revealing):
            if begin >= end:
                break
            covered = after
            if begin == 0 and masked:
                written = min(after, end)
                continue
            parts += [text[written:begin], MASK]
            replacements += 1
            written = min(after, end)
        parts.append(text[written:end])
        return Scrubbed(b"".join(parts), HeldBytes(text[end:], max(0, covered - end)), replacements)

    def _masked_intervals(self, text: bytes, masked: int, revealing: int) -> Iterator[Interval]:
        """Yield the connected pieces of all occurrences, in order.

        The first `masked` bytes are such a piece, too, and those from `revealing` on.
        """
        begin, after = 0, masked
        before = itertools.takewhile(lambda occurrence: occurrence[0] < revealing, self._occurrences(text))
        for first, last in itertools.chain(before, [(revealing, len(text))]):
            if first < after:
                after = max(after, last)
                continue
            if after > begin:
                yield begin, after
            begin, after = first, last
        if after > begin:
            yield begin, after

    def _occurrences(self, text: bytes) -> Iterator[Interval]:
        """Yield the occurrences in the order of their first byte. Those that overlap are joined.

        The automaton reports them in the order of their end. Those of one piece of the text are sorted. The last ones
        are kept until the next piece, because an occurrence that ends there may overlap with them.
        """
        if self._forms is None or not text:
            return
        pending: list[Interval] = []
        size = max(SEARCH_BYTES, self._longest)
        for start in range(0, len(text), size):
            window_start = max(0, start - self._longest + 1)
            found = self._forms.find_matches_as_indexes(text[window_start : start + size], overlapping=True)
            shifted = [(window_start + first, window_start + last) for _, first, last in found]
            # Those that end before the piece were found with the piece before.
            pending = _merged(pending + [interval for interval in shifted if interval[1] > start])
            settled = start + size - self._longest + 1  # an occurrence that ends later begins here at the earliest
            remaining = [interval for interval in pending if interval[1] > settled]
            yield from pending[: len(pending) - len(remaining)]
            pending = remaining
        yield from pending

    def _first_open(self, text: bytes) -> int:
        """Return the start of the longest suffix that is the beginning of a form, without being the whole of it."""
        if self._forms is None:
            return len(text)
        start = max(0, len(text) - self._longest + 1)
        if self._prefixes is not None:
            for _, first, _ in self._prefixes.find_matches_as_indexes(text[start:], overlapping=True):
                if self._is_beginning(text[start + first :]):
                    return start + first
        for size in range(min(PREFIX_LENGTH - 1, len(text)), 0, -1):
            if text[-size:] in self._short_prefixes:
                return len(text) - size
        return len(text)

    def _first_revealing(self, text: bytes) -> int:
        """Return the start of the longest suffix that is the beginning of a form and reveals much of it."""
        for start in range(self._first_open(text), len(text)):
            suffix = text[start:]
            longer = self._beginning_with(suffix)
            if any(len(suffix) >= REVEALING_BYTES or 2 * len(suffix) >= len(form) for form in longer):
                return start
        return len(text)

    def _is_beginning(self, suffix: bytes) -> bool:
        return next(self._beginning_with(suffix), None) is not None

    def _beginning_with(self, suffix: bytes) -> Iterator[bytes]:
        """Yield the forms that begin with the suffix and are longer. They follow it in their order."""
        for place in range(bisect_right(self._sorted, suffix), len(self._sorted)):
            if not self._sorted[place].startswith(suffix):
                return
            yield self._sorted[place]


def _automaton(patterns: list[bytes]) -> BytesAhoCorasick | None:
    """Compile an automaton, or return None without patterns.

    For few patterns the library would choose a DFA. That of one secret of 8 KB took 34 seconds, this one 0.01.
    """
    return BytesAhoCorasick(patterns, implementation=Implementation.ContiguousNFA) if patterns else None


def _encoded(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")


def _limited_forms(values: set[bytes], limit: int) -> tuple[set[bytes], int]:
    """Return the forms of all values, and how many were left out at the limit."""
    forms, size, omitted = set(values), sum(map(len, values)), 0
    by_length = sorted(values, key=lambda value: (len(value), value))
    for value, forms_of in [
        *((value, common_forms) for value in by_length),
        *((value, rare_forms) for value in by_length),
    ]:
        for form in sorted(forms_of(value) - forms, key=len):
            if size + len(form) > limit:
                omitted += 1
                continue
            forms.add(form)
            size += len(form)
    return forms, omitted


def _without_covered(forms: set[bytes]) -> list[bytes]:
    """Leave out periodic forms that shorter ones of the same period cover.

    Of the forms with the period p that end alike, and whose lengths differ by a multiple of p, the shortest occurs in
    each longer one at distances of p. Its occurrences overlap, because it is twice as long as p at least.
    """
    kept: dict[tuple[bytes, int], bytes] = {}
    others: list[bytes] = []
    for form in sorted(forms, key=len):
        period = _short_period(form)
        if period:
            kept.setdefault((form[-period:], len(form) % period), form)
        else:
            others.append(form)
    return others + list(kept.values())


def _short_period(form: bytes) -> int:
    """Return the smallest period that is at most half of the form, or 0.

    If there is one, its first half occurs again at that distance, and not earlier.
    """
    half = (len(form) + 1) // 2
    distance = form.find(form[:half], 1)
    return distance if 0 < distance <= len(form) // 2 and form[distance:] == form[:-distance] else 0


def _merged(intervals: list[Interval]) -> list[Interval]:
    """Return the connected pieces of intervals, in order. Intervals that only touch remain apart."""
    merged: list[Interval] = []
    for first, last in sorted(intervals):
        if merged and first < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


class ScrubberCache:
    """Keeps the scrubbers that were used last, up to a size of all their forms.

    A job sends its log in thousands of parts with the same secrets. The automaton of a thousand secrets takes a tenth
    of a second to compile.
    """

    def __init__(self, max_form_bytes: int = CACHED_FORM_BYTES) -> None:
        self._limit, self._size = max_form_bytes, 0
        self._lock = threading.Lock()
        self._scrubbers: OrderedDict[tuple[str | bytes, ...], Scrubber] = OrderedDict()

    def get(self, values: Sequence[str | bytes]) -> Scrubber:
        """Return the scrubber of these secrets."""
        key = tuple(values)
        with self._lock:
            found = self._scrubbers.get(key)
            if found is not None:
                self._scrubbers.move_to_end(key)
                return found
        made = Scrubber(key)  # without the lock: other jobs must not wait for it
        with self._lock:
            if key not in self._scrubbers:
                self._scrubbers[key] = made
                self._size += made.form_bytes
            while self._size > self._limit and len(self._scrubbers) > 1:
                _, oldest = self._scrubbers.popitem(last=False)
                self._size -= oldest.form_bytes
        return made


scrubbers = ScrubberCache()
