"""Values of options: durations, times, JSON, names with values. A wrong one is a mistake in the command line."""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn

from orchestrator.cli.errors import CommandFailed, ExitCode, UsageError

SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_SECONDS: Final = 365 * 86400
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhd]?)", re.ASCII)
_PLACE_LIKE_OPTION: Final = re.compile(r"-[\w-]{21}", re.ASCII)


class StellaParser(argparse.ArgumentParser):
    """Parses a command. Its mistakes end with `ExitCode.USAGE`, and options have one spelling."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        """End the command line with a usage error."""
        raise UsageError(f"{message} (see {self.prog} --help)")


def attach_places(words: Sequence[str]) -> list[str]:
    """Return the words of a command line, with `--after PLACE` as one word if the place begins with a hyphen.

    One place in 64 does. The parser would take it for an option.
    """
    attached: list[str] = []
    for word in words:
        if attached[-1:] == ["--after"] and _PLACE_LIKE_OPTION.fullmatch(word):
            attached[-1] = f"--after={word}"
        else:
            attached.append(word)
    return attached


def duration(text: str) -> float:
    """Return the seconds of a duration such as `90`, `1.5s`, `10m` or `2h`."""
    found = _DURATION.fullmatch(text)
    seconds = float(found[1]) * SECONDS[found[2]] if found else 0
    if not 0 < seconds <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration, such as 90, 90s, 10m or 2h")
    return seconds


def timestamp(text: str) -> str:
    """Return a timestamp as RFC 3339 in UTC. A date is its first second, and a time without an offset is UTC."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time, such as 2025-11-01 or 2025-11-01T08:30:00Z") from None
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    return parsed.astimezone(UTC).isoformat().replace("+00:00", "Z")


def count(text: str) -> int:
    """Return a whole number from 1."""
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1")
    return int(text)


def limit_or_none(text: str) -> int | None:
    """Return the number of a limit; `none` removes the limit."""
    if text == "none":
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor `none`")
    return int(text)


def pair(text: str) -> tuple[str, str]:
    """Return the name and the value of `NAME=VALUE`."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def json_object(text: str, source: str) -> dict[str, Any]:
    """Return the JSON object in a text.

    Raises:
        UsageError: The text is no JSON object, or a name in it is repeated.
    """
    try:
        value = json.loads(text, object_pairs_hook=_without_repetition, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source}: no JSON: {error}.") from None
    if not isinstance(value, dict):
        raise UsageError(f"{source}: must be a JSON object.")
    return value


def read_text(path: str) -> str:
    """Return the text of a file; `-` is standard input.

    Raises:
        CommandFailed: The file cannot be read.
    """
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise CommandFailed(ExitCode.NOT_FOUND, f"{path}: {error.strerror}.", code="no_file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is no text in UTF-8.") from None


def _without_repetition(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the name {next(name for name in names if names.count(name) > 1)!r} is repeated")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
