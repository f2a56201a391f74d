"""The steps of a workflow job on its page, each with the annotations that it has printed."""

from dataclasses import dataclass
from typing import Final

from django.utils import timezone

from orchestrator.admin import formatting
from orchestrator.selectors.job_steps import StepState, annotations_of, steps_of
from runtime_jobs.models import Job, StepAnnotation
from runtime_jobs.states import Conclusion, StepStatus

MAX_ANNOTATIONS: Final = 200  # of all steps together
COLOURS: Final[dict[str, str]] = {
    Conclusion.SUCCESS: "success",
    Conclusion.FAILURE: "danger",
    Conclusion.TIMED_OUT: "danger",
    Conclusion.ACTION_REQUIRED: "warning",
    StepStatus.RUNNING: "primary",
}
ANNOTATION_COLOURS: Final = {
    StepAnnotation.Level.ERROR: "danger",
    StepAnnotation.Level.WARNING: "warning",
    StepAnnotation.Level.NOTICE: "info",
}


@dataclass(frozen=True)
class AnnotationRow:
    """An annotation. `place`: the file and line that it concerns."""

    annotation: StepAnnotation
    colour: str
    place: str


@dataclass(frozen=True)
class StepTableRow:
    """A step in the table. `result`: the conclusion, else the status; empty where a job type has only logs."""

    state: StepState
    result: str
    colour: str
    duration: str
    annotations: list[AnnotationRow]


def step_rows(job: Job) -> list[StepTableRow]:
    """Return the steps of a workflow job; an empty list for a job without steps of its own."""
    steps = [step for step in steps_of(job.job_ulid) if step.key is not None]
    if not steps:
        return []
    annotations = annotations_of(job.job_ulid, limit=MAX_ANNOTATIONS)
    return [_row(step, [found for found in annotations if found.step == step.index]) for step in steps]


def _row(step: StepState, annotations: list[StepAnnotation]) -> StepTableRow:
    result = step.conclusion or step.status or ""
    duration = ""
    if step.started_at is not None:
        duration = formatting.elapsed(step.started_at, step.completed_at or timezone.now())
    rows = [
        AnnotationRow(found, ANNOTATION_COLOURS[StepAnnotation.Level(found.level)], _place(found))
        for found in annotations
    ]
    return StepTableRow(step, formatting.humanize(result), COLOURS.get(result, "default"), duration, rows)


def _place(annotation: StepAnnotation) -> str:
    return f"{annotation.path}:{annotation.start_line}" if annotation.start_line else annotation.path
