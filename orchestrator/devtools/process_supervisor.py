"""Child processes that are started together, watched, started again when they die, and stopped in order.

Whatever happens to this process, no child outlives it: the kernel kills each when its parent dies.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Say = Callable[[str, str], None]  # name of the member (or "" for the crew itself), one line of text

RESTARTS = 5
WITHIN = 60.0  # seconds in which so many restarts are too many
RESTART_AFTER = 1.0
PATIENCE = 15.0  # seconds between asking to stop, asking again, and killing


class ProcessSupervisorError(Exception):
    """A member died too often, or never became ready; `str()` says which in one line."""


@dataclass
class ManagedProcess:
    """One child. It runs in a session of its own, so that Ctrl-C reaches it only through `Crew.stop`."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    is_vital: bool = True  # without it the others are of no use
    deaths: deque[float] = field(default_factory=lambda: deque(maxlen=RESTARTS + 1))
    process: subprocess.Popen[bytes] | None = None
    due: float | None = None  # when to start it again

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        # From the main thread only: the kernel's promise is about the thread that started the child.
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *self.command],
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.due = None

    def signal(self, number: int) -> None:
        if self.process is not None and self.is_running:
            self.process.send_signal(number)


class ProcessSupervisor:
    """The first member is the one that the others talk to: it stops last. Used from the main thread."""

    def __init__(self, members: Sequence[ManagedProcess], say: Say) -> None:
        self.members = list(members)
        self.say = say
        self.asked = 0  # how often somebody asked to stop
        self._readers: list[threading.Thread] = []

    def start(self, member: ManagedProcess) -> None:
        member.start()
        reader = threading.Thread(target=self._read, args=[member, member.process], daemon=True)
        reader.start()
        self._readers.append(reader)

    def look(self) -> None:
        """Start again what has died; to be called all the time. Raises CrewFailed when a vital one dies too often."""
        for member in self.members:
            if member.due is not None and time.monotonic() >= member.due:
                self.start(member)
            elif member.due is None and member.process is not None and not member.is_running:
                self._mourn(member)

    def stop(self) -> None:
        """End all, the first member last: ask, ask again (a worker then drops its jobs), kill. Every request to stop
        that comes meanwhile goes one step further at once."""
        self._end(self.members[1:])
        self._end(self.members[:1])
        for reader in self._readers:
            reader.join(timeout=2)

    def ask_to_stop(self, *_signal: object) -> None:
        """Note a request to stop; a signal handler."""
        self.asked += 1

    def _mourn(self, member: ManagedProcess) -> None:
        now = time.monotonic()
        member.deaths.append(now)
        end = describe_exit(member.process.returncode if member.process else None)
        if len(member.deaths) > RESTARTS and now - member.deaths[0] < WITHIN:
            if member.is_vital:
                raise ProcessSupervisorError(
                    f"{member.name} {end}, {len(member.deaths)} times within {WITHIN:.0f} seconds"
                )
            self.say("", f"{member.name} {end} again; it is not started any more, the others go on without it")
            member.process = None
            return
        self.say("", f"{member.name} {end}; starting it again ({len(member.deaths)} of {RESTARTS})")
        member.due = now + RESTART_AFTER

    def _end(self, members: Sequence[ManagedProcess]) -> None:
        for _ in range(2):
            for member in members:
                member.signal(signal.SIGTERM)
            self._wait(members)
        for member in members:
            member.signal(signal.SIGKILL)
        for member in members:
            if member.process:
                member.process.wait()

    def _wait(self, members: Sequence[ManagedProcess]) -> None:
        """Until they have ended, their time is up, or somebody asked once more."""
        begun, asked, told = time.monotonic(), self.asked, False
        while time.monotonic() - begun < PATIENCE and self.asked == asked:
            running = [member.name for member in members if member.is_running]
            if not running:
                return
            if not told and time.monotonic() - begun > 3:
                told = True
                self.say("", f"waiting for {', '.join(running)} to finish (Ctrl-C: do not wait)")
            time.sleep(0.05)

    def _read(self, member: ManagedProcess, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None  # noqa: S101 - PIPE above
        with contextlib.suppress(ValueError), process.stdout as lines:
            for line in lines:
                self.say(member.name, line.decode(errors="replace").rstrip())


def describe_exit(code: int | None) -> str:
    """Say in words how a process ended."""
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}"


def child_environment(**changes: str) -> dict[str, str]:
    """Return this process's environment for a child: its own timeouts, no buffering of its lines."""
    kept = {name: value for name, value in os.environ.items() if name != "DATABASE_ROLE"}
    return kept | {"PYTHONUNBUFFERED": "1"} | changes
