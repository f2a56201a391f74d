"""Plans reruns: which jobs are executed again, and which values a person has changed."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from runtime_jobs.workflows.document import Workflow
from runtime_jobs.workflows.expressions import RUNNER_SCOPE, ExpressionError, is_for_own_workers, validate_names
from runtime_jobs.workflows.parsing import (
    LABEL,
    MAX_KEY,
    MAX_TIMEOUT_MINUTES,
    RESERVED_VARIABLES,
    VARIABLE,
)
from runtime_jobs.workflows.templates import template_expressions, use_canonical_names

MAX_VARIABLES = 64
MAX_VALUE = 8_192  # characters


@dataclass(frozen=True)
class RunEdit:
    """Changes of a rerun. None, or an empty mapping: as before.

    Attributes:
        inputs: Replaces the inputs of a manual start.
        env: Variables of all jobs. They replace those of the file with the same names.
        runs_on: The label of all jobs.
        timeout_minutes: The limit of all jobs.
    """

    inputs: Mapping[str, str] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    runs_on: str | None = None
    timeout_minutes: int | None = None

    def __bool__(self) -> bool:
        return bool(self.as_json())

    def as_json(self) -> dict[str, Any]:
        """Return the changed members only."""
        members: dict[str, Any] = {"env": dict(self.env)} if self.env else {}
        if self.inputs is not None:
            members["inputs"] = dict(self.inputs)
        if self.runs_on is not None:
            members["runs_on"] = self.runs_on
        if self.timeout_minutes is not None:
            members["timeout_minutes"] = self.timeout_minutes
        return members

    def validate(self) -> dict[str, list[str]]:
        """Return the errors by the name of a member. Those of `inputs` depend on the workflow."""
        errors: dict[str, list[str]] = {}
        if env_errors := _env_errors(self.env):
            errors["env"] = env_errors
        if self.runs_on is not None and not LABEL.fullmatch(self.runs_on):
            errors["runs_on"] = ["A label has 1 to 100 of the characters A-Z, a-z, 0-9, '_', '.' and '-'."]
        if self.timeout_minutes is not None and not 1 <= self.timeout_minutes <= MAX_TIMEOUT_MINUTES:
            errors["timeout_minutes"] = [f"The timeout is 1 to {MAX_TIMEOUT_MINUTES} minutes."]
        return errors

    def apply(self, workflow: Workflow) -> Workflow:
        """Return the workflow with these changes."""
        env = {name: use_canonical_names(text) for name, text in self.env.items()}
        jobs = tuple(
            replace(
                job,
                env={**job.env, **env},
                runs_on=job.runs_on if self.runs_on is None else self.runs_on,
                timeout_minutes=job.timeout_minutes if self.timeout_minutes is None else self.timeout_minutes,
            )
            for job in workflow.jobs
        )
        return replace(workflow, jobs=jobs)


def _env_errors(env: Mapping[str, str]) -> list[str]:
    errors = []
    if len(env) > MAX_VARIABLES:
        errors.append(f"There are {len(env)} variables. At most {MAX_VARIABLES} are allowed.")
    for name, text in env.items():
        if not VARIABLE.fullmatch(name) or len(name) > MAX_KEY or name.startswith(RESERVED_VARIABLES):
            errors.append(f"{name[:MAX_KEY]!a} is no name of a variable.")
        if len(text) > MAX_VALUE or "\0" in text:
            errors.append(f"The value of {name[:MAX_KEY]!a} has more than {MAX_VALUE} characters, or NUL.")
            continue
        try:
            parts = template_expressions(text)
            found = [error for part in parts for error in validate_names(part, RUNNER_SCOPE)]
            if not found and any(map(is_for_own_workers, parts)):
                found = ["A value that some runners do not know cannot be added."]
        except ExpressionError as error:
            found = [str(error)]
        errors += [f"{name[:MAX_KEY]!a}: {error}" for error in found]
    return errors


def failed_and_dependent(failed: frozenset[str], needs: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    """Return the keys of the failed jobs and of all jobs that need one of them, perhaps by way of others.

    Args:
        failed: The keys of jobs that did not succeed and were not skipped.
        needs: The needs of each job of the workflow.
    """
    chosen = set(failed & needs.keys())
    while more := {key for key, needed in needs.items() if key not in chosen and chosen.intersection(needed)}:
        chosen |= more
    return frozenset(chosen)
