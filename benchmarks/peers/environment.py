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
    """Reports that pip or Go failed or is missing; `str()` has its last line."""


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


def river(state: Path) -> Path:
    """Return the program that runs River, built by Go under the state directory.

    Raises:
        NotInstalled: There is no Go toolchain, or the build fails.
    """
    go, folder = shutil.which("go"), state / "river"
    if go is None:
        raise NotInstalled("there is no Go toolchain on this machine")
    program, sources = folder / "river", [LISTS / "river" / name for name in ("main.go", "go.mod", "go.sum")]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    stamp = folder / "installed"
    if stamp.is_file() and stamp.read_text() == digest:
        return program
    print("building benchmarks/peers/river, once", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for source in sources:
        shutil.copy(source, folder)
    command = [go, "build", "-trimpath", "-o", str(program), "."]
    try:
        built = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=INSTALLED_WITHIN
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"go build did not end within {INSTALLED_WITHIN:.0f} seconds") from None
    if built.returncode:
        raise NotInstalled((built.stderr.strip().splitlines() or ["go build failed"])[-1])
    stamp.write_text(digest)
    return program


def _install(folder: Path, wanted: str, command: Sequence[str]) -> None:
    print(f"installing benchmarks/peers/{wanted}, once", file=sys.stderr)
    options = ["--quiet", "--disable-pip-version-check", "--requirement", str(LISTS / wanted)]
    result = subprocess.run([*command, *options], capture_output=True, text=True, check=False, timeout=INSTALLED_WITHIN)
    if result.returncode:
        raise NotInstalled((result.stderr.strip().splitlines() or ["pip failed"])[-1])
    (folder / "installed").write_text(_digest(wanted))


def _is_there(folder: Path, wanted: str) -> bool:
    stamp = folder / "installed"
    return stamp.is_file() and stamp.read_text() == _digest(wanted)


def _digest(wanted: str) -> str:
    return hashlib.sha256((LISTS / wanted).read_bytes()).hexdigest()
