"""Secrets that an installation makes for itself once and keeps, so that a first start needs no configuration."""

import os
import secrets
from pathlib import Path


def load_or_create_secret(path: Path) -> str:
    """Return the secret in `path`, made on first use with mode 0600. Two first starts agree: one link wins."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return _make(path)


def _make(path: Path) -> str:
    path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    draft.touch(mode=0o600)
    draft.write_text(secrets.token_urlsafe(48))
    try:
        os.link(draft, path)
    except FileExistsError:
        pass  # another first start was quicker; its secret counts
    finally:
        draft.unlink()
    return path.read_text().strip()
