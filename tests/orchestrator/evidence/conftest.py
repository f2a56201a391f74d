"""Keys and copies of checkpoints in folders of the test, and jobs that end."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def folders(settings, tmp_path) -> Path:
    """The folders of signing keys and of checkpoints are those of the test. Returns the second one."""
    settings.SIGNING_KEY = ""
    settings.SIGNING_KEY_DIR = str(tmp_path / "signing_keys")
    settings.CHECKPOINT_DIR = str(tmp_path / "checkpoints")
    return tmp_path / "checkpoints"
