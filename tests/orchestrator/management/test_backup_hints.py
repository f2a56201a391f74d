"""`manage.py backup` names the keys and folders that its dump does not contain."""

import io
from pathlib import Path

import pytest
from django.core.management import call_command

from orchestrator.management import client_programs


@pytest.fixture
def state(settings, tmp_path, monkeypatch) -> Path:
    """The state directory of an installation that has made its keys itself, and has stored one artifact."""
    for name in ("SECRET_KEY", "ACTIONS_ROOT_KEY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(f"{name}_FILE", raising=False)
    settings.STATE_DIR = tmp_path
    settings.SIGNING_KEY_DIR = str(tmp_path / "signing_keys")
    settings.STORAGES = {
        name: options | {"OPTIONS": options.get("OPTIONS", {}) | {"location": str(tmp_path / name)}}
        if name in {"outputs", "images", "artifacts"}
        else options
        for name, options in settings.STORAGES.items()
    }
    for name in ("secret_key", "actions_root_key"):
        (tmp_path / name).write_text("x")
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "artifacts" / "report").write_text("x")
    (tmp_path / "outputs").mkdir()
    (tmp_path / "mirrors" / "1").mkdir(parents=True)
    monkeypatch.setattr(client_programs, "run", lambda *_, **__: None)
    return tmp_path


def hints(state: Path) -> list[str]:
    output = io.StringIO()
    call_command("backup", str(state / f"{len(list(state.iterdir()))}.dump"), stdout=output)
    return output.getvalue().splitlines()[1:]


def test_the_keys_and_the_folders_with_files_are_named_and_the_mirrors_are_not(state):
    first, second, third = hints(state)
    assert first == f"Keep a copy of {state}/secret_key with it: webhook secrets are unreadable without that key."
    assert second.startswith(f"Keep a copy of {state}/actions_root_key with it: secrets of workflows are unreadable")
    assert third == f"Copy these folders after the dump: {state}/artifacts (artifacts, caches and logs of workflows)."


def test_keys_of_the_environment_and_a_bucket_are_not_named(state, monkeypatch, settings):
    monkeypatch.setenv("SECRET_KEY_FILE", "/etc/key")
    monkeypatch.setenv("ACTIONS_ROOT_KEY", "x")
    (state / "artifacts" / "report").unlink()
    assert hints(state) == []


def test_signing_keys_are_named_but_not_to_be_kept_with_the_dump(state, settings):
    before = hints(state)
    (state / "signing_keys").mkdir()
    (state / "signing_keys" / "key.pem").write_text("x")
    (added,) = set(hints(state)) - set(before)
    assert added.startswith(f"Keep a copy of {state}/signing_keys in another place:")
    settings.SIGNING_KEY = "x"
    assert hints(state) == before
