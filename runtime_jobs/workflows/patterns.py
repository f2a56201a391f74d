"""Glob patterns of branches, tags and paths in the triggers of workflows.

Patterns and names both come from authors of repositories, so a pattern is not translated into a regular expression,
which could take exponential time. A set of states, kept as the bits of one number, advances once for each character.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

MAX_PATTERN = 256  # characters
MAX_PATTERNS = 100  # of one filter


class GlobPattern:
    """A pattern: `*` matches characters other than `/`, `**` any characters, and others match themselves.

    `/**` also matches nothing, so `docs/**` matches `docs`; and `**/` likewise at the beginning of a path.
    """

    def __init__(self, source: str) -> None:
        """Translate a pattern without its `!` into transitions between states.

        State 0 is the beginning. A bit of a mask is a state in which that kind of transition begins.
        """
        self.source = source
        self._literal: dict[str, int] = {}  # to the next state, by this character
        self._repeat_any = self._repeat_in_segment = 0  # to the same state
        self._skip_one = self._skip_two = 0  # to a later state, by no character
        state = place = 0
        while place < len(source):
            bit = 1 << state
            if source.startswith("/**", place):
                self._skip_two |= bit
                self._add_literal("/", bit)
                self._repeat_any |= bit << 1
                self._skip_one |= bit << 1
                state, place = state + 2, place + 3
            elif source.startswith("**/", place):
                self._skip_two |= bit
                self._skip_one |= bit
                self._repeat_any |= bit << 1
                self._add_literal("/", bit << 1)
                state, place = state + 2, place + 3
            elif source.startswith("**", place):
                self._repeat_any |= bit
                place += 2
            elif source[place] == "*":
                self._repeat_in_segment |= bit
                place += 1
            else:
                self._add_literal(source[place], bit)
                state, place = state + 1, place + 1
        self._end = 1 << state

    def _add_literal(self, character: str, bit: int) -> None:
        self._literal[character] = self._literal.get(character, 0) | bit

    def matches(self, text: str) -> bool:
        """Return whether the whole text matches."""
        states = self._reachable(1)
        for character in text:
            moved = (states & self._literal.get(character, 0)) << 1
            stayed = states & (self._repeat_any if character == "/" else self._repeat_any | self._repeat_in_segment)
            if not (states := self._reachable(moved | stayed)):
                return False
        return bool(states & self._end)

    def _reachable(self, states: int) -> int:
        while True:
            more = states | (states & self._skip_one) << 1 | (states & self._skip_two) << 2
            if more == states:
                return states
            states = more


@lru_cache(maxsize=1024)
def _compiled(source: str) -> GlobPattern:
    return GlobPattern(source)


@dataclass(frozen=True)
class PatternList:
    """Patterns of one filter. The last pattern that matches decides; `!` at the beginning excludes.

    A list of exclusions alone includes the rest. An empty list includes everything.
    """

    patterns: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.patterns)

    @cached_property
    def _only_excludes(self) -> bool:
        return all(pattern.startswith("!") for pattern in self.patterns)

    def includes(self, text: str) -> bool:
        """Return whether the filter lets a name pass."""
        for pattern in reversed(self.patterns):
            is_exclusion = pattern.startswith("!")
            if _compiled(pattern.removeprefix("!") if is_exclusion else pattern).matches(text):
                return not is_exclusion
        return self._only_excludes

    def includes_any(self, texts: Iterable[str]) -> bool:
        """Return whether the filter is empty, or lets one of these names pass."""
        return not self.patterns or any(self.includes(text) for text in texts)
