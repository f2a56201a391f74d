"""The event payloads of workflow runs, as expressions find them under `shithub.event`."""

from collections.abc import Mapping
from typing import Any

from runtime_jobs.workflows.diagnostics import quoted
from runtime_jobs.workflows.document import DispatchInput, DispatchTrigger

MAX_TEXT = 1_024  # characters of a title or message; a longer one is cut
MAX_INPUT = 8_192  # characters of one input


def push_payload(*, ref: str, before: str, after: str, commit_id: str, message: str, author: str) -> dict[str, Any]:
    """Return the payload of a push."""
    head_commit = {"id": commit_id, "message": message[:MAX_TEXT], "author": author[:MAX_TEXT]}
    return {"ref": ref, "before": before, "after": after, "head_commit": head_commit}


def pull_request_payload(
    *,
    action: str,
    number: int,
    title: str,
    head_ref: str,
    head_sha: str,
    base_ref: str,
    base_sha: str,
    login: str,
) -> dict[str, Any]:
    """Return the payload of a pull request. Refs are names of branches."""
    pull_request = {
        "title": title[:MAX_TEXT],
        "head": {"ref": head_ref, "sha": head_sha},
        "base": {"ref": base_ref, "sha": base_sha},
        "user": {"login": login},
    }
    return {"action": action, "number": number, "pull_request": pull_request}


def dispatch_payload(inputs: Mapping[str, str]) -> dict[str, Any]:
    """Return the payload of a manual start."""
    return {"inputs": dict(inputs)}


def resolve_inputs(trigger: DispatchTrigger, given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return the values of the inputs of a manual start: those of the caller, and defaults for the others.

    Args:
        trigger: The inputs that the workflow declares.
        given: The values of the caller.

    Returns:
        The values by name, and the errors by name.
    """
    declared = {declared_input.name: declared_input for declared_input in trigger.inputs}
    values: dict[str, str] = {}
    errors = {name: ["The workflow has no such input."] for name in given if name not in declared}
    for name, declared_input in declared.items():
        value = given.get(name, declared_input.default)
        if value is None:
            if declared_input.is_required:
                errors[name] = ["This input is required."]
            value = "false" if declared_input.type == "boolean" else ""
        elif error := _input_error(declared_input, value):
            errors[name] = [error]
        values[name] = value
    return values, errors


def _input_error(declared: DispatchInput, value: str) -> str | None:
    if len(value) > MAX_INPUT:
        return f"The value has {len(value)} characters. At most {MAX_INPUT} are allowed."
    if declared.type == "boolean" and value not in {"true", "false"}:
        return "The value must be true or false."
    if declared.type == "choice" and value not in declared.options:
        return f"The value must be one of: {', '.join(quoted(option) for option in declared.options)}."
    if declared.is_required and not value:
        return "This input is required."
    return None
