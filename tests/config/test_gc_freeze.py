"""Objects that a server has loaded at its start are excluded from garbage collection."""

import gc
import os
import subprocess
import sys

import pytest

from config.gc_freeze import COLLECTOR_THRESHOLDS
from config.paths import BASE_DIR

LOADED = "import gc, sys; import config.{kind}; assert 'orchestrator.protocols.native.jobs.views' in sys.modules; "
PROGRAMS = {
    "asgi": LOADED.format(kind="asgi"),
    "wsgi": LOADED.format(kind="wsgi"),
    "a command": "import gc, sys; sys.argv = ['manage.py', 'version']; import manage; manage.main(); ",
}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_process_has_all_of_it_out_of_sight(kind, tmp_path):
    """Nothing is asked of the database for it."""
    counts = "print(len(gc.get_objects()), gc.get_freeze_count(), gc.isenabled())"
    found = subprocess.run(
        [sys.executable, "-c", PROGRAMS[kind] + counts],
        cwd=BASE_DIR,
        env=os.environ | {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "STATE_DIR": str(tmp_path)},
        capture_output=True,
        check=True,
        text=True,
    )
    seen, frozen, is_on = found.stdout.split()[-3:]
    assert is_on == "True", "it would collect nothing, ever"
    assert int(frozen) > 50_000
    assert int(seen) < 1_000
    assert gc.get_threshold() != COLLECTOR_THRESHOLDS, "it is the servers' and not the tests'"
