"""The pace at which listeners are woken: streams give way while other work wants the processor.

A wake-up of a thousand listeners is a thousand sends. Events that arrive together are sent together, so fewer wake-ups
cost less. While the processor is free, listeners get each event at once. While requests of this process or other
processes of the machine want it, the event loop has to wait during the sends. That time is measured. The next wake-up
follows a multiple of what is more than usual later.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

TOLERATED_WAIT: Final = 0.005  # seconds; other work this short delays no listener
WAITED_FACTOR: Final = 20.0
MAX_INTERVAL: Final = 0.25  # seconds
SMOOTHING: Final = 0.1  # the weight of the newest measurement
VALID_SECONDS: Final = 1.0  # older measurements say nothing about the present


class FanOutPace:
    """Measures how long the thread of an event loop waits for a processor or the interpreter while listeners send."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, processor_time: Callable[[], float] = time.thread_time
    ) -> None:
        """Create a pace without a measurement.

        Args:
            clock: Returns the time in seconds.
            processor_time: Returns the processor time of the calling thread in seconds.
        """
        self._clock, self._processor_time = clock, processor_time
        self._waited = self._measured_at = 0.0

    @property
    def interval(self) -> float:
        """Seconds between two wake-ups; 0 while nothing else wants the processor."""
        if self._clock() - self._measured_at > VALID_SECONDS:
            return 0.0
        return min(MAX_INTERVAL, WAITED_FACTOR * max(0.0, self._waited - TOLERATED_WAIT))

    def measure(self) -> None:
        """Measure until the listeners that were just woken have sent. Called in the event loop."""
        loop = asyncio.get_running_loop()
        # Their tasks run in the next iteration of the loop, which writes to the sockets at its end.
        loop.call_soon(loop.call_soon, self._end, self._clock(), self._processor_time())

    def _end(self, began: float, used: float) -> None:
        now = self._clock()
        waited = max(0.0, now - began - (self._processor_time() - used))
        if now - self._measured_at > VALID_SECONDS:
            self._waited = 0.0
        self._waited += SMOOTHING * (waited - self._waited)
        self._measured_at = now


pace = FanOutPace()  # a process has one event loop
