"""Decides where the installation keeps its files, and which account its PostgreSQL runs as.

Nothing here changes the mode of a folder above the state directory. If another account could not reach files there,
they are in a root-owned home under /var/lib instead, and the state directory has a link to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
SYSTEM_HOMES = Path("/var/lib/runtime-orchestrator")
SYSTEM_SOCKETS = Path("/run/runtime-orchestrator")
SYSTEM_ACCOUNT = "rto-postgres"

# sun_path holds 108 bytes with its closing NUL.
MAX_SOCKET_PATH = 107
SOCKET_NAME = ".s.PGSQL.5432"
# Files of a state directory. The settings, the embedded PostgreSQL, `make up` or a test has created one of them.
STATE_FILES = ("secret_key", "postgres.users", "seed.json", "throwaway", "home/belongs-to")


class PathError(Exception):
    """Reports in one line why files cannot be in the requested place, and what to do."""


def state_dir() -> Path:
    """Return STATE_DIR as an absolute path; a relative one counts from the project's folder, not from the cwd."""
    return (BASE_DIR / (os.environ.get("STATE_DIR") or ".state")).resolve()


def home(state: Path) -> Path:
    """Return the folder that every account of this installation can reach through: `state`, or where its link leads.

    Reads only. Before `prepare_home` was called once the answer is `state`, which may not exist.
    """
    link = state / "home"
    return link.readlink() if link.is_symlink() else state


def work_dir(state: Path) -> Path:
    """Return where a worker of this installation keeps checkouts and spool. Reads only."""
    return home(state) / "work"


def prepare_home(state: Path) -> Path:
    """Create the home if it is not there, and return it.

    The worker's directory, the demo's repository and PostgreSQL lie in it: run by root, they are used by other
    accounts, which need a path that they may traverse.

    Raises:
        PathError: The folder cannot be created or belongs to another account.
    """
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.geteuid() == 0 and not (state / "home").is_symlink() and not is_world_traversable(state.resolve().parent):
            _link_system_home(state)
        place = home(state)
        if os.geteuid() == 0:
            place.mkdir(exist_ok=True)
            place.chmod(0o711)  # to traverse, not to list: private files inside have a mode of their own
    except OSError as error:
        raise PathError(f"cannot use {state} ({error.strerror}): name another folder with STATE_DIR") from error
    if not os.access(place, os.W_OK | os.X_OK):
        raise PathError(f"{place} belongs to another account: name another folder with STATE_DIR")
    return place


def remove_home(state: Path) -> None:
    """Delete the state directory and its home.

    Raises:
        PathError: The folder is not a state directory, or a process still uses the PostgreSQL there.
    """
    _require_state_dir(state)
    place = home(state)
    with contextlib.suppress(FileNotFoundError), (place / "postgres.users").open("r+") as users:
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PathError(f"{state} is in use: stop what runs on it first") from None
    for folder in (socket_folder(place), place, state):
        shutil.rmtree(folder, ignore_errors=True)
    for shared in (SYSTEM_HOMES, SYSTEM_SOCKETS):
        with contextlib.suppress(OSError):
            shared.rmdir()  # unless another installation is there


def _require_state_dir(state: Path) -> None:
    """Refuse a folder that others filled: whoever mistypes STATE_DIR must not lose it."""
    if not state.is_dir():
        raise PathError(f"{state} is not a folder: nothing was removed")
    if state in (BASE_DIR, *BASE_DIR.parents) or state in (Path.home(), *Path.home().parents):
        raise PathError(f"{state} contains this checkout or a home directory: nothing was removed")
    own = any((state / name).is_file() for name in STATE_FILES)
    # The benchmarks keep their state in a folder of it.
    if not own and [entry.name for entry in state.iterdir() if entry.name != "bench"]:
        names = ", ".join(STATE_FILES[:-1])
        raise PathError(f"{state} is not a state directory (it has none of {names}): nothing was removed")


def is_world_traversable(path: Path) -> bool:
    """Return whether any account may traverse `path` and all folders above it."""
    return all(step.stat().st_mode & stat.S_IXOTH for step in (path, *path.parents))


def socket_folder(place: Path) -> Path:
    """Return the folder of PostgreSQL's socket: in the home, or in a short private folder when that is too deep."""
    folder = place / "postgres" / "socket"
    if len(os.fsencode(folder / SOCKET_NAME)) <= MAX_SOCKET_PATH:
        return folder
    name = hashlib.sha256(os.fsencode(place)).hexdigest()[:16]
    # Only root can create folders in /run. /tmp is shared, so prepare_private checks the owner and the mode.
    owner = place.stat().st_uid if place.exists() else os.geteuid()
    return SYSTEM_SOCKETS / name if owner == 0 else Path("/tmp", f"rto-{name}")  # noqa: S108 - see above


def prepare_private(folder: Path, account: pwd.struct_passwd) -> None:
    """Create `folder` with mode 0700 for `account`.

    Raises:
        PathError: Something else has that name.
    """
    folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        if os.geteuid() == 0:
            os.chown(folder, account.pw_uid, account.pw_gid)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != account.pw_uid or stat.S_IMODE(found.st_mode) != 0o700:
        raise PathError(f"{folder} is not a folder of mode 0700 that belongs to {account.pw_name}: remove it")


def postgres_account(place: Path) -> pwd.struct_passwd:
    """Return the account that PostgreSQL runs as: the caller's own, or an unprivileged one for root."""
    if os.geteuid() != 0:
        return _account(os.geteuid())
    for owned in (place / "postgres", place):  # data that a user created stays with that user
        if owned.exists() and owned.stat().st_uid != 0:
            return _account(owned.stat().st_uid)
    return _system_account()


def _account(uid: int) -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        raise PathError(f"PostgreSQL needs an account with a name, and the uid {uid} has none here") from None


def _link_system_home(state: Path) -> None:
    SYSTEM_HOMES.mkdir(mode=0o711, parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(dir=SYSTEM_HOMES, prefix=""))
    (place / "belongs-to").touch(mode=0o600)
    (place / "belongs-to").write_text(f"{state}\n")
    try:
        (state / "home").symlink_to(place)
    except FileExistsError:  # another process was faster: its home is used
        (place / "belongs-to").unlink()
        place.rmdir()


def _system_account() -> pwd.struct_passwd:
    command = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"]
    command += ["--shell", "/usr/sbin/nologin", SYSTEM_ACCOUNT]
    with _one_at_a_time(Path("/etc")):
        for _ in range(20):  # useradd refuses while a stranger's holds its lock
            with contextlib.suppress(KeyError):
                return pwd.getpwnam(SYSTEM_ACCOUNT)
            try:
                found = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            except FileNotFoundError:
                break
            if found.returncode not in {0, 1, 9}:  # 1: passwd is locked; 9: it exists by now
                break
            time.sleep(0.1 if found.returncode else 0)
    raise PathError(
        f"PostgreSQL refuses to run as root and the account {SYSTEM_ACCOUNT} cannot be created: "
        "run as an ordinary user, or set DATABASE_URL"
    )


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Serialize first starts on one machine: of two concurrent `useradd` the later one removed the other's account."""
    opened = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


if __name__ == "__main__":  # `make clean`, which has no virtual environment
    try:
        for name in sys.argv[1:]:
            remove_home((BASE_DIR / name).resolve())
    except PathError as error:
        sys.exit(str(error))
