"""Compares lifecycles per second with another checkout's, in turns.

The other checkout is BASELINE, a folder or a commit: `BASELINE=../other-checkout make bench`. Without it, it is the
commit before evidence and schedules, which is taken from the repository.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from benchmarks import compare
from benchmarks.environment import Cluster
from benchmarks.sizes import Sizes
from config.paths import BASE_DIR

TURNS = 4
# The speed of a machine changes within half a minute by more than what is compared: with turns of 20 s the same two
# checkouts had ratios from 0.84 to 1.03, and those of 8 s from 0.93 to 1.10. So each turn is cut into parts.
PARTS = 5
BEFORE_EVIDENCE = "14da870"
WITHIN = 60.0


def measure(cluster: Cluster, sizes: Sizes, _before: dict[str, Any]) -> dict[str, Any]:
    """Return `core_cost`: lifecycles/s of both, and this checkout ÷ the other; nothing if there is no other one."""
    baseline = os.environ.get("BASELINE") or BEFORE_EVIDENCE
    folder = Path(baseline).resolve() if Path(baseline).is_dir() else extracted(baseline, cluster.state)
    if folder is None:
        return {"core_cost": {"missing": f"there is no folder, and the repository has no commit {baseline}"}}
    turns = max(2, min(TURNS, sizes.rounds + 1))
    found = compare.rates([folder, BASE_DIR], seconds=sizes.seconds / PARTS, turns=turns * PARTS, layout="asgi-1")
    return {"core_cost": {"baseline": folder.name, **found}}


def extracted(commit: str, state: Path) -> Path | None:
    """Return a folder with the files of a commit, or None if this is no repository that has it."""
    folder = state / "baselines" / commit
    git = ["git", "-C", str(BASE_DIR), "archive", "--format=tar", commit]
    archive = subprocess.run(git, capture_output=True, check=False, timeout=WITHIN)
    if archive.returncode:
        return None
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True, timeout=WITHIN)
    return folder
