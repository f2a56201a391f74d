"""Compares lifecycles per second with another checkout's, in turns: BASELINE=../other-checkout make bench."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from benchmarks import compare
from benchmarks.environment import Cluster
from benchmarks.sizes import Sizes
from config.paths import BASE_DIR

TURNS = 4


def measure(_cluster: Cluster, sizes: Sizes, _before: dict[str, Any]) -> dict[str, Any]:
    """Return `core_cost`: lifecycles/s of both, and this checkout ÷ BASELINE; nothing without a BASELINE."""
    baseline = os.environ.get("BASELINE", "")
    if not baseline:
        return {}
    folder = Path(baseline).resolve()
    turns = max(2, min(TURNS, sizes.rounds + 1))
    found = compare.rates([folder, BASE_DIR], seconds=sizes.seconds, turns=turns, layout="asgi-1")
    return {"core_cost": {"baseline": folder.name, **found}}
