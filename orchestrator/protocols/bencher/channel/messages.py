"""Parses and renders the frames of the sockets: JSON objects with the member `event` (contract 3.2, 3.3 and 0.2).

Runners send `ready`, `running`, `heartbeat`, `completed`, `failed` and `canceled`. The server sends `job`, `no_job`,
`ack` and `cancel`. Unknown members are ignored. A member with a wrong type makes the whole message invalid.
"""

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeGuard
from uuid import UUID

from orchestrator.http.asgi.websocket_protocol import CutText
from orchestrator.protocols.bencher.channel.cut_json import close_json

DEFAULT_POLL_SECONDS = 30
MAX_POLL_SECONDS = 900
_INT32 = 1 << 31
_HEX = "[0-9a-fA-F]"
_HYPHENATED = f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"
# The forms that the runner's own parser accepts. `uuid.UUID` ignores hyphens at any position.
_UUID = re.compile(rf"{_HEX}{{32}}|{_HYPHENATED}|\{{{_HYPHENATED}\}}|urn:uuid:{_HYPHENATED}")
_SHA256 = re.compile("[0-9a-f]{64}")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SYSTEMS = ("linux", "macos", "windows")
_ARCHITECTURES = ("x86_64", "aarch64")
_UPDATE_CHANNELS = ("stable", "canary")

Iteration = dict[str, Any]  # `exit_code`, and `stdout`, `stderr`, `output` if they are present


class InvalidFrame(ValueError):
    """A frame that is no message of this protocol."""


@dataclass(frozen=True)
class ReadyFrame:
    """The runner is idle and requests a job.

    Attributes:
        poll_seconds: The longest wait for a job.
        version: The version of the runner, or empty.
    """

    poll_seconds: int = DEFAULT_POLL_SECONDS
    version: str = ""


@dataclass(frozen=True)
class RunningFrame:
    """The execution begins."""


@dataclass(frozen=True)
class HeartbeatFrame:
    """The execution continues."""


@dataclass(frozen=True)
class CompletedFrame:
    """The execution succeeded.

    Attributes:
        job: The job; None on the socket of one job.
        iterations: One result for each iteration.
        is_flat: The message had the form of document 002: one result without a list.
        error: Why the iterations are not all that the runner sent, or empty.
    """

    job: UUID | None
    iterations: tuple[Iteration, ...]
    is_flat: bool = False
    error: str = ""


@dataclass(frozen=True)
class FailedFrame:
    """The execution failed, perhaps after some iterations. The attributes are those of CompletedFrame."""

    job: UUID | None
    iterations: tuple[Iteration, ...]
    error: str
    is_flat: bool = False


@dataclass(frozen=True)
class CanceledFrame:
    """The runner has stopped the execution."""

    job: UUID | None


FinalFrame = CompletedFrame | FailedFrame | CanceledFrame
Frame = ReadyFrame | RunningFrame | HeartbeatFrame | FinalFrame


# --- Runner to server -------------------------------------------------------------------------------------------------


def parse_channel_frame(text: str) -> Frame:
    """Return the message in a text frame of the channel.

    Raises:
        InvalidFrame: The text is no JSON object, its event is unknown, or a member is missing or has a wrong type.
    """
    return _parse(text, _CHANNEL_EVENTS)


def parse_job_frame(text: str) -> Frame:
    """Return the message in a text frame of the socket of one job. It accepts flat results, too, and has no `ready`.

    Raises:
        InvalidFrame: As for `parse_channel_frame`.
    """
    return _parse(text, _JOB_EVENTS)


def _parse(text: str, events: dict[str, Callable[[dict[str, Any]], Frame]]) -> Frame:
    if isinstance(text, CutText):
        return _parse_cut(text, events)
    message = _load(text)
    event = message.get("event")
    read = events.get(event) if isinstance(event, str) else None
    if read is None:
        raise InvalidFrame("`event` is missing or unknown.")
    return read(message)


def _parse_cut(text: CutText, events: dict[str, Callable[[dict[str, Any]], Frame]]) -> Frame:
    """Return the final message in the beginning of a text: it has the iterations as far as they came.

    Raises:
        InvalidFrame: It is no final message.
    """
    error = (
        f"The result has {text.size:,} bytes, and this server accepts {text.limit:,} (RUNNER_MESSAGE_LIMIT_BYTES). "
        "The output was cut there."
    )
    try:
        message = _load(close_json(text))
        while (results := message.get("results")) and not _is_integer(results[-1].get("exit_code")):
            results.pop()  # it was cut before its exit code
        frame = events[message["event"]](message | {"error": error})
    except (InvalidFrame, AttributeError, KeyError, TypeError):
        return FailedFrame(None, (), error)  # nothing but a result is so large
    if isinstance(frame, CompletedFrame):
        return replace(frame, error=error)
    if isinstance(frame, FailedFrame):
        return frame
    raise InvalidFrame("A message without a result is too large.")


def _load(text: str) -> dict[str, Any]:
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidFrame("The frame is not JSON.") from error
    if not isinstance(value, dict):
        raise InvalidFrame("The frame is not a JSON object.")
    if _SURROGATE_ESCAPE.search(text):
        _require_pairs(value)
    return value


def _require_pairs(value: dict[str, Any]) -> None:
    """Refuse half of a surrogate pair, which has no form in UTF-8. JSON can write it as an escape only."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError) as error:
        raise InvalidFrame("A string has half of a surrogate pair.") from error


def _no_constant(name: str) -> Any:
    raise InvalidFrame(f"{name} is not a JSON number.")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise InvalidFrame("A number is too large.")
    return value


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)


def _ready(message: dict[str, Any]) -> ReadyFrame:
    poll = message.get("poll_timeout")
    if poll is None:
        poll = DEFAULT_POLL_SECONDS
    elif not _is_integer(poll) or not 1 <= poll <= MAX_POLL_SECONDS:
        raise InvalidFrame(f"`poll_timeout` must be an integer from 1 to {MAX_POLL_SECONDS}.")
    return ReadyFrame(poll, _version(message.get("runner")))


def _version(runner: Any) -> str:
    """Return the version in the description of a runner, whose members must be valid."""
    if runner is None:
        return ""
    if not isinstance(runner, dict):
        raise InvalidFrame("`runner` must be an object.")
    _require_choice(runner.get("os"), _SYSTEMS, "os")
    _require_choice(runner.get("arch"), _ARCHITECTURES, "arch")
    if (channel := runner.get("channel")) is not None:
        _require_choice(channel, _UPDATE_CHANNELS, "channel")
    checksum = runner.get("checksum")
    if checksum is not None and not (isinstance(checksum, str) and _SHA256.fullmatch(checksum)):
        raise InvalidFrame("`checksum` must be 64 lower-case hex digits.")
    return _text(runner, "version")


def _require_choice(value: Any, choices: Iterable[str], name: str) -> None:
    if not isinstance(value, str) or value not in choices:
        raise InvalidFrame(f"`{name}` is missing or unknown.")


def _completed(message: dict[str, Any]) -> CompletedFrame:
    return CompletedFrame(_job(message), _iterations(message))


def _failed(message: dict[str, Any]) -> FailedFrame:
    return FailedFrame(_job(message), _iterations(message), _text(message, "error"))


def _canceled(message: dict[str, Any]) -> CanceledFrame:
    return CanceledFrame(_job(message))


def _completed_of_job(message: dict[str, Any]) -> CompletedFrame:
    if "results" in message:
        return CompletedFrame(None, _iterations(message))
    return CompletedFrame(None, (_iteration(message),), is_flat=True)


def _failed_of_job(message: dict[str, Any]) -> FailedFrame:
    error = _text(message, "error")
    if "results" in message:
        return FailedFrame(None, _iterations(message), error)
    has_output = any(message.get(name) is not None for name in ("exit_code", "stdout", "stderr"))
    if not has_output:
        return FailedFrame(None, (), error, is_flat=True)
    exit_code = message.get("exit_code")
    result = message | {"exit_code": 0 if exit_code is None else exit_code}
    return FailedFrame(None, (_iteration(result),), error, is_flat=True)


_OF_EXECUTION: dict[str, Callable[[dict[str, Any]], Frame]] = {
    "running": lambda _: RunningFrame(),
    "heartbeat": lambda _: HeartbeatFrame(),
}
_CHANNEL_EVENTS = _OF_EXECUTION | {
    "ready": _ready,
    "completed": _completed,
    "failed": _failed,
    "canceled": _canceled,
}
_JOB_EVENTS = _OF_EXECUTION | {
    "completed": _completed_of_job,
    "failed": _failed_of_job,
    "canceled": lambda _: CanceledFrame(None),
}


def _job(message: dict[str, Any]) -> UUID:
    value = message.get("job")
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise InvalidFrame("`job` must be a UUID.")
    return UUID(value)


def _iterations(message: dict[str, Any]) -> tuple[Iteration, ...]:
    results = message.get("results")
    if not isinstance(results, list):
        raise InvalidFrame("`results` must be a list.")
    return tuple(map(_iteration, results))


def _iteration(value: Any) -> Iteration:
    """Return one result with its known members. Members that are null are absent."""
    if not isinstance(value, dict):
        raise InvalidFrame("A result must be an object.")
    exit_code = value.get("exit_code")
    if not _is_integer(exit_code) or not -_INT32 <= exit_code < _INT32:
        raise InvalidFrame("`exit_code` must be an integer of 32 bits.")
    iteration: Iteration = {"exit_code": exit_code}
    for name in ("stdout", "stderr"):
        if value.get(name) is not None:
            iteration[name] = _text(value, name)
    output = value.get("output")
    if output is not None:
        if not isinstance(output, dict) or not all(isinstance(content, str) for content in output.values()):
            raise InvalidFrame("`output` must be an object of strings.")
        iteration["output"] = output
    return iteration


def _text(message: dict[str, Any], name: str) -> str:
    value = message.get(name)
    if not isinstance(value, str):
        raise InvalidFrame(f"`{name}` must be a string.")
    return value


def _is_integer(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


# --- Server to runner -------------------------------------------------------------------------------------------------

NO_JOB = '{"event":"no_job"}'
CANCEL = '{"event":"cancel"}'
ACK_WITHOUT_JOB = '{"event":"ack"}'


def render_ack(job: UUID) -> str:
    """Return the reply to a message about a job."""
    return f'{{"event":"ack","job":"{job}"}}'


def render_job(claimed_job: dict[str, Any]) -> str:
    """Return the message that gives a job to the runner.

    Args:
        claimed_job: The claimed job of contract 3.3.
    """
    return json.dumps({"event": "job", **claimed_job}, separators=(",", ":"))
