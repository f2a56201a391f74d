"""Creates secrets of an installation once and keeps them, so that a first start needs no configuration."""

import os
import secrets
from pathlib import Path


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
