"""The stories with the unmodified runner: `make actions SHITHUBD_RUNNER=PATH`, or any run of this file.

`RECORD=COMMIT` keeps its requests as the recordings that `test_stand_in.py` compares; COMMIT is that of its source.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.orchestrator.protocols.shithub.stories.recording import Call
from tests.orchestrator.protocols.shithub.stories.scene import Scene, real_program
from tests.orchestrator.protocols.shithub.stories.stories import STORIES
from tests.orchestrator.protocols.shithub.stories.transcript import with_numbers, without_places

BINARY = os.environ.get("SHITHUBD_RUNNER", "")
RECORDED = Path(__file__).parent / "recorded"
pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not BINARY, reason="SHITHUBD_RUNNER is not set: name the program of shithub's runner"),
]


@pytest.fixture(scope="module")
def version() -> str:
    """The version that the program displays."""
    shown = subprocess.run([BINARY, "version"], capture_output=True, text=True, timeout=30, check=True).stdout
    name, _, version = shown.splitlines()[0].partition(" ")
    assert name == "shithubd-runner", f"SHITHUBD_RUNNER={BINARY} is not shithub's runner: {shown}"
    return version


@pytest.mark.parametrize("name", STORIES)
def test_the_unmodified_runner(story_installation, tmp_path, version, name):
    scene = Scene(story_installation, real_program(BINARY), tmp_path)
    try:
        STORIES[name](scene)
    finally:
        scene.end()
    if commit := os.environ.get("RECORD"):
        places = {str(tmp_path): "/runner", story_installation.proxy.url: "http://server"}
        calls = [call | {"body": without_places(call["body"], places)} for call in with_numbers(scene.calls.all)]
        record(name, calls, version=version, commit=commit)


def record(name: str, calls: list[Call], *, version: str, commit: str) -> None:
    """Write the calls of a story, one in a line."""
    RECORDED.mkdir(exist_ok=True)
    header = {"story": name, "runner": version, "commit": commit}
    lines = ",\n".join(json.dumps(call) for call in calls)
    text = f'{{"header": {json.dumps(header)},\n"calls": [\n{lines}\n]}}\n'
    (RECORDED / f"{name}.json").write_text(text)
