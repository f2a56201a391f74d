"""Objects that a server has loaded at its start are excluded from garbage collection."""

import gc
import os
import subprocess
import sys

import pytest

from config.gc_freeze import COLLECTOR_THRESHOLDS
from config.paths import BASE_DIR

LOADED = "import gc, sys; import config.{kind}; assert 'orchestrator.protocols.native.jobs.views' in sys.modules; "


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_a_server_has_all_of_it_out_of_sight(kind, tmp_path):
    """Nothing is asked of the database for it."""
    looked_through = subprocess.run(
        [sys.executable, "-c", LOADED.format(kind=kind) + "print(len(gc.get_objects()), gc.get_freeze_count())"],
        cwd=BASE_DIR,
        env=os.environ | {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "STATE_DIR": str(tmp_path)},
        capture_output=True,
        check=True,
        text=True,
    )
    seen, frozen = map(int, looked_through.stdout.split())
    assert frozen > 50_000
    assert seen < 1_000
    assert gc.get_threshold() != COLLECTOR_THRESHOLDS, "it is the servers' and not the tests'"
