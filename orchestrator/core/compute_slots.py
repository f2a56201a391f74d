"""Limits how many request threads run Python code at a time. A thread that waits for PostgreSQL does not count.

Only one thread of a process runs Python code, because the interpreter has one lock. A thread that needs the lock asks
for it after the switch interval, and any of the waiting threads gets it. The event loop needs it after each network
event. Beside fifteen busy threads it made three to five turns in a quarter of a second, of which it computed for 10 ms.
More threads of one client make none of its responses quicker. They only compete for the lock with the event loop and
with other clients.
"""

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

R = TypeVar("R")

COMPUTE_SLOTS: Final = 4
SLOTS_PER_CLIENT: Final = 1  # its other requests overlap with it while they wait for PostgreSQL
MAX_WAIT_SECONDS: Final = 0.1  # a thread that holds a slot may need a lock of a thread that waits for one


class ComputeSlots:
    """A counting semaphore with a limit for each client. A free slot goes to the oldest thread of the next client.

    A thread that waits for longer than `max_wait` continues without a slot. The slots are thus no lock: they delay
    threads, and cannot block them for ever.
    """

    def __init__(self, slots: int, *, per_client: int, max_wait: float = MAX_WAIT_SECONDS) -> None:
        """Create the slots.

        Args:
            slots: Number of threads that have a slot at a time.
            per_client: Number of threads of one client that have a slot at a time.
            max_wait: Seconds.
        """
        self._max_wait = max_wait
        self._free, self._per_client = slots, per_client
        self._held: Counter[Hashable] = Counter()
        self._mutex = threading.Lock()
        self._waiting: OrderedDict[Hashable, deque[threading.Lock]] = OrderedDict()  # the next client is first
        self._thread = threading.local()

    def run(self, client: Hashable, function: Callable[..., R], *values: object) -> R:
        """Call the function with a slot that is counted for the client."""
        self._thread.client = client
        self._thread.is_counted = True
        self.enter()
        try:
            return function(*values)
        finally:
            self.leave()
            self._thread.is_counted = False

    def leave(self) -> bool:
        """Free the slot of this thread before it waits for something else than the interpreter.

        Returns:
            Whether `enter` must be called afterwards: False in a thread that `run` did not start.
        """
        thread = self._thread
        if not getattr(thread, "is_counted", False):
            return False
        if thread.has_slot:
            thread.has_slot = False
            with self._mutex:
                self._give_back(thread.client)
        return True

    def enter(self) -> None:
        """Wait for a slot."""
        thread = self._thread
        with self._mutex:
            if self._take(thread.client):
                thread.has_slot = True
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.setdefault(thread.client, deque()).append(turn)
        if turn.acquire(timeout=self._max_wait):
            thread.has_slot = True
            return
        with self._mutex:
            thread.has_slot = not self._withdraw(thread.client, turn)

    @contextmanager
    def released(self) -> Iterator[None]:
        """Free the slot of this thread for the block."""
        must_enter = self.leave()
        try:
            yield
        finally:
            if must_enter:
                self.enter()

    def _take(self, client: Hashable) -> bool:
        if not self._free or self._held[client] >= self._per_client:
            return False
        self._free -= 1
        self._held[client] += 1
        return True

    def _give_back(self, client: Hashable) -> None:
        """Free a slot, and give it to the oldest thread of the next client that may have one."""
        self._free += 1
        self._held[client] -= 1
        if not self._held[client]:
            del self._held[client]
        for candidate in self._waiting:
            if self._take(candidate):
                turns = self._waiting.pop(candidate)
                turns.popleft().release()
                if turns:
                    self._waiting[candidate] = turns  # behind the other clients
                return

    def _withdraw(self, client: Hashable, turn: threading.Lock) -> bool:
        """Stop waiting. Returns False if the slot was given in the meantime."""
        turns = self._waiting.get(client)
        if turns is None or turn not in turns:
            return False
        turns.remove(turn)
        if not turns:
            del self._waiting[client]
        return True


compute_slots = ComputeSlots(COMPUTE_SLOTS, per_client=SLOTS_PER_CLIENT)
