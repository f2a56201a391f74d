"""Views of projects, and of the branches, benchmarks and measures of a project."""

from collections.abc import Callable
from typing import Any, TypeVar

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.protocols.bencher.base_view import PublicView, list_response
from orchestrator.protocols.bencher.lists import SortKey, filter_resources, paginate, search_resources
from orchestrator.protocols.bencher.permissions import caller_of
from orchestrator.protocols.bencher.projects import readable_project, readable_projects
from orchestrator.protocols.bencher.reports.wire import (
    branch_document,
    measure_document,
    project_document,
    resource_document,
)
from orchestrator.protocols.bencher.resource_ids import parse_resource_id, row_filter
from orchestrator.protocols.bencher.resources import openapi
from orchestrator.results.models import Benchmark, Branch, Measure, ProjectResource
from runtime_jobs.errors import NotFound
from runtime_jobs.models import Project

T = TypeVar("T", bound=ProjectResource)
Document = Callable[[Any, Project], dict[str, Any]]
_PROJECT_SORTS = {"name": SortKey(("slug", "public_slug")), "created": SortKey(("created_at", "pk"), "desc")}


class ProjectListView(PublicView):
    """`/v0/projects`."""

    @openapi.LIST_PROJECTS_DOCS
    def get(self, request: Request) -> Response:
        """List the public projects, and the private ones that the caller may see."""
        return _project_page(request, readable_projects(caller_of(request)))


class OrganizationProjectListView(PublicView):
    """`/v0/organizations/{organization}/projects`."""

    @openapi.LIST_ORGANIZATION_PROJECTS_DOCS
    def get(self, request: Request, organization: str) -> Response:
        """List the projects of an organization that the caller may see."""
        named = row_filter(parse_resource_id(organization, "organization"))
        rows = readable_projects(caller_of(request))
        of_organization = rows.filter(**{f"organization__{name}": value for name, value in named.items()})
        if not of_organization.exists():
            raise NotFound(f"There is no organization {organization} with a project that you may see.")
        return _project_page(request, of_organization)


class ProjectDetailView(PublicView):
    """`/v0/projects/{project}`."""

    @openapi.GET_PROJECT_DOCS
    def get(self, request: Request, project: str) -> Response:
        """Return a project."""
        return Response(project_document(readable_project(request, project)))


class BranchListView(PublicView):
    """`/v0/projects/{project}/branches`."""

    @openapi.LIST_BRANCHES_DOCS
    def get(self, request: Request, project: str) -> Response:
        """List the branches of a project by name. Archived ones are left out by default."""
        return _page(request, project, Branch, branch_document)


class BranchDetailView(PublicView):
    """`/v0/projects/{project}/branches/{branch}`."""

    @openapi.GET_BRANCH_DOCS
    def get(self, request: Request, project: str, branch: str) -> Response:
        """Return a branch."""
        return _one(request, project, Branch, branch, branch_document)


class BenchmarkListView(PublicView):
    """`/v0/projects/{project}/benchmarks`."""

    @openapi.LIST_BENCHMARKS_DOCS
    def get(self, request: Request, project: str) -> Response:
        """List the benchmarks of a project by name. Archived ones are left out by default."""
        return _page(request, project, Benchmark, resource_document)


class BenchmarkDetailView(PublicView):
    """`/v0/projects/{project}/benchmarks/{benchmark}`."""

    @openapi.GET_BENCHMARK_DOCS
    def get(self, request: Request, project: str, benchmark: str) -> Response:
        """Return a benchmark."""
        return _one(request, project, Benchmark, benchmark, resource_document)


class MeasureListView(PublicView):
    """`/v0/projects/{project}/measures`."""

    @openapi.LIST_MEASURES_DOCS
    def get(self, request: Request, project: str) -> Response:
        """List the measures of a project by name. Archived ones are left out by default."""
        return _page(request, project, Measure, measure_document)


class MeasureDetailView(PublicView):
    """`/v0/projects/{project}/measures/{measure}`."""

    @openapi.GET_MEASURE_DOCS
    def get(self, request: Request, project: str, measure: str) -> Response:
        """Return a measure with its unit."""
        return _one(request, project, Measure, measure, measure_document)


def _project_page(request: Request, rows: QuerySet[Project]) -> Response:
    page = paginate(request, search_resources(request, rows, name="slug", slug="public_slug"), _PROJECT_SORTS)
    return list_response([project_document(project) for project in page.rows], page.total)


def _page(request: Request, project: str, model: type[T], document: Document) -> Response:
    owner = readable_project(request, project)
    page = paginate(request, filter_resources(request, model._default_manager.filter(project=owner)))  # noqa: SLF001
    return list_response([document(row, owner) for row in page.rows], page.total)


def _one(request: Request, project: str, model: type[T], text: str, document: Document) -> Response:
    owner = readable_project(request, project)
    name = model._meta.verbose_name  # noqa: SLF001 Django's name
    named = row_filter(parse_resource_id(text, str(name)))
    found = model._default_manager.filter(project=owner, **named).first()  # noqa: SLF001 as above
    if found is None:
        raise NotFound(f"The project has no {name} {text}.")
    return Response(document(found, owner))
