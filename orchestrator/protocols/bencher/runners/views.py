"""Views of `/v0/runners` for server admins (contract 2.1 to 2.8)."""

from django.db.models import Q
from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.http.api.json_parser import body_of
from orchestrator.protocols.bencher.base_view import BencherView, list_response
from orchestrator.protocols.bencher.lists import contains, paginate, query_boolean, query_name, query_value
from orchestrator.protocols.bencher.resource_ids import parse_resource_id, runner_filter
from orchestrator.protocols.bencher.runners import openapi
from orchestrator.protocols.bencher.runners.serializers import NewRunnerInput, RunnerChangeInput, RunnerSpecInput
from orchestrator.protocols.bencher.runners.wire import key_document, runner_document
from orchestrator.protocols.bencher.specs.views import find_spec
from orchestrator.protocols.bencher.specs.wire import spec_document
from orchestrator.services import runners
from runtime_jobs.errors import NotFound
from runtime_jobs.identifiers import uuid_of
from workers.models import Worker
from workers.registry.models import WorkerQuerySet


def find_runner(text: str) -> Worker:
    """Return the runner that a UUID or slug names, archived or not.

    Raises:
        ApiError: 400; the text is neither.
        NotFound: There is no such runner.
    """
    worker = Worker.objects.runners().filter(**runner_filter(parse_resource_id(text, "runner"))).first()
    if worker is None:
        raise NotFound(f"There is no runner {text}.")
    return worker


class RunnerListView(BencherView):
    """`/v0/runners`."""

    @openapi.LIST_RUNNERS_DOCS
    def get(self, request: Request) -> Response:
        """List the runners by name. Archived ones are left out by default."""
        page = paginate(request, _filtered(request))
        return list_response([runner_document(worker) for worker in page.rows], page.total)

    @openapi.CREATE_RUNNER_DOCS
    def post(self, request: Request) -> Response:
        """Create a runner and return its key, once. A slug that is taken is 409."""
        given = NewRunnerInput(data=body_of(request))
        given.is_valid(raise_exception=True)
        worker, key = runners.create_runner(**given.validated_data, cause=self.cause_of(request))
        return Response(key_document(worker, key), status=201)


class RunnerDetailView(BencherView):
    """`/v0/runners/{runner}`."""

    @openapi.GET_RUNNER_DOCS
    def get(self, request: Request, runner: str) -> Response:
        """Return a runner, archived or not."""
        return Response(runner_document(find_runner(runner)))

    @openapi.CHANGE_RUNNER_DOCS
    def patch(self, request: Request, runner: str) -> Response:
        """Rename, archive or restore a runner."""
        change = RunnerChangeInput(data=body_of(request))
        change.is_valid(raise_exception=True)
        worker_id = find_runner(runner).worker_id
        changed = runners.change_runner(worker_id=worker_id, **change.validated_data, cause=self.cause_of(request))
        return Response(runner_document(changed))


class RotateKeyView(BencherView):
    """`/v0/runners/{runner}/key`. The body of a request is not read."""

    @openapi.ROTATE_KEY_DOCS
    def post(self, request: Request, runner: str) -> Response:
        """Give a runner a new key and return it, once. The old one is refused from now on."""
        worker_id = find_runner(runner).worker_id
        worker, key = runners.rotate_runner_key(worker_id=worker_id, cause=self.cause_of(request))
        return Response(key_document(worker, key), status=201)


class RotateTokenView(RotateKeyView):
    """`/v0/runners/{runner}/token`, the path of older clients."""

    @openapi.ROTATE_TOKEN_DOCS
    def post(self, request: Request, runner: str) -> Response:
        return super().post(request, runner)


class RunnerSpecListView(BencherView):
    """`/v0/runners/{runner}/specs`."""

    @openapi.LIST_RUNNER_SPECS_DOCS
    def get(self, request: Request, runner: str) -> Response:
        """List all hardware specs of a runner, without pages. `X-Total-Count` is 1."""
        return Response([spec_document(spec) for spec in find_runner(runner).specs.order_by("pk")])

    @openapi.ADD_RUNNER_SPEC_DOCS
    def post(self, request: Request, runner: str) -> Response:
        """Associate a hardware spec with a runner. The runner gets the jobs that ask for it."""
        given = RunnerSpecInput(data=body_of(request))
        given.is_valid(raise_exception=True)
        worker_id = find_runner(runner).worker_id
        spec = find_spec(given.validated_data["spec"])
        added = runners.add_runner_spec(worker_id=worker_id, spec_uuid=spec.uuid, cause=self.cause_of(request))
        return Response(spec_document(added), status=201)


class RunnerSpecDetailView(BencherView):
    """`/v0/runners/{runner}/specs/{spec}`."""

    @openapi.REMOVE_RUNNER_SPEC_DOCS
    def delete(self, request: Request, runner: str, spec: str) -> Response:
        """End the association of a hardware spec with a runner. Running jobs continue."""
        worker_id, spec_uuid = find_runner(runner).worker_id, find_spec(spec).uuid
        runners.remove_runner_spec(worker_id=worker_id, spec_uuid=spec_uuid, cause=self.cause_of(request))
        return Response(status=204)


def _filtered(request: Request) -> WorkerQuerySet:
    rows = Worker.objects.runners().prefetch_related("specs")
    if not query_boolean(request, "archived"):
        rows = rows.filter(archived_at__isnull=True)
    if (name := query_name(request)) is not None:
        rows = rows.filter(Q(name=name) | Q(name="", slug=name))
    if text := query_value(request, "search"):
        by_uuid = Q(worker_id__in=_ids_with_uuid_like(rows, text))
        rows = rows.filter(Q(contains("name", text)) | Q(contains("slug", text)) | by_uuid)
    return rows


def _ids_with_uuid_like(rows: WorkerQuerySet, text: str) -> list[str]:
    """Return the ids of the workers whose UUID contains a text. The UUID is no column: it is computed for each."""
    worker_ids = rows.prefetch_related(None).values_list("worker_id", flat=True)
    return [worker_id for worker_id in worker_ids if text.lower() in str(uuid_of(worker_id))]
