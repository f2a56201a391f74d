"""Installs the peers' own virtual environment once, kept under the state directory until their lists change."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
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
    """Return the program that runs River. Raises NotInstalled."""
    return _built(state, "river", [LISTS / "river" / name for name in ("main.go", "go.mod", "go.sum")])


def temporal(state: Path) -> Path:
    """Return the program that is Temporal's server, its schema tool and its clients. Raises NotInstalled."""
    sources = [LISTS / "temporal" / name for name in ("main.go", "go.mod", "go.sum")]
    return _built(state, "temporal", [*sources, LISTS / "lifecycles.go"])


def hatchet(state: Path) -> Path:
    """Return the folder with Hatchet's programs and with `load`, which has its clients.

    They are built from the checkout that HATCHET_SOURCE names. Raises NotInstalled without one.
    """
    checkout = Path(os.environ.get("HATCHET_SOURCE") or "missing").resolve()
    if not (checkout / "go.mod").is_file():
        raise NotInstalled("HATCHET_SOURCE names no checkout of Hatchet's repository")
    folder = state / "hatchet-load"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    module = (checkout / "go.mod").read_text().replace("module github.com/hatchet-dev/hatchet\n", "module load\n", 1)
    require = "require github.com/hatchet-dev/hatchet v0.0.0"
    (folder / "go.mod").write_text(f"{module}\n{require}\nreplace github.com/hatchet-dev/hatchet => {checkout}\n")
    shutil.copy(checkout / "go.sum", folder)
    sources = [LISTS / "hatchet" / "main.go", LISTS / "lifecycles.go", folder / "go.mod", folder / "go.sum"]
    programs = _built(state, "hatchet", sources, program="load").parent
    for name in ("migrate", "admin", "engine"):
        if not (program := programs / f"hatchet-{name}").is_file():
            _build(checkout, program, f"./cmd/hatchet-{name}", overlay=_without_btree_gist(checkout, folder))
    return programs


def _without_btree_gist(checkout: Path, folder: Path) -> dict[str, str]:
    """Return files to build with in place of others: the embedded PostgreSQL lacks an extension that a rule needs.

    The rule is one of a table of stored payloads, which stays empty.
    """
    replaced = {}
    for file in (checkout / "cmd" / "hatchet-migrate").rglob("*.sql"):
        text = file.read_text()
        if "btree_gist" in text:
            copy = folder / file.name
            text = re.sub(r"(CREATE|DROP) EXTENSION btree_gist;", "", text)
            copy.write_text(re.sub(r",\s*CONSTRAINT \w+\s+EXCLUDE USING GIST \([^)]*\)", "", text))
            replaced[str(file)] = str(copy)
    return replaced


def _built(state: Path, name: str, sources: Sequence[Path], *, program: str = "") -> Path:
    """Return a program that is built by Go under the state directory once, until its sources change.

    Raises:
        NotInstalled: There is no Go toolchain, or the build fails.
    """
    folder = state / name
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    stamp, built = folder / "installed", folder / (program or name)
    if stamp.is_file() and stamp.read_text() == digest:
        return built
    print(f"building benchmarks/peers/{name}, once", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for source in sources:
        shutil.copy(source, folder)
    _build(folder, built, ".")
    stamp.write_text(digest)
    return built


def _build(module: Path, program: Path, package: str, *, overlay: Mapping[str, str] | None = None) -> None:
    go = shutil.which("go")
    if go is None:
        raise NotInstalled("there is no Go toolchain on this machine")
    command = [go, "build", "-trimpath", "-o", str(program), package]
    if overlay:
        listed = program.with_suffix(".overlay")
        listed.write_text(json.dumps({"Replace": overlay}))
        command[2:2] = ["-overlay", str(listed)]
    try:
        built = subprocess.run(
            command, cwd=module, capture_output=True, text=True, check=False, timeout=INSTALLED_WITHIN
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"go build did not end within {INSTALLED_WITHIN:.0f} seconds") from None
    if built.returncode:
        raise NotInstalled((built.stderr.strip().splitlines() or ["go build failed"])[-1])


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
