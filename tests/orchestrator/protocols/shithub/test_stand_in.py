"""The stories with the stand-in, whose requests are those of the recorded real runner."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.orchestrator.protocols.shithub.stories import stories
from tests.orchestrator.protocols.shithub.stories.scene import Scene, stand_in_program
from tests.orchestrator.protocols.shithub.stories.stories import STORIES
from tests.orchestrator.protocols.shithub.stories.transcript import JSON_WEB_TOKEN, headers_of, requests_of

RECORDED = Path(__file__).parent / "recorded"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", STORIES)
def test_the_stand_in_plays_the_story_with_the_requests_of_the_real_runner(story_installation, tmp_path, name):
    scene = Scene(story_installation, stand_in_program(), tmp_path)
    try:
        STORIES[name](scene)
    finally:
        scene.end()
    calls, recorded = scene.calls.all, read(name)["calls"]
    assert headers_of(calls) == headers_of(recorded)
    assert requests_of(calls) == requests_of(recorded)


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    return found


def test_every_story_is_recorded_from_one_runner():
    assert sorted(path.stem for path in RECORDED.iterdir()) == sorted(STORIES)
    headers = [read(name)["header"] for name in STORIES]
    assert [header["story"] for header in headers] == list(STORIES)
    (found,) = {(header["runner"], header["commit"]) for header in headers}
    assert all(found)


@pytest.mark.parametrize("name", STORIES)
def test_a_recording_has_no_token(name):
    calls = read(name)["calls"]
    for call in calls:
        chunk = base64.b64decode(json.loads(call["body"]).get("chunk", "")).decode()
        for text in (json.dumps(call), chunk):
            assert not JSON_WEB_TOKEN.search(text)
            assert not re.search("[0-9a-f]{64}", text)
            assert stories.SECRET not in text
    bearers = {call["headers"]["Authorization"] for call in calls}
    assert bearers == {"Bearer registration", "Bearer job"}
