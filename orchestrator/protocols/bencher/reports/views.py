"""Views of the results of a project. Everyone may read those of a public project."""

from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet, RestrictedError
from django.db.models.functions import Coalesce
from django.http.response import HttpResponseBase
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.core.operator_events import record_operator_event
from orchestrator.http.api.json_parser import body_of
from orchestrator.protocols.bencher.base_view import PublicView, list_response
from orchestrator.protocols.bencher.errors import bad_request
from orchestrator.protocols.bencher.lists import SortKey, filter_resources, paginate, query_boolean, query_value
from orchestrator.protocols.bencher.projects import changeable_project, readable_project
from orchestrator.protocols.bencher.reports import openapi
from orchestrator.protocols.bencher.reports.perf import PerfQuery, parse_parallel_uuids, parse_uuids, perf_document
from orchestrator.protocols.bencher.reports.serializers import NewTestbedInput, TestbedChangeInput
from orchestrator.protocols.bencher.reports.streaming import expanded_response, report_response
from orchestrator.protocols.bencher.reports.wire import (
    metric_document,
    project_document,
    report_document,
    stored_counts,
    testbed_document,
)
from orchestrator.protocols.bencher.resource_ids import parse_resource_id, parse_uuid, row_filter
from orchestrator.results.models import Branch, Metric, ProjectResource, Report, Testbed
from orchestrator.results.names import ResourceLimitReached, require_room
from orchestrator.services.hardware_specs import lock_active
from runtime_jobs.errors import NotFound, ResourceConflict
from runtime_jobs.models import Project
from runtime_jobs.resource_names import slugify, with_random_suffix
from workers.models import HardwareSpec

T = TypeVar("T", bound=ProjectResource)

MAX_EXPANDED_METRICS = 100_000  # of all reports in one response
_REPORT_ROWS = ("project__organization__plan", "branch", "testbed", "spec", "result")
_BY_TIME = {"date_time": SortKey(("began_at", "pk"), "desc")}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_MILLISECONDS = 253402300799999  # of the year 9999


class DeletingView(PublicView):
    """Base of views that delete a resource of a project, which the audit log records."""

    def _record_deletion(self, request: Request, project: Project, target: str) -> None:
        record_operator_event(
            f"{target.partition(':')[0]}.deleted",
            target=target[:200],
            org_slug=project.organization.slug,
            cause=self.cause_of(request),
        )


class ReportListView(PublicView):
    """`/v0/projects/{project}/reports`."""

    @openapi.LIST_REPORTS_DOCS
    def get(self, request: Request, project: str) -> HttpResponseBase:
        """List the reports of a project, newest first, with the numbers of their results."""
        owner = readable_project(request, project)
        rows = _filtered_reports(request, owner)
        page = paginate(request, rows, _BY_TIME)
        if query_boolean(request, "expand"):
            _limit_expansion(page.rows)
            return expanded_response(request, page.rows, page.total)
        counts = stored_counts(page.rows)
        document = project_document(owner)
        documents = [report_document(report, None, counts.get(report.pk, ()), project=document) for report in page.rows]
        return list_response(documents, page.total)


class ReportDetailView(DeletingView):
    """`/v0/projects/{project}/reports/{report}`."""

    @openapi.GET_REPORT_DOCS
    def get(self, request: Request, project: str, report: str) -> HttpResponseBase:
        """Return a report with its results."""
        rows = Report.objects.select_related(*_REPORT_ROWS).filter(project=readable_project(request, project))
        found = rows.filter(uuid=_path_uuid(report, "report")).first()
        if found is None:
            raise NotFound(f"The project has no report {report}.")
        return report_response(request, found)

    @openapi.DELETE_REPORT_DOCS
    def delete(self, request: Request, project: str, report: str) -> Response:
        """Delete a report with its metrics. Its job stays, without a report."""
        owner = changeable_project(request, project)
        with transaction.atomic():
            rows = Report.objects.select_for_update(of=("self",)).filter(project=owner)
            found = rows.filter(uuid=_path_uuid(report, "report")).first()
            if found is None:
                raise NotFound(f"The project has no report {report}.")
            found.delete()
            self._record_deletion(request, owner, f"report:{found.uuid}")
        return Response(status=204)


class MetricDetailView(PublicView):
    """`/v0/projects/{project}/metrics/{metric}`."""

    @openapi.GET_METRIC_DOCS
    def get(self, request: Request, project: str, metric: str) -> Response:
        """Return a metric."""
        rows = Metric.objects.select_related("benchmark", "measure", *(f"report__{name}" for name in _REPORT_ROWS))
        of_project = rows.filter(report__project=readable_project(request, project))
        found = of_project.filter(uuid=_path_uuid(metric, "metric")).first()
        if found is None:
            raise NotFound(f"The project has no metric {metric}.")
        return Response(metric_document(found))


class PerfView(PublicView):
    """`/v0/projects/{project}/perf`."""

    @openapi.GET_PERF_DOCS
    def get(self, request: Request, project: str) -> Response:
        """Return the history of metrics: a series for each branch, testbed, benchmark and measure that has some."""
        owner = readable_project(request, project)
        branches, testbeds, benchmarks, measures = (
            parse_uuids(query_value(request, name), name) for name in ("branches", "testbeds", "benchmarks", "measures")
        )
        query = PerfQuery(
            branches=branches,
            heads=parse_parallel_uuids(query_value(request, "heads"), "heads", len(branches)),
            testbeds=testbeds,
            specs=parse_parallel_uuids(query_value(request, "specs"), "specs", len(testbeds)),
            benchmarks=benchmarks,
            measures=measures,
            start=_query_time(request, "start_time"),
            end=_query_time(request, "end_time"),
        )
        return Response(perf_document(owner, query))


class TestbedListView(PublicView):
    """`/v0/projects/{project}/testbeds`."""

    __test__ = False  # a class whose name begins so is a test for pytest

    @openapi.LIST_TESTBEDS_DOCS
    def get(self, request: Request, project: str) -> Response:
        """List the testbeds of a project by name. Archived ones are left out by default."""
        owner = readable_project(request, project)
        page = paginate(
            request, filter_resources(request, Testbed.objects.select_related("spec").filter(project=owner))
        )
        return list_response([testbed_document(testbed, owner, testbed.spec) for testbed in page.rows], page.total)

    @openapi.CREATE_TESTBED_DOCS
    def post(self, request: Request, project: str) -> Response:
        """Create a testbed. A slug that is taken gets a random suffix."""
        owner = changeable_project(request, project)
        given = NewTestbedInput(data=body_of(request))
        given.is_valid(raise_exception=True)
        values = given.validated_data
        slug = values.get("slug") or slugify(values["name"])
        if Testbed.objects.filter(project=owner, slug=slug).exists():
            slug = with_random_suffix(slug)
        try:
            require_room(Testbed, owner, 1)
        except ResourceLimitReached as error:
            raise bad_request(str(error)) from None
        now = timezone.now()
        with transaction.atomic():
            spec = _lock_spec(values["spec"]) if "spec" in values else None
            testbed = Testbed(project=owner, name=values["name"], slug=slug, spec=spec, created_at=now, modified_at=now)
            _save(testbed)
        return Response(testbed_document(testbed, owner, spec), status=201)


class TestbedDetailView(DeletingView):
    """`/v0/projects/{project}/testbeds/{testbed}`."""

    __test__ = False  # as above

    @openapi.GET_TESTBED_DOCS
    def get(self, request: Request, project: str, testbed: str) -> Response:
        """Return a testbed with its hardware spec, or with the one that `spec` names."""
        owner = readable_project(request, project)
        found = _find_testbed(owner, testbed)
        requested = query_value(request, "spec")
        spec = found.spec if requested is None else _spec_by_uuid(requested)
        return Response(testbed_document(found, owner, spec))

    @openapi.CHANGE_TESTBED_DOCS
    def patch(self, request: Request, project: str, testbed: str) -> Response:
        """Rename, archive or restore a testbed, or attach a hardware spec."""
        owner = changeable_project(request, project)
        _find_testbed(owner, testbed)  # before the body: a testbed that does not exist is 404
        body = body_of(request)
        change = TestbedChangeInput(data=body)
        change.is_valid(raise_exception=True)
        values = change.validated_data
        now = timezone.now()
        with transaction.atomic():
            # In the order of `clear_archived_spec`: the spec, then its testbeds.
            spec = _lock_spec(values["spec"]) if "spec" in values else None
            found = _find_testbed(owner, testbed, is_locked=True)
            found.name, found.slug = values.get("name", found.name), values.get("slug", found.slug)
            if "spec" in body:
                found.spec = spec
            if "archived" in values:
                found.archived_at = now if values["archived"] else None
            found.modified_at = now
            _save(found)
        return Response(testbed_document(found, owner, found.spec))

    @openapi.DELETE_TESTBED_DOCS
    def delete(self, request: Request, project: str, testbed: str) -> Response:
        """Delete a testbed that no report names."""
        owner = changeable_project(request, project)
        with transaction.atomic():
            found = _find_testbed(owner, testbed, is_locked=True)
            try:
                found.delete()
            except RestrictedError:
                raise ResourceConflict("The testbed has reports: delete them first, or archive the testbed.") from None
            self._record_deletion(request, owner, f"testbed:{found.name}")
        return Response(status=204)


def _filtered_reports(request: Request, project: Project) -> QuerySet[Report]:
    rows = Report.objects.select_related(*_REPORT_ROWS).filter(project=project)
    # The times of a run with a job are those of its result.
    rows = rows.annotate(
        began_at=Coalesce("result__start_time", "start_time"), ended_at=Coalesce("result__end_time", "end_time")
    )
    for name, model in (("branch", Branch), ("testbed", Testbed)):
        if (text := query_value(request, name)) is not None:
            rows = rows.filter(**{f"{name}__in": _named(model, project, text)})
    if (start := _query_time(request, "start_time")) is not None:
        rows = rows.filter(began_at__gte=start)
    if (end := _query_time(request, "end_time")) is not None:
        rows = rows.filter(ended_at__lte=end)
    is_archived = Q(branch__archived_at__isnull=False) | Q(testbed__archived_at__isnull=False)
    return rows.filter(is_archived if query_boolean(request, "archived") else ~is_archived)


def _limit_expansion(reports: list[Report]) -> None:
    results = (getattr(report, "result", None) for report in reports)
    if sum(result.metric_count for result in results if result is not None) > MAX_EXPANDED_METRICS:
        raise bad_request(
            f"expand: These reports have more than {MAX_EXPANDED_METRICS} metrics. Request fewer with `per_page`."
        )


def _named(model: type[T], project: Project, text: str) -> QuerySet[T]:
    """Return the branch or testbed with this UUID, slug or name."""
    condition = Q(name=text) | Q(slug=text)
    if (uuid := parse_uuid(text)) is not None:
        condition |= Q(uuid=uuid)
    return model._default_manager.filter(condition, project=project)  # noqa: SLF001 Django's name


def _query_time(request: Request, name: str) -> datetime | None:
    text = query_value(request, name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 15 and int(text) <= _MAX_MILLISECONDS):
        raise bad_request(f"{name}: Must be milliseconds since 1970, from 0 to {_MAX_MILLISECONDS}.")
    return _EPOCH + timedelta(milliseconds=int(text))


def _path_uuid(text: str, name: str) -> UUID:
    found = parse_uuid(text)
    if found is None:
        raise bad_request(f"{name}: Must be a UUID.")
    return found


def _find_testbed(project: Project, text: str, *, is_locked: bool = False) -> Testbed:
    named = row_filter(parse_resource_id(text, "testbed"))
    rows = Testbed.objects.select_related("spec").filter(project=project, **named)
    if is_locked:
        rows = rows.select_for_update(of=("self",), no_key=True)
    found = rows.first()
    if found is None:
        raise NotFound(f"The project has no testbed {text}.")
    return found


def _lock_spec(text: str) -> HardwareSpec:
    """Return an active spec, which is neither archived nor deleted before the end of the transaction."""
    active = HardwareSpec.objects.filter(archived_at__isnull=True)
    spec = active.filter(**row_filter(parse_resource_id(text, "spec"))).first()
    if spec is None or not lock_active(spec):
        raise NotFound(f"There is no hardware spec {text}, or it is archived.")
    return spec


def _spec_by_uuid(text: str) -> HardwareSpec:
    """Return a spec, archived or not: the parameter names that of an earlier report."""
    spec = HardwareSpec.objects.filter(uuid=_path_uuid(text, "spec")).first()
    if spec is None:
        raise NotFound(f"There is no hardware spec {text}.")
    return spec


def _save(testbed: Testbed) -> None:
    try:
        with transaction.atomic():
            testbed.save()
    except IntegrityError:
        raise ResourceConflict("name, slug: Another testbed of the project has this name or slug.") from None
