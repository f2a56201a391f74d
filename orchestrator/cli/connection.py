"""Finds the address of the server and the token, which is never an argument: every account can read a command line."""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from orchestrator.cli.errors import CommandFailed, ExitCode, UsageError

DEFAULT_SERVER: Final = "http://127.0.0.1:8000"
SERVER_VARIABLE: Final = "STELLA_SERVER"
TOKEN_VARIABLE: Final = "STELLA_TOKEN"  # noqa: S105 the name of a variable
TOKEN_FILE_VARIABLE: Final = "STELLA_TOKEN_FILE"  # noqa: S105 the name of a variable
MAX_TOKEN_BYTES: Final = 4096


@dataclass(frozen=True)
class ServerAccess:
    """The address of a server, without a slash at its end, and the token."""

    url: str
    token: str


def find_access(
    *,
    server: str | None,
    token_file: str | None,
    plain_http: bool = False,
    environment: Mapping[str, str] | None = None,
) -> ServerAccess:
    """Return the server and the token of the options, else of the environment, else the defaults.

    Args:
        server: The value of `--server`.
        token_file: The value of `--token-file`.
        plain_http: Whether the token may be sent without TLS to another machine.
        environment: The environment variables; by default those of the process.

    Raises:
        CommandFailed: The address is invalid or not protected, or there is no token.
    """
    variables = os.environ if environment is None else environment
    url = (server or variables.get(SERVER_VARIABLE) or DEFAULT_SERVER).rstrip("/")
    _require_protected(url, plain_http=plain_http)
    return ServerAccess(url, _find_token(token_file, variables))


def _require_protected(url: str, *, plain_http: bool) -> None:
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        raise UsageError(f"{url!r} is no address of a server.") from None
    if parts.scheme not in {"http", "https"} or not host or parts.username is not None or parts.query or parts.fragment:
        raise UsageError(f"{url!r} is no address of a server, such as https://orchestrator.example.")
    if parts.scheme == "http" and not plain_http and not _is_this_machine(host):
        raise UsageError(f"{url} would get the token in plain text. Use https, or add --plain-http.")


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _find_token(token_file: str | None, variables: Mapping[str, str]) -> str:
    if token_file is None and variables.get(TOKEN_VARIABLE):
        return _checked(variables[TOKEN_VARIABLE], TOKEN_VARIABLE)
    named = token_file or variables.get(TOKEN_FILE_VARIABLE)
    path = Path(named) if named else _default_file(variables)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TOKEN_BYTES + 1)
    except OSError as error:
        if named is None:
            raise UsageError(
                f"There is no token. Set {TOKEN_VARIABLE} or {TOKEN_FILE_VARIABLE}, or write one to {path}."
            ) from None
        raise CommandFailed(ExitCode.NOT_FOUND, f"{path}: {error.strerror}.", code="no_file") from None
    return _checked(content.decode(errors="replace"), str(path))


def _default_file(variables: Mapping[str, str]) -> Path:
    folder = variables.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else Path.home() / ".config") / "stella" / "token"


def _checked(text: str, source: str) -> str:
    """Return the token in a text. A line end within would become a header of its own."""
    token = text.strip()
    if not token or len(token) > MAX_TOKEN_BYTES or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(f"{source} has no token in it.")
    return token
