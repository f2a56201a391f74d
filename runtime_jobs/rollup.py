"""Computes the conclusion of a workflow run from those of its jobs."""

from collections.abc import Sequence

from runtime_jobs.states import FAILED_CONCLUSIONS, Conclusion


def roll_up(conclusions: Sequence[str | None]) -> Conclusion | None:
    """Return the conclusion of a run, or None while a job has not ended.

    The first failing conclusion decides, whichever job ended first. Without one, a canceled job decides. Skipped and
    neutral jobs count as successful. A batch of another type lets a cancel outweigh a failure: see `batch_state`.

    Args:
        conclusions: Of all jobs of the run, in the order of the workflow file. None: the job has not ended.
    """
    if None in conclusions:
        return None
    if not conclusions:
        return Conclusion.FAILURE
    failed = next((conclusion for conclusion in conclusions if conclusion in FAILED_CONCLUSIONS), None)
    if failed is not None:
        return Conclusion(failed)
    return Conclusion.CANCELLED if Conclusion.CANCELLED in conclusions else Conclusion.SUCCESS
