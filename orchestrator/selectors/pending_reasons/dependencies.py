"""Which jobs a blocked one still waits for."""

from collections import defaultdict
from collections.abc import Sequence

from orchestrator.selectors.pending_reasons.reason import ReasonCode, WaitReason, listing
from runtime_jobs.models import Dependency, Job
from runtime_jobs.states import FINAL_STATES


def dependencies_of(jobs: Sequence[Job]) -> dict[int, WaitReason]:
    """By the jobs' keys, in two queries for all of them."""
    if not jobs:
        return {}
    edges = Dependency.objects.filter(job__job_ulid__in={job.root_job_ulid for job in jobs}).order_by("pk")
    pairs = list(edges.values_list("job__job_ulid", "on__job_ulid"))
    unfinished = set(
        Job.objects.filter(root_job_ulid__in={on for _, on in pairs})
        .exclude(state__in=FINAL_STATES)
        .values_list("root_job_ulid", flat=True)
    )
    needs = defaultdict(list)
    for job_ulid, on in pairs:
        if on in unfinished:
            needs[job_ulid].append(on)
    return {job.pk: _reason(needs[job.root_job_ulid]) for job in jobs}


def _reason(needed: list[str]) -> WaitReason:
    if not needed:
        return WaitReason(
            ReasonCode.DEPENDS_ON, "What it depends on has ended; it goes on in a moment.", {"depends_on": []}
        )
    return WaitReason(ReasonCode.DEPENDS_ON, f"It starts after {listing(needed)}.", {"depends_on": needed})
