"""Counts distinct texts, exactly, in bounded memory."""

from __future__ import annotations

from array import array

_FREE = 0


class DistinctCounter:
    """Counts distinct texts.

    Only 64 bits of each are kept: Python's own hash of text, keyed anew in every process, so that no input can be made
    to collide. This takes 16 bytes a text; past `limit` (32 MiB by then) it stops counting and sets `is_full`.
    """

    def __init__(self, limit: int = 1 << 21) -> None:
        self.count = 0
        self.is_full = False
        self._limit = limit
        self._slots = array("Q", bytes(8 * 1024))

    def add(self, text: str) -> bool:
        """Add a text. Returns whether it is new, as far as that is known."""
        if self.is_full:
            return False
        mark = hash(text) & 0xFFFFFFFFFFFFFFFF or 1
        slot = self._slot(mark)
        if self._slots[slot] == mark:
            return False
        self._slots[slot] = mark
        self.count += 1
        self._make_room()
        return True

    def _slot(self, mark: int) -> int:
        mask = len(self._slots) - 1
        slot = (mark * 0x9E3779B97F4A7C15 >> 16) & mask
        while self._slots[slot] not in (mark, _FREE):
            slot = (slot + 1) & mask
        return slot

    def _make_room(self) -> None:
        if self.count >= self._limit:
            self.is_full = True
        elif 2 * self.count > len(self._slots):
            old = self._slots
            self._slots = array("Q", bytes(16 * len(old)))
            for mark in old:
                if mark != _FREE:
                    self._slots[self._slot(mark)] = mark
