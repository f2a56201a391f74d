"""A machine that forbids user namespaces: bubblewrap refuses to start, restricted runs jobs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workers.engines.conftest import FIRST_UID


@pytest.fixture
def found(base):
    command = [sys.executable, "-m", "tests.workers.engines.lone_check", str(FIRST_UID), str(base)]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as inside:
        assert inside.stdout.readline() == "map me\n"
        everyone, ourselves = "0 0 4294967295", f"{os.geteuid()} {os.geteuid()} 1"
        proc = Path(f"/proc/{inside.pid}")
        if os.geteuid() != 0:
            (proc / "setgroups").write_text("deny")
        (proc / "gid_map").write_text(everyone if os.geteuid() == 0 else f"{os.getegid()} {os.getegid()} 1")
        (proc / "uid_map").write_text(everyone if os.geteuid() == 0 else ourselves)
        out, _ = inside.communicate("mapped\n", timeout=300)
    return json.loads(out)


def test_without_user_namespaces_there_is_still_the_restricted_engine(found):
    assert found["bubblewrap"] != []
    assert "namespace" in found["bubblewrap"][0]
    assert found["restricted"] == []
    assert found["output"].endswith("done\n")
    assert found["seen"] == [".netrc", r"\4seen\7example"]
