"""Places where a test can make the worker fail: ORCH_FP="name=kill|stop:3|raise|sleep:5", several joined by commas.

Read only when ORCH_TEST=1; otherwise a failpoint costs one lookup in an empty dict.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time


class FailpointReached(RuntimeError):
    """The exception of the action `raise`."""


def armed(environment: dict[str, str]) -> dict[str, str]:
    """Return name -> action from ORCH_FP, or nothing outside tests."""
    if environment.get("ORCH_TEST") != "1":
        return {}
    pairs = (item.partition("=") for item in environment.get("ORCH_FP", "").split(",") if item)
    return {name.strip(): action.strip() for name, _, action in pairs}


# On a busy machine the process may not have stopped yet, and would never be woken. The wait is limited because the test
# may have woken it before.
_WAKE = """
sleep "$1"
for _ in $(seq 600); do
    grep -qs "^State:.[^TZ]" "/proc/$2/status" || break
    sleep 0.1
done
kill -CONT "$2"
"""
_ARMED = armed(dict(os.environ))


def failpoint(name: str) -> None:
    """Carry out the action that a test has set for this place; do nothing in production."""
    if _ARMED and name in _ARMED:
        _act(name, _ARMED[name])


def _act(name: str, action: str) -> None:
    kind, _, seconds = action.partition(":")
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "stop":
        # A stopped process cannot wake itself.
        subprocess.Popen(["/bin/sh", "-c", _WAKE, "wake", str(float(seconds)), str(os.getpid())])
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "sleep":
        time.sleep(float(seconds))
    elif kind == "raise":
        raise FailpointReached(name)
    else:
        raise ValueError(f"ORCH_FP: {name}={action}: kill, stop:SECONDS, raise or sleep:SECONDS")
