"""The worker's token, from its file. It is read again when the server has refused it, because it may be rotated."""

from __future__ import annotations

import logging
import stat
import threading
from pathlib import Path

from workers.agent.errors import WorkerStartError

logger = logging.getLogger(__name__)


class TokenFile:
    """The first line of `path`; the second may hold the worker's id. The token is in no log line and no error."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._text, self.worker_id = _read(path)

    def __repr__(self) -> str:
        return f"TokenFile({self._path})"

    def current(self) -> str:
        return self._text

    def reload(self) -> None:
        """Read the file again; the next request carries the token that it holds now."""
        with self._lock:
            try:
                fresh, _ = _read(self._path)
            except WorkerStartError as error:
                logger.warning("token refused and not readable again error=%r", str(error))
                return
            if fresh != self._text:
                logger.info("token refused: using the new one of the file path=%s", self._path)
            self._text = fresh


def _read(path: Path) -> tuple[str, str | None]:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        with path.open(encoding="ascii") as file:
            token, worker_id = file.readline(4096).strip(), file.readline(128).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise WorkerStartError(f"cannot read the token file {path}: {type(error).__name__}") from None
    if mode & 0o077:
        logger.warning("token file is readable by other accounts: chmod 600 it path=%s mode=%o", path, mode)
    if not token or not token.isprintable() or " " in token:
        raise WorkerStartError(f"the first line of {path} is not a token")
    return token, worker_id or None
