"""Names the constructs of GitHub Actions that are not supported, and says what to write instead."""

import re
from typing import Final

_NO_MATRIX: Final = "a matrix is not supported yet. Write a job for each combination, with its values in env."
_NO_OUTPUTS: Final = "outputs of jobs are not supported yet. Pass the values as a file of an artifact."
_NO_CONTAINERS: Final = "containers are not supported yet. Start in a step what the job needs."
_NO_REUSE: Final = "reusable workflows are not supported yet. Copy their jobs into this file."
_NO_IGNORE: Final = "patterns that exclude are written in {}, with a leading '!'."

CONTEXTS: Final = {
    "matrix": _NO_MATRIX,
    "strategy": _NO_MATRIX,
    "needs": f"{_NO_OUTPUTS} In the if of a job write success(), failure() or always().",
    "inputs": "write shithub.event.inputs.NAME.",
    "jobs": _NO_REUSE,
}
KEYS: Final = {
    "strategy": _NO_MATRIX,
    "outputs": _NO_OUTPUTS,
    "container": _NO_CONTAINERS,
    "services": _NO_CONTAINERS,
    "uses": _NO_REUSE,
    "with": _NO_REUSE,
    "secrets": _NO_REUSE,
    "workflow_call": _NO_REUSE,
    "environment": "environments are not supported yet. Use the secrets and variables of the repository.",
    "concurrency": "only the whole file has a group.",
    "continue-on-error": "only steps have it.",
    "timeout-minutes": "only jobs have it. Use the command timeout in the script.",
    "run-name": "write name.",
    "branches-ignore": _NO_IGNORE.format("branches"),
    "tags-ignore": _NO_IGNORE.format("tags"),
    "paths-ignore": _NO_IGNORE.format("paths"),
}
_CHARACTERS: Final = (
    (re.compile(r"[0-9]"), "Numbers are not supported. Write a text in single quotes."),
    (re.compile(r"[<>]"), "The operators < and > are not supported. Compare in a script."),
    (re.compile(r"\["), "Indexes are not supported. Write a name after a dot."),
    (re.compile(r"\*"), "The filter * is not supported. Name one member."),
    (re.compile(r'"'), "Write texts in single quotes."),
)
_CONTEXT: Final = re.compile(rf"\b({'|'.join(CONTEXTS)})\b(?=[ \t]*[.\[])")
_COMMAND_FILES: Final = re.compile(r"\b(?:GITHUB|SHITHUB)_(OUTPUT|ENV|PATH|STEP_SUMMARY)\b")
_COMMANDS: Final = re.compile(r"\bGITHUB_(STATE)\b|::(set-output|save-state)\b")
_INSTEAD_OF_COMMANDS: Final = {
    "set-output": "write NAME=VALUE into $GITHUB_OUTPUT.",
    "STATE": "actions of this repository are not supported yet.",
    "save-state": "actions of this repository are not supported yet.",
}
RUNS_ON: Final = (
    "An expression in runs-on is not supported yet. Write the label of the runners. For several labels write a job for "
    "each."
)


def unsupported_context(name: str) -> str | None:
    """Return the error of an expression that uses this context, or None if it is none of GitHub Actions."""
    return f"{name!a} does not exist here: {CONTEXTS[name]}" if name in CONTEXTS else None


def unsupported_character(source: str, place: int) -> str:
    """Return the error of an expression with a character that begins no token."""
    if context := _CONTEXT.search(source):
        return f"{context[1]!a} does not exist here: {CONTEXTS[context[1]]}"
    reason = next((reason for pattern, reason in _CHARACTERS if pattern.match(source[place])), "")
    return f"Unexpected character {source[place]!a} at character {place + 1}. {reason}".rstrip()


def unsupported_key(key: str) -> str:
    """Return the beginning of the error of an unknown key."""
    hint = KEYS.get(key, "")
    return f"This key is unknown. {hint[:1].upper()}{hint[1:]}".rstrip()


def uses_command_files(script: str) -> bool:
    """Return whether a script names a file by which it hands values to later steps, as workers of this project read."""
    return _COMMAND_FILES.search(script) is not None


def command_warnings(script: str) -> list[str]:
    """Return a warning for each command to a runner in GitHub Actions that has no effect here."""
    found = dict.fromkeys((match[0], match[1] or match[2]) for match in _COMMANDS.finditer(script))
    return [f"{text} has no effect: {_INSTEAD_OF_COMMANDS[name]}" for text, name in found]
