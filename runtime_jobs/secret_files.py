"""Files that no other account can read, such as the secrets that a first start creates."""

import os
import secrets
from pathlib import Path
from typing import BinaryIO


def load_or_create_secret(path: Path, size: int = 48) -> str:
    """Return the secret in `path`; the first call creates it with mode 0600. Concurrent first calls return the same.

    Args:
        path: The file. Its folder is created if it is missing.
        size: The random bytes of a new secret. The text is their URL-safe base64, without padding.
    """
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return _make(path, size)


def _make(path: Path, size: int) -> str:
    path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    draft.touch(mode=0o600)
    draft.write_text(secrets.token_urlsafe(size))
    try:
        os.link(draft, path)
    except FileExistsError:
        pass  # another process created it first; its secret is used
    finally:
        draft.unlink()
    return path.read_text().strip()


def private_file(path: Path) -> BinaryIO:
    """Open a file for appending. A new one gets mode 0600, whatever the umask is."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab")
