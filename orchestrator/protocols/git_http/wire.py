"""The terms of git's smart HTTP protocol: routes, services, media types, packet lines, refusals."""

import re
from typing import Final

INFO_REFS: Final = "/{owner}/{repository}.git/info/refs"
UPLOAD_PACK: Final = "/{owner}/{repository}.git/git-upload-pack"
RECEIVE_PACK: Final = "/{owner}/{repository}.git/git-receive-pack"
READ_SERVICE: Final = "git-upload-pack"
WRITE_SERVICE: Final = "git-receive-pack"

ADVERTISEMENT: Final = "application/x-git-upload-pack-advertisement"
REQUEST: Final = "application/x-git-upload-pack-request"
RESULT: Final = "application/x-git-upload-pack-result"
FLUSH: Final = b"0000"
NO_CACHE: Final = {
    "Expires": "Fri, 01 Jan 1980 00:00:00 GMT",
    "Pragma": "no-cache",
    "Cache-Control": "no-cache, max-age=0, must-revalidate",
}
CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="shithub"'}
_VERSION: Final = re.compile(r"version=([12])")


class GitRefusal(Exception):
    """A refusal: a status, and a line of text that git displays to its user."""

    def __init__(self, status: int, message: str, *, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}


def packet_line(text: str) -> bytes:
    """Return a packet: four hexadecimal digits with its length, and the text."""
    data = text.encode()
    return b"%04x" % (len(data) + 4) + data


def service_banner(service: str) -> bytes:
    """Return what precedes an advertisement of the protocol versions 0 and 1."""
    return packet_line(f"# service={service}\n") + FLUSH


def protocol_version(header: str) -> str:
    """Return the value of GIT_PROTOCOL for a `Git-Protocol` header. Unknown values are version 0, as the protocol says.

    Args:
        header: A list of `key=value` with colons between, or empty.
    """
    versions = [found[1] for part in header.split(":") if (found := _VERSION.fullmatch(part))]
    return f"version={max(versions)}" if versions else ""


def unauthorized(message: str = "Credentials are needed to read this repository.") -> GitRefusal:
    """Return the 401 after which git sends credentials. A repository that does not exist has the same answer."""
    return GitRefusal(401, message, headers=CHALLENGE)


def not_found() -> GitRefusal:
    """Return the refusal of a repository that does not exist, or that the caller may not see."""
    return GitRefusal(404, "The repository does not exist, or you may not read it.")


def read_only() -> GitRefusal:
    """Return the refusal of a push. Its words are part of the contract (1.5)."""
    return GitRefusal(403, "This repository is read-only: nothing can be pushed to it.")
