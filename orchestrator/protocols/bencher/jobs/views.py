"""Views of `/v0/projects/{project}/jobs` (contract 2.10)."""

import logging
from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Any

import orjson
from django.conf import settings
from django.db.models import Q, QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from leases.models import Lease
from orchestrator.http.api.json_parser import body_of
from orchestrator.protocols.bencher.base_view import BencherJSONRenderer, PublicView, list_response
from orchestrator.protocols.bencher.errors import bad_request
from orchestrator.protocols.bencher.jobs import openapi
from orchestrator.protocols.bencher.jobs.serializers import ProjectJobChangeInput
from orchestrator.protocols.bencher.jobs.wire import HAS_RUN, serialize_project_job
from orchestrator.protocols.bencher.lists import SortKey, paginate, query_choice
from orchestrator.protocols.bencher.permissions import caller_of
from orchestrator.protocols.bencher.projects import changeable_project, readable_project
from orchestrator.protocols.bencher.resource_ids import parse_uuid
from orchestrator.protocols.bencher.states import JOB_STATUSES, BencherStatus, job_status
from orchestrator.results.outputs import output_name, read_output
from orchestrator.selectors.pending_reasons.reason import late_result_reason
from orchestrator.services import cancellation
from runtime_jobs.errors import NotFound
from runtime_jobs.identifiers import public_id_of
from runtime_jobs.models import Job, Project
from runtime_jobs.specs import OCI, spec_uuid_of
from runtime_jobs.states import LEASED_STATES, FailureReason, JobState
from workers.models import HardwareSpec

log = logging.getLogger(__name__)

# Keys rise with the time of creation, and an index has the jobs of a project by their keys.
BY_CREATION = {"created": SortKey(("pk",), "desc")}


_FAILED_STATES = [state for state, status in JOB_STATUSES.items() if status == BencherStatus.FAILED]


class OutputJSONRenderer(BencherJSONRenderer):
    """Renders the output of a job as it is stored, without building it from Python objects again."""

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Mapping[str, Any] | None = None
    ) -> Any:
        if isinstance(data, dict) and isinstance(data.get("output"), orjson.Fragment):
            return orjson.dumps(data)
        return super().render(data, accepted_media_type, renderer_context)


class ProjectJobListView(PublicView):
    """`/v0/projects/{project}/jobs`."""

    @openapi.LIST_PROJECT_JOBS_DOCS
    def get(self, request: Request, project: str) -> Response:
        """List the jobs of a project, the newest first, without their output."""
        rows = _jobs_of(readable_project(request, project))
        status = query_choice(request, "status", tuple(map(str, BencherStatus)))
        page = paginate(request, rows if status is None else rows.filter(with_status(status)), BY_CREATION)
        return list_response(_serialize(page.rows), page.total)


class ProjectJobDetailView(PublicView):
    """`/v0/projects/{project}/jobs/{job}`."""

    renderer_classes = (OutputJSONRenderer,)

    @openapi.GET_PROJECT_JOB_DOCS
    def get(self, request: Request, project: str, job: str) -> Response:
        """Read a job. An authenticated caller gets the output of a job that has run."""
        found = readable_project(request, project)
        row = _find_job(found, job)
        (document,) = _serialize([row])
        if caller_of(request).is_authenticated and job_status(row) in HAS_RUN:
            document |= _output(found, row)
        return Response(document)

    @openapi.CANCEL_PROJECT_JOB_DOCS
    def patch(self, request: Request, project: str, job: str) -> Response:
        """Cancel a job: `status: canceled` is the only change. Its runner stops with its next heartbeat."""
        row = _find_job(changeable_project(request, project), job)
        change = ProjectJobChangeInput(data=body_of(request))
        change.is_valid(raise_exception=True)
        canceled = cancellation.cancel(
            job_ulid=row.job_ulid,
            actor=caller_of(request).actor,
            deadline_seconds=settings.CANCEL_DEADLINE_SECONDS,
        )
        (document,) = _serialize([canceled.job])
        return Response(document)


def _find_job(project: Project, text: str) -> Job:
    uuid = parse_uuid(text)
    if uuid is None:
        raise bad_request("job: Must be a UUID.")
    row = _jobs_of(project).filter(job_ulid=public_id_of("rtj", uuid)).first()
    if row is None:
        raise NotFound(f"The project {project.public_slug} has no job {uuid}.")
    return row


def _jobs_of(project: Project) -> QuerySet[Job]:
    jobs = Job.objects.of_organizations([project.organization.slug])
    return jobs.filter(project_slug=project.slug, job_type=OCI)


def with_status(status: str) -> Q:
    """Return the filter of the jobs that `job_status` gives this status."""
    is_stopping = Q(state__in=LEASED_STATES, cancel_requested_at__isnull=False)
    is_timed_out = Q(state__in=_FAILED_STATES, failure_reason=FailureReason.TIMED_OUT)
    conditions = [Q(state=state) for state, word in JOB_STATUSES.items() if word == status]
    found = reduce(or_, conditions)
    if status == BencherStatus.CANCELED:
        return found | is_stopping | is_timed_out
    return found & ~is_stopping & ~is_timed_out


def _serialize(jobs: list[Job]) -> list[dict[str, Any]]:
    leases: dict[str, Lease] = {}
    rows = Lease.objects.select_related("worker").filter(job_id__in=[job.job_ulid for job in jobs])
    for lease in rows.order_by("fence"):
        leases[lease.job_id] = lease  # the newest remains
    uuids = {spec_uuid_of(job) for job in jobs}
    specs = {spec.uuid: spec for spec in HardwareSpec.objects.filter(uuid__in=uuids)}
    return [serialize_project_job(job, specs[spec_uuid_of(job)], leases.get(job.job_ulid)) for job in jobs]


def _output(project: Project, job: Job) -> dict[str, Any]:
    """Return the output, with the reason of a failure if the runner has sent none; that needs no stored output.

    A store that fails, or holds no JSON, costs only the results.
    """
    body, document = _stored_output(project, job)
    error = _failure_text(job)
    if not error or document.get("error"):
        return {} if body is None else {"output": orjson.Fragment(body)}
    return {"output": orjson.Fragment(orjson.dumps({"results": [], **document, "error": error}))}


def _stored_output(project: Project, job: Job) -> tuple[bytes | None, dict[str, Any]]:
    """Return the bytes that the store has, and their content; None and nothing if it has none that can be read."""
    try:
        name = output_name(job)
        body = None if name is None else read_output(project.uuid, name)
        document = {} if body is None else orjson.loads(body)
    except Exception:  # each kind of store has errors of its own
        log.exception("the output of job %s cannot be read", job.job_ulid)
        return None, {}
    return body, document if isinstance(document, dict) else {}


def _failure_text(job: Job) -> str:
    """Return why a job has failed or was canceled, or empty. A lost job has the reason why it has not ended."""
    if job.state == JobState.LOST:
        return late_result_reason(job).message
    return (job.cancel_message if job.state == JobState.CANCELED else job.failure_message) or ""
