"""Installs the peers' own virtual environment once, kept under the state directory until their lists change."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

LISTS = Path(__file__).parent
INSTALLED_WITHIN = 900.0


class NotInstalled(Exception):
    """Raised when pip fails; `str()` has its last line."""


def python_of_peers(state: Path) -> Path:
    """The interpreter that has the peers. Raises NotInstalled."""
    folder = state / "peers"
    python = folder / "bin" / "python"
    if not _is_there(folder, "requirements.txt"):
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        _install(folder, "requirements.txt", [str(python), "-m", "pip", "install"])
    return python


def tools(state: Path) -> Path:
    """A folder of packages for PYTHONPATH, its programs in `bin`. Raises NotInstalled."""
    folder = state / "tools"
    if not _is_there(folder, "tools.txt"):
        shutil.rmtree(folder, ignore_errors=True)
        _install(folder, "tools.txt", [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(folder)])
    return folder


def _install(folder: Path, wanted: str, command: Sequence[str]) -> None:
    print(f"installing benchmarks/peers/{wanted}, once", file=sys.stderr)
    options = ["--quiet", "--disable-pip-version-check", "--requirement", str(LISTS / wanted)]
    told = subprocess.run([*command, *options], capture_output=True, text=True, check=False, timeout=INSTALLED_WITHIN)
    if told.returncode:
        raise NotInstalled((told.stderr.strip().splitlines() or ["pip failed"])[-1])
    (folder / "installed").write_text(_digest(wanted))


def _is_there(folder: Path, wanted: str) -> bool:
    stamp = folder / "installed"
    return stamp.is_file() and stamp.read_text() == _digest(wanted)


def _digest(wanted: str) -> str:
    return hashlib.sha256((LISTS / wanted).read_bytes()).hexdigest()
