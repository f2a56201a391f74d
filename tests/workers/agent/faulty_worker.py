"""`manage.py` with a worker whose heartbeat, watchdog or loop fails once the file FAULT_FILE names it.

The faults are errors that no code expects: they stand for any bug in those threads."""

import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))
sys.argv[0] = str(ROOT / "manage.py")

from workers.agent import claim_loop  # noqa: E402
from workers.agent.claim_loop import ClaimLoop  # noqa: E402
from workers.agent.crash import CrashHandler  # noqa: E402 - after the path
from workers.agent.heartbeat import HeartbeatSender  # noqa: E402
from workers.agent.lease_watchdog import LeaseWatchdog  # noqa: E402

FAULTS = Path(os.environ.get("FAULT_FILE", "/nonexistent"))


def failing(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if FAULTS.exists() and name in FAULTS.read_text().split():
            raise RuntimeError(f"injected fault: {name}")
        return method(*args, **kwargs)

    return call


def hanging(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        while FAULTS.exists() and name in FAULTS.read_text().split():
            time.sleep(0.1)
        return method(*args, **kwargs)

    return call


HeartbeatSender.send_due = failing("heartbeat", HeartbeatSender.send_due)  # type: ignore[method-assign]
LeaseWatchdog.check = failing("watchdog", LeaseWatchdog.check)  # type: ignore[method-assign]
ClaimLoop._drain = hanging("drain", ClaimLoop._drain)  # type: ignore[method-assign]
claim_loop.SHUTDOWN_SECONDS = float(os.environ.get("SHUTDOWN_SECONDS", claim_loop.SHUTDOWN_SECONDS))
CrashHandler.__init__.__kwdefaults__["forced_exit_seconds"] = float(os.environ.get("FORCED_EXIT_SECONDS", "20"))

runpy.run_path(sys.argv[0], run_name="__main__")
