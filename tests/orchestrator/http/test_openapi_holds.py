"""Every request is answered as the OpenAPI document promises: with one of its responses in its shape, never a 500.

schemathesis makes requests from the document, right ones and wrong ones, always the same. `PROOF_REQUESTS` makes it longer.
"""

import contextlib
import copy
import os
import re
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import User
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections, transaction
from hypothesis import HealthCheck, given, settings

from orchestrator.artifacts import piece_operations
from orchestrator.artifacts.operations import complete_upload
from orchestrator.core.cause import Cause
from orchestrator.services import batches
from orchestrator.services.batches import BatchJob, BatchSubmission
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import Job, StoredArtifact
from runtime_jobs.specs import configured_policy
from tests.factories import (
    ALICE,
    OrganizationFactory,
    ProjectFactory,
    WorkerFactory,
    api_token,
    claimed,
    limited,
    personal_key,
    source,
    steps_spec,
    submission,
    submitted,
)
from tests.openapi_document import FILE, openapi_document
from tests.orchestrator.protocols.shithub.world import make_repository, register, start_run
from tests.shared_rows import module_transaction

pytestmark = pytest.mark.slow
TOO_LARGE = 413
EXAMPLES = int(os.environ.get("PROOF_REQUESTS", "2"))  # of each operation and kind


def published_operations():
    """Method and path of each operation. Parsing the document takes most of a second, in each test process."""
    paths = FILE.read_text().partition("\ncomponents:\n")[0]
    path, found = "", []
    for line in re.findall(r"^  (/\S*):$|^    (get|post|put|patch|delete|head|options):$", paths, re.MULTILINE):
        path = line[0] or path
        found += [(line[1].upper(), path)] if line[1] else []
    return found


OPERATIONS = published_operations()
ID_PARAMETERS = ("job_id", "lease_id", "batch_id", "limit_id", "artifact_id")
# Any text may be the id of a run or quota, and the others have no parameter: nothing that is sent is wrong.
NOT_TO_BE_WRONG = [
    ("GET", "/v1/ingest/runs/{run_id}"),
    ("GET", "/api/quotas/{quota_id}"),
    ("GET", "/v0/server/version"),
    ("GET", "/v0/server/config/console"),
    ("GET", "/.well-known/jwks.json"),
    ("GET", "/.well-known/openid-configuration"),
    ("GET", "/v1/keys"),
    # Any other id is an address of document 001, which answers in its own form.
    ("POST", "/api/v1/runs/{run_id}/rerun"),
]
OF_DELTA = "/api/v1/runs/{batch_id}"
OF_RUNNERS = ("/api/v1/runners/", "/api/v1/jobs/")  # document 003; its users cancel jobs, too
OF_USERS = "/api/v1/jobs/{job_id}/cancel"
OF_DOCUMENT_004 = "/api/jobs/"
OF_ONE = [(method, path) for method, path in OPERATIONS if any(f"{{{name}}}" in path for name in ID_PARAMETERS)]


@pytest.fixture(scope="module")
def api():
    """The document and its schema; the modules take seconds to import, in each test process."""
    import schemathesis  # noqa: PLC0415 - see above
    from schemathesis.checks import not_a_server_error  # noqa: PLC0415 - see above
    from schemathesis.specs.openapi import checks  # noqa: PLC0415 - see above

    document = copy.deepcopy(openapi_document())
    operations = [(method.upper(), path) for path, methods in document["paths"].items() for method in methods]
    assert sorted(operations) == sorted(OPERATIONS)
    for method, path in operations:
        # Every call here brings the right token; tests/orchestrator/http/test_tokens.py the wrong ones.
        del document["paths"][path][method.lower()]["security"]
    schema = schemathesis.openapi.from_dict(document)
    schema.app = get_wsgi_application()
    checked = [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_headers_conformance,
        checks.response_schema_conformance,
        checks.negative_data_rejection,
    ]
    modes = {"right": schemathesis.GenerationMode.POSITIVE, "wrong": schemathesis.GenerationMode.NEGATIVE}
    return SimpleNamespace(document=document, schema=schema, checks=checked, modes=modes)


@pytest.fixture(scope="module")
def cast_of_module(django_db_setup, django_db_blocker):
    """The rows of `cast`, which are the same for hundreds of tests."""
    with module_transaction(django_db_blocker):
        with django_db_blocker.unblock():
            project = ProjectFactory(organization=OrganizationFactory(slug="sandtrace"), webhook_generation=1)
            worker = WorkerFactory(capacity=200)
            admin = User.objects.create(username="root", is_staff=True, is_superuser=True)
            found = SimpleNamespace(
                project=project,
                worker=worker,
                client=api_token(project.organization),
                admin_key=personal_key(admin),
                runner=None,
                job=None,
            )
        yield found


@pytest.fixture
def cast(cast_of_module, db):
    """A tenant and a worker, and the token that each operation wants."""
    keep_connection()
    yield copy.deepcopy(cast_of_module)
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


def keep_connection():
    """Remove what closes the test's own connection. Each request of Django's test client restores it."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)


def names(operations):
    return [f"{method} {path}" for method, path in operations]


def something_there(cast, path):
    """The id of a running job, of the lease on it, or of a batch of one, by the parameter's name."""
    if path.startswith(OF_RUNNERS):
        claim_workflow_job(cast)
        ids = {"job_id": cast.job.job["id"], "step_id": cast.job.steps[0]["id"]}
        return {name: value for name, value in ids.items() if f"{{{name}}}" in path}
    submitted(cast.project)
    lease = claimed(cast.worker).lease
    ids = {"job_id": lease.job_id, "lease_id": lease.lease_ulid}
    if "{batch_id}" in path:
        ids["batch_id"] = a_batch(cast)
    if "{limit_id}" in path:
        ids["limit_id"] = str(limited("sandtrace", max_active=99, cause=Cause(ALICE, "test")).pk)
    if "{artifact_id}" in path:
        ids["artifact_id"] = an_artifact(cast, lease)
    if path.startswith(OF_DOCUMENT_004):
        ids["job_id"] = str(uuid_of(lease.job_id))
    return {name: value for name, value in ids.items() if f"{{{name}}}" in path}


def an_artifact(cast, lease):
    row = piece_operations.begin_lease_artifact(lease_ulid=lease.lease_ulid, worker=cast.worker, name="a", size_bytes=0)
    complete_upload(StoredArtifact, row.pk, size_bytes=0, sha256="0" * 64, publish=lambda: None)
    return row.artifact_ulid


def claim_workflow_job(cast):
    """A job of a workflow run, claimed by a runner of document 003."""
    if cast.runner is None:
        cast.runner = register(capacity=64)
        make_repository(cast.project)
    start_run()
    cast.job = cast.runner.client.claim(capacity=64)


def token_of(cast, method, path):
    """The token that the operation accepts. That of a job counts for one call."""
    if path.startswith("/v0/"):
        return cast.admin_key
    if path.startswith(OF_RUNNERS) and path != OF_USERS:
        if cast.job is None:
            claim_workflow_job(cast)
        if path.startswith("/api/v1/runners/") or path.endswith("/token"):
            return cast.runner.client.registration
        return cast.runner.client.post(f"{cast.job.path}/token").json()["token"]
    of_worker = any(part in path for part in ("leases", "/internal/", "/heartbeat"))
    of_worker = of_worker or (method, path) == ("POST", "/v1/ingest/run")
    return cast.worker.token if of_worker else cast.client


def a_batch(cast):
    made = submission(cast.project, steps_spec())
    origin = BatchSubmission(
        made.org_slug,
        made.project_slug,
        source(),
        "manual",
        None,
        correlation_id="test",
        source_address=None,
        details={},
    )
    jobs = [BatchJob(made.spec)]
    outcome = batches.submit_batch(origin, jobs, policy_for=configured_policy, default_pool="shared-linux", actor=ALICE)
    return outcome.batch.batch_ulid


def exchange(api, cast, method, path, strategy, around=contextlib.nullcontext):
    """Send what the strategy makes, each request inside `around()`, and check each answer."""
    # Under WSGI a stream is 501 or 503, which the document names.
    checked = api.checks[1:] if path.endswith(("/logs/stream", "/dashboard/events")) else api.checks
    suppressed = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much]

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=suppressed)
    @given(case=strategy)
    def sent(case):
        with around():
            send(case)

    def send(case):
        headers = {"Authorization": f"Bearer {token_of(cast, method, path)}"}
        keep_connection()
        if (case.query or {}).get("follow") == "1":
            case.query = {"follow": "0"}  # the job runs, and would be followed for ever
        if path == "/api/v1/internal/lease" and isinstance(case.body, dict) and waits(case.body.get("wait_seconds")):
            case.body["wait_seconds"] = 0  # no job arrives meanwhile
        response = case.call(headers=headers)
        # A generated text may have megabytes. schemathesis does not know that 413 refuses a wrong body as well.
        wanted = checked[:-1] if response.status_code == TOO_LARGE else checked
        case.validate_response(response, checks=wanted, headers=headers)

    sent()


@contextlib.contextmanager
def undone():
    """Roll back what the request has changed: the next one finds the thing as it was made."""
    around_request = transaction.atomic()
    around_request._from_testcase = True  # a durable transaction of the product may begin inside
    with around_request:
        yield
        transaction.set_rollback(True)


def waits(seconds) -> bool:
    return type(seconds) in {int, float} and 0 <= seconds <= 60


@pytest.mark.parametrize("mode", ["right", "wrong"])
@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=names(OPERATIONS))
def test_every_answer_is_one_of_the_document(api, cast, method, path, mode):
    if mode == "wrong" and (method, path) in NOT_TO_BE_WRONG:
        return
    submitted(cast.project)
    strategy = api.schema[path][method].as_strategy(generation_mode=api.modes[mode])
    if path.startswith(OF_DELTA):  # a whole number is the id of a run of document 003
        strategy = strategy.filter(lambda case: not re.match("[0-9]+(/|$)", str(case.path_parameters["batch_id"])))
    exchange(api, cast, method, path, strategy)


@pytest.mark.parametrize(("method", "path"), OF_ONE, ids=names(OF_ONE))
def test_so_it_is_for_what_is_there(api, cast, method, path):
    strategy = api.schema[path][method].as_strategy(path_parameters=something_there(cast, path))
    exchange(api, cast, method, path, strategy, undone)


@pytest.mark.parametrize(("method", "path"), OF_ONE, ids=names(OF_ONE))
def test_so_it_is_for_a_wrong_body_about_what_is_there(api, cast, method, path):
    fixed = something_there(cast, path)
    operation = api.schema[path][method]
    if operation.body or operation.query or operation.headers:
        strategy = operation.as_strategy(generation_mode=api.modes["wrong"], path_parameters=fixed)
        exchange(api, cast, method, path, strategy)


@pytest.mark.parametrize("path", ["/v1/runtime/jobs", "/v1/jobs", "/api/v1/runs"])
def test_the_examples_of_the_document_are_answered_as_it_says(api, cast, path):
    """Those that make something are sent as they stand."""
    body = api.document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["examples"]
    for example in body.values():
        case = api.schema[path]["POST"].Case(body=example["value"], media_type="application/json")
        headers = {"Authorization": f"Bearer {cast.client}"}
        response = case.call(headers=headers)
        assert response.status_code == 201, response.text
        case.validate_response(response, checks=api.checks[:-1], headers=headers)
    assert Job.objects.count() == len(body)
