"""Reruns with edits: a new job with the spec of another one, changed by a merge patch. A rerun proves nothing."""

from itertools import islice
from typing import Any, Final

from django.conf import settings
from rest_framework.exceptions import ValidationError

from orchestrator.evidence.replay_comparison import differences
from orchestrator.http.api.calls import ApiAnswer, ApiCall
from orchestrator.http.api.fields import parse
from orchestrator.http.api.headers import idempotent_request
from orchestrator.http.api.merge_patch import apply_merge_patch
from orchestrator.http.api.spec_serializers import SPEC_PARSERS, parse_spec
from orchestrator.http.auth.callers import client_of
from orchestrator.protocols.native.jobs import wire
from orchestrator.protocols.native.jobs.serializers import RerunJobInput
from orchestrator.services import submission
from orchestrator.services.concurrency import ConcurrencyGroup
from orchestrator.services.submission import Submission
from runtime_jobs.errors import NotRetryable
from runtime_jobs.models import Job
from runtime_jobs.priorities import PRIORITIES
from runtime_jobs.specs import JOB_TYPES, JobSpec, configured_policy
from runtime_jobs.states import trigger_of_rerun

MAX_PATHS: Final = 100


def rerun(call: ApiCall, original: Job) -> ApiAnswer:
    """Queue a new job with the changed spec of another one, by the rules of a submit.

    Args:
        call: The request.
        original: A job that the caller may see, in any state.

    Raises:
        NotRetryable: Clients do not submit jobs of this type.
        ValidationError: The changed spec is not valid.
        LifecycleError: Any error of `submit`.
    """
    validated = parse(RerunJobInput, call.body)
    if original.job_type not in SPEC_PARSERS:
        raise NotRetryable(f"Jobs of type {original.job_type} cannot be rerun here: another API submits them.")
    before = JOB_TYPES[original.job_type].serialize(original)
    spec = _changed_spec(original.job_type, before, validated["spec"])
    changed = _changed_paths(before, spec)
    facts = {"rerun_of": original.root_job_ulid, "changed_paths": changed, "reason": validated["reason"] or None}
    outcome = submission.submit(
        Submission(
            org_slug=original.org_slug,
            project_slug=original.project_slug,
            spec=spec,
            trigger_kind=trigger_of_rerun(original.trigger_kind),
            trigger_actor=client_of(call).actor.name,
            correlation_id=call.context.correlation_id,
            source_address=call.address,
            priority=PRIORITIES[validated["priority"]] if validated["priority"] else None,
            group=ConcurrencyGroup(original.concurrency_key) if original.concurrency_key else None,
            first_event_facts=facts,
        ),
        policy=configured_policy(original.job_type),
        default_pool=settings.DEFAULT_POOL,
        actor=client_of(call).actor,
        idempotency=idempotent_request(call, f"rerun {original.job_ulid}", call.body),
    )
    headers = {"Location": f"/v1/jobs/{outcome.job.job_ulid}"}
    if outcome.replayed:
        headers["Idempotency-Replayed"] = "true"
    rerun_members = {"rerun_of": original.root_job_ulid, "changed_paths": changed, "is_replay": False}
    return ApiAnswer(wire.serialize_any_job(outcome.job) | rerun_members, 201, headers)


def _changed_spec(job_type: str, before: dict[str, Any], patch: dict[str, Any]) -> JobSpec:
    try:
        return parse_spec(job_type, apply_merge_patch(before, patch))
    except ValidationError as error:
        raise ValidationError({"spec": error.detail}) from None


def _changed_paths(before: dict[str, Any], spec: JobSpec) -> list[str]:
    """Return the places, as JSON Pointers, at which the spec of the new job differs, at most `MAX_PATHS`."""
    after = JOB_TYPES[spec.job_type].serialize(Job(**spec.columns()))
    return [one.path for one in islice(differences(before, after, "/spec"), MAX_PATHS)]
