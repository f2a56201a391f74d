"""Views of `/v1/schedules`."""

from typing import Any

import django_filters
from django.db.models import QuerySet
from django.utils import timezone
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.http.api.fields import parse
from orchestrator.http.api.headers import idempotent_request
from orchestrator.http.api.json_parser import body_of
from orchestrator.http.api.query_parameters import LIST_PARAMETERS
from orchestrator.http.api.schedule_jobs import configured_submitter
from orchestrator.http.auth.callers import cause_of, client_of
from orchestrator.http.auth.permissions import HasScope
from orchestrator.protocols.native.base_view import OrganizationViewSet, created_response
from orchestrator.protocols.native.organizations import visible_organization
from orchestrator.protocols.native.schedules import openapi, serializers, wire
from orchestrator.schedules.models import Schedule, ScheduleStatus, ScheduleTick
from orchestrator.schedules.operations import (
    NO_SCHEDULE,
    ScheduleTerms,
    change_schedule,
    create_schedule,
    delete_schedule,
    run_schedule,
)
from runtime_jobs.models.tenants import Scope


class ScheduleFilters(django_filters.FilterSet):
    """Filters of `GET /v1/schedules`."""

    org_slug = django_filters.CharFilter(field_name="organization__slug")
    status = django_filters.ChoiceFilter(choices=ScheduleStatus.choices)

    class Meta:
        model = Schedule
        fields: list[str] = []


class ScheduleViewSet(OrganizationViewSet):
    """Schedules of the organizations that the caller may see."""

    lookup_field = "schedule_ulid"
    lookup_url_kwarg = "schedule_id"
    lookup_value_regex = openapi.SCHEDULE_ID_PATTERN
    http_method_names = ["get", "head", "post", "patch", "delete"]
    filterset_class = ScheduleFilters
    parameters = {"ticks": LIST_PARAMETERS}
    missing = NO_SCHEDULE

    def get_permissions(self) -> list[Any]:
        scopes = [Scope.ORCH_OPERATE]
        if self.action in {"create", "partial_update", "run"}:  # who chooses a job or its times submits jobs
            scopes.append(Scope.JOBS_WRITE)
        return [HasScope(scope) for scope in scopes]

    def all_rows(self) -> QuerySet[Schedule]:
        return Schedule.objects.select_related("organization")

    @openapi.LIST_SCHEDULES
    def list(self, request: Request) -> Response:
        """List schedules, newest first."""
        return self.list_rows(wire.serialize_schedule)

    @openapi.GET_SCHEDULE
    def retrieve(self, request: Request, schedule_id: str) -> Response:
        """Return a schedule with its next times."""
        return Response(_detail(self.own_row(schedule_id)))

    @openapi.CREATE_SCHEDULE
    def create(self, request: Request) -> Response:
        """Create a schedule. Its job is submitted at each time after now, by the rules of that time."""
        terms = _terms_of(request, parse(serializers.ScheduleInput, body_of(request)))
        organization = visible_organization(client_of(request), terms.pop("org_slug"))
        schedule, is_new = create_schedule(
            organization=organization,
            terms=ScheduleTerms(**terms),
            idempotency=idempotent_request(request, "create schedule", body_of(request)),
            cause=cause_of(request),
        )
        return created_response(_detail(schedule), f"/v1/schedules/{schedule.schedule_ulid}", is_new=is_new)

    @openapi.CHANGE_SCHEDULE
    def partial_update(self, request: Request, schedule_id: str) -> Response:
        """Change a schedule. A change of its times counts from now on."""
        changes = _terms_of(request, parse(serializers.ChangeScheduleInput, body_of(request)))
        self.own_row(schedule_id)
        return Response(_detail(change_schedule(schedule_ulid=schedule_id, changes=changes, cause=cause_of(request))))

    @openapi.DELETE_SCHEDULE
    def destroy(self, request: Request, schedule_id: str) -> Response:
        """Delete a schedule. Jobs that it has submitted stay."""
        self.own_row(schedule_id)
        delete_schedule(schedule_ulid=schedule_id, cause=cause_of(request))
        return Response(status=204)

    @openapi.PAUSE_SCHEDULE
    @action(detail=True, methods=["post"])
    def pause(self, request: Request, schedule_id: str) -> Response:
        """Submit nothing until the schedule is resumed."""
        return self._set_status(request, schedule_id, ScheduleStatus.PAUSED)

    @openapi.RESUME_SCHEDULE
    @action(detail=True, methods=["post"])
    def resume(self, request: Request, schedule_id: str) -> Response:
        """Submit jobs again. Times that have passed during the pause are not missed."""
        return self._set_status(request, schedule_id, ScheduleStatus.ACTIVE)

    @openapi.RUN_SCHEDULE
    @action(detail=True, methods=["post"])
    def run(self, request: Request, schedule_id: str) -> Response:
        """Submit the job now, also while the schedule is paused. The next time stays as it is."""
        reason = _reason(request)
        self.own_row(schedule_id)
        outcome = run_schedule(
            schedule_ulid=schedule_id,
            submitter=configured_submitter(),
            idempotency=idempotent_request(request, f"run {schedule_id}", body_of(request)),
            cause=cause_of(request, reason),
        )
        created = {"job_id": outcome.job.job_ulid, "schedule_id": schedule_id}
        return created_response(created, f"/v1/jobs/{outcome.job.job_ulid}", is_new=not outcome.replayed)

    @openapi.LIST_TICKS
    @action(detail=True, filterset_class=None)
    def ticks(self, request: Request, schedule_id: str) -> Response:
        """List what became of the times of a schedule, newest first."""
        return self.page_of(ScheduleTick.objects.filter(schedule=self.own_row(schedule_id)), wire.serialize_tick)

    def _set_status(self, request: Request, schedule_id: str, status: ScheduleStatus) -> Response:
        cause = cause_of(request, _reason(request))
        self.own_row(schedule_id)
        changed = change_schedule(schedule_ulid=schedule_id, changes={"status": str(status)}, cause=cause)
        return Response(_detail(changed))


def _detail(schedule: Schedule) -> dict[str, Any]:
    return wire.serialize_schedule_detail(schedule, timezone.now())


def _reason(request: Request) -> str:
    return str(parse(serializers.ScheduleReasonInput, body_of(request))["reason"])


def _terms_of(request: Request, validated: dict[str, Any]) -> dict[str, Any]:
    """Return the members of a valid body; the job as it was submitted, which the parser reads again at each time."""
    return {name: body_of(request)["job"] if name == "job" else value for name, value in validated.items()}
