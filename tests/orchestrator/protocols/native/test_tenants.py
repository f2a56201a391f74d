"""One organization's token sees and does nothing of another's, at every address that the server has.

The addresses are read from the server: one that no table here knows fails the first test."""

import copy
import json
import re
from types import SimpleNamespace

import pytest
from django.test import Client
from django.urls import get_resolver

from leases.models import Breaker, LimitKind, LimitScope
from leases.scheduling.limits import LimitTarget
from orchestrator.core.cause import Cause
from orchestrator.http.observability.routes import _template
from orchestrator.incidents.models import Incident
from orchestrator.ingest.models import Run
from orchestrator.secrets.operations import set_secret, set_variable
from orchestrator.services import payload_schemas
from orchestrator.webhooks.models import NotificationRule
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import JobStep, Membership, StoredArtifact
from tests.api_client import Caller, problem_of, without_ids
from tests.db_snapshot import nothing_lost
from tests.factories import (
    ALICE,
    SUBMIT_ANY_BODY,
    SUBMIT_BODY,
    OrganizationFactory,
    ProjectFactory,
    WorkerFactory,
    api_token,
    claimed,
    limited,
    submitted,
)
from tests.orchestrator.bulk_actions.world import start as start_bulk_action
from tests.orchestrator.schedules.world import JOB as SCHEDULED_JOB
from tests.orchestrator.schedules.world import make_schedule
from tests.orchestrator.webhooks.world import make_deliveries, make_webhook
from tests.packs import SIMPLE_PLAN, register
from tests.shared_rows import module_transaction
from tests.workflow_jobs import make_repository, queued_workflow_job

pytestmark = pytest.mark.django_db
LEASE = "/v1/runtime/leases/<lease_id>"
WORKFLOW_FILE = ".shithub/workflows/ci.yml"
CACHE = {"key": "pip", "version": "0" * 64}
WEBHOOK_URL = "https://93.184.216.34/hook"  # a literal address: no test resolves a name
NO_WEBHOOK = "whk_01kkygkagq0jk17bx6y1w8c3df"
DONE = {"result": {"status": "uploaded", "ingest_run_id": "run_a"}}
FAILED = {"result": {"status": "failed", "reason": "worker_error"}}

# Addresses whose answer is the same for every tenant.
OF_NOBODY = {"/", "/healthz", "/readyz", "/metrics", "/v1/schema", "/v1/docs", "/favicon.ico", "/login/", "/logout/"}
OF_NOBODY |= {"/.well-known/openid-configuration", "/.well-known/jwks.json", "/v1/keys"}
# Addresses of one thing, for clients: what another's client gets is what it gets for a thing that is not there.
OF_ONE = [
    ("GET", "/v1/runtime/jobs/<job_id>", None),
    ("POST", "/v1/runtime/jobs/<job_id>/cancel", {"reason": "mine"}),
    ("POST", "/v1/runtime/jobs/<job_id>/retry", {"reason": "mine"}),
    ("GET", "/v1/runtime/jobs/<job_id>/events", None),
    ("GET", "/v1/runtime/jobs/<job_id>/logs", None),
    ("GET", "/v1/runtime/jobs/<job_id>/logs?follow=1", None),
    ("GET", "/v1/runtime/jobs/<job_id>/logs/stream", None),
    ("GET", "/v1/jobs/<job_id>", None),
    ("POST", "/v1/jobs/<job_id>/cancel", {"reason": "mine"}),
    ("POST", "/v1/jobs/<job_id>/retry", {"reason": "mine"}),
    ("GET", "/v1/jobs/<job_id>/events", None),
    ("GET", "/v1/jobs/<job_id>/logs", None),
    ("GET", "/v1/jobs/<job_id>/logs?follow=1", None),
    ("GET", "/v1/jobs/<job_id>/logs?step=0", None),
    ("GET", "/v1/jobs/<job_id>/logs/stream", None),
    ("GET", "/v1/jobs/<job_id>/steps", None),
    ("GET", "/v1/jobs/<job_id>/annotations", None),
    ("POST", "/v1/jobs/<job_id>/rerun", {"reason": "mine"}),
    ("GET", "/v1/batches/<batch_id>", None),
    ("POST", "/v1/batches/<batch_id>/approve", {"reason": "mine"}),
    ("POST", "/v1/batches/<batch_id>/cancel", {"reason": "mine"}),
    ("POST", "/v1/batches/<batch_id>/rerun", {"reason": "mine"}),
    ("POST", "/v1/batches/<batch_id>/pin", {"reason": "mine"}),
    ("POST", "/v1/batches/<batch_id>/unpin", {"reason": "mine"}),
    ("GET", "/v1/artifacts/<artifact_id>", None),
    ("DELETE", "/v1/secrets/<name>?org_slug=<org_slug>", None),
    ("DELETE", "/v1/variables/<name>?org_slug=<org_slug>", None),
    ("GET", "/v1/webhooks/<webhook_id>", None),
    ("PATCH", "/v1/webhooks/<webhook_id>", {"description": "mine"}),
    ("POST", "/v1/webhooks/<webhook_id>/rotate-secret", {}),
    ("POST", "/v1/webhooks/<webhook_id>/test", {}),
    ("POST", "/v1/webhooks/<webhook_id>/redeliver", {}),
    ("GET", "/v1/webhooks/<webhook_id>/deliveries", None),
    ("GET", "/v1/webhooks/<webhook_id>/deliveries/<delivery_id>", None),
    ("POST", "/v1/webhooks/<webhook_id>/deliveries/<delivery_id>/redeliver", {}),
    ("DELETE", "/v1/webhooks/<webhook_id>", None),
    ("GET", "/v1/notification-rules/<rule_id>", None),
    ("PATCH", "/v1/notification-rules/<rule_id>", {"is_enabled": False}),
    ("DELETE", "/v1/notification-rules/<rule_id>", None),
    ("GET", "/v1/schedules/<schedule_id>", None),
    ("PATCH", "/v1/schedules/<schedule_id>", {"cron": "0 0 * * *"}),
    ("POST", "/v1/schedules/<schedule_id>/pause", {}),
    ("POST", "/v1/schedules/<schedule_id>/resume", {}),
    ("POST", "/v1/schedules/<schedule_id>/run", {}),
    ("GET", "/v1/schedules/<schedule_id>/ticks", None),
    ("DELETE", "/v1/schedules/<schedule_id>", None),
    ("GET", "/v1/bulk-actions/<bulk_action_id>", None),
    ("GET", "/v1/bulk-actions/<bulk_action_id>/refusals", None),
    ("POST", "/v1/bulk-actions/<bulk_action_id>/abort", {}),
    ("GET", "/v1/ingest/runs/<run_id>", None),
    ("DELETE", "/v1/payload-schemas/<job_type>?org_slug=<org_slug>", None),
    ("GET", "/v1/packs/<pack_id>/versions/<version>", None),
    ("GET", "/api/jobs/<job_id>", None),
    ("GET", "/api/jobs/<job_id>/graph", None),
    ("GET", "/api/jobs/<job_id>/attestation", None),
    ("POST", "/api/jobs/<job_id>/cancel", {}),
    ("POST", "/api/jobs/<job_id>/replay", {"reason": "mine"}),
    ("GET", "/api/jobs/<job_id>/manifest", None),
    ("GET", "/runs/<run_id>/logs", None),
    ("GET", "/runs/<run_id>/artifacts", None),
    ("GET", "/v1/limits/<limit_id>", None),
    ("PATCH", "/v1/limits/<limit_id>", {"max_active": 1, "reason": "mine"}),
    ("DELETE", "/v1/limits/<limit_id>?reason=mine", None),
    ("GET", "/v1/incidents/<incident_id>", None),
    ("POST", "/v1/incidents/<incident_id>/acknowledge", {"reason": "mine"}),
    ("POST", "/v1/incidents/<incident_id>/resolve", {"reason": "mine"}),
    ("GET", "/api/quotas/<quota_id>", None),
    ("PATCH", "/api/quotas/<quota_id>", {"maxActive": 1}),
]
# Of an organization that the body names: another's is what one is that is not there. The fields are those of both.
_SOURCE = {"source": {"kind": "organization", "org_slug": "<org_slug>"}, "reason": "mine"}
NAMING_ONE = [
    ("POST", "/v1/limits", {"kind": "rate", "org_slug": "<org_slug>", "per_hour": 1, "reason": "mine"}),
    ("POST", "/v1/limits/pause", _SOURCE),
    ("POST", "/v1/limits/resume", _SOURCE),
    ("POST", "/v1/limits/throttle", _SOURCE | {"per_hour": 1}),
    ("PUT", "/v1/secrets/<name>", {"org_slug": "<org_slug>", "value": "mine"}),
    ("PUT", "/v1/variables/<name>", {"org_slug": "<org_slug>", "value": "mine"}),
    ("PUT", "/v1/payload-schemas/<job_type>", {"org_slug": "<org_slug>", "document": {}}),
    ("PUT", "/v1/packs/<pack_id>/versions/<version>", {"org_slug": "<org_slug>", "plan": SIMPLE_PLAN}),
    (
        "POST",
        "/v1/batches",
        {"org_slug": "<org_slug>", "repository": "alice/demo", "workflow_file": WORKFLOW_FILE, "ref": "main"},
    ),
    ("POST", "/v1/webhooks", {"org_slug": "<org_slug>", "url": WEBHOOK_URL}),
    (
        "POST",
        "/v1/notification-rules",
        {"org_slug": "<org_slug>", "name": "mine", "event_types": ["job.failed"], "webhook_id": NO_WEBHOOK},
    ),
    (
        "POST",
        "/v1/schedules",
        {"org_slug": "<org_slug>", "name": "mine too", "cron": "0 0 * * *", "job": SCHEDULED_JOB},
    ),
    (
        "POST",
        "/v1/bulk-actions",
        {"org_slug": "<org_slug>", "action": "cancel", "filter": {"project_slug": "web"}, "reason": "mine"},
    ),
    ("POST", "/v1/breakers/reset", {"org_slug": "<org_slug>", "job_type": "runtime", "reason": "mine"}),
    ("POST", "/v1/incident-modes", {"org_slug": "<org_slug>", "until": "2099-01-01T00:00:00Z", "reason": "mine"}),
    ("POST", "/v1/incident-modes/end", {"org_slug": "<org_slug>", "reason": "mine"}),
    ("POST", "/api/limits/pause", {"sourceId": "<org_slug>:*"}),
    ("POST", "/api/limits/resume", {"sourceId": "<org_slug>:*"}),
    ("POST", "/api/limits/throttle", {"sourceId": "<org_slug>:*", "maxPerHour": 1}),
]
# For operators alone: for a tenant's token no pool is there.
OF_OPERATORS = [
    ("PATCH", "/v1/pools/<pool>", {"policy": "fair", "reason": "mine"}),
    ("POST", "/v1/pools/<pool>/pause", {"reason": "mine"}),
    ("POST", "/v1/pools/<pool>/resume", {"reason": "mine"}),
    ("POST", "/v1/pools/<pool>/throttle", {"per_hour": 1, "reason": "mine"}),
]
# The same for document 001's API, whose refusals have another form: tests/orchestrator/protocols/delta/runs/test_runs.py.
OF_RUNS = [
    ("POST", "/api/v1/runs", {}),
    ("GET", "/api/v1/runs/<batch_id>", None),
    ("POST", "/api/v1/runs/<batch_id>/cancel", {}),
    ("POST", "/api/v1/runs/<batch_id>/rerun", {}),
]
LISTS = ["/v1/runtime/jobs", "/v1/jobs"]
LISTS_OF_CONTROL = ["/v1/limits", "/v1/breakers", "/v1/incidents", "/v1/payload-schemas", "/v1/webhooks"]
LISTS_OF_CONTROL += ["/v1/notification-rules", "/v1/packs"]
LISTS_OF_CONTROL += ["/v1/notification-rules", "/v1/schedules", "/v1/bulk-actions"]
# Of document 004: tests/orchestrator/protocols/stella, which has each of them with another's tenant or worker.
OF_DOCUMENT_004 = [
    ("GET", "/api/jobs"),
    ("POST", "/api/jobs"),
    ("GET", "/api/jobs/<job_id>/replay"),
    ("GET", "/runs/<run_id>/artifacts/<name>"),
    ("POST", "/runs/<run_id>/heartbeat"),
    # Bytes, which no table here sends: tests/orchestrator/protocols/native/artifacts/test_pieces.py.
    ("PUT", f"{LEASE}/artifacts/<artifact_id>/pieces/<offset>"),
]
LISTS_OF_WORKFLOWS = ["/v1/batches", "/v1/checks", "/v1/artifacts", "/v1/secrets", "/v1/variables"]
# An organization's own row: tests/orchestrator/protocols/native/limits/test_submit_quotas.py.
OF_QUOTAS = ["/v1/quotas"]
# tests/orchestrator/protocols/stella, tests/orchestrator/protocols/native/incidents
OF_GOVERNANCE = ["/api/quotas", "/api/sources", "/api/dashboard/metrics", "/v1/incident-modes"]
OF_USAGE = ["/v1/usage"]  # tests/orchestrator/protocols/native/test_usage.py
OF_GRAPHQL = ["/api/graphql"]  # tests/orchestrator/protocols/stella/graph/test_queries.py, test_subscriptions.py
# Of document 004: tests/orchestrator/protocols/stella/events/test_pages.py.
OF_EVENTS = ["/api/events", "/api/jobs/<job_id>/events", "/api/dashboard/events"]
SUBMITS = {"/v1/runtime/jobs": SUBMIT_BODY, "/v1/jobs": SUBMIT_ANY_BODY}
# For people with a session.
PAGES = ["/runs/<run_id>/", "/workflow-runs/<run_id>/"]
# tests/orchestrator/ingest/test_runs_page.py, tests/orchestrator/workflows/test_pages.py
LIST_PAGES = ["/runs/", "/workflow-runs/"]
# Of pools, which have no owner: tests/orchestrator/protocols/native/pools/test_pools.py.
OF_POOLS = ["/v1/pools", "/v1/pools/<pool>/load"]
# For workers: another's lease is answered as one that does not exist.
OF_A_LEASE = [
    ("POST", f"{LEASE}/acknowledge", {}),
    ("POST", f"{LEASE}/heartbeat", {"phase": "executing"}),
    ("POST", f"{LEASE}/report", {"phase": "executing"}),
    ("POST", f"{LEASE}/logs", {"seq": 0, "chunk": ""}),
    ("POST", f"{LEASE}/output", {"output": "eyJyZXN1bHRzIjpbXX0="}),
    ("POST", f"{LEASE}/complete", DONE),
    ("POST", f"{LEASE}/fail", FAILED),
    ("POST", f"{LEASE}/acknowledge-cancel", {}),
    ("POST", f"{LEASE}/release", {}),
    ("POST", f"{LEASE}/artifacts", {"name": "a", "size_bytes": 1}),
    ("POST", f"{LEASE}/artifacts/<artifact_id>/close", {"sha256": "0" * 64}),
    ("POST", f"{LEASE}/steps/start", {}),
    ("POST", f"{LEASE}/steps/<index>/begin", {"has_failed": False}),
    ("POST", f"{LEASE}/steps/<index>/end", {"conclusion": "success"}),
    ("POST", f"{LEASE}/caches/restore", CACHE),
    ("POST", f"{LEASE}/caches/save", CACHE | {"size_bytes": 1}),
]
# The same for many leases, which the body names.
OF_LEASES = {"acknowledge": {}, "heartbeat": {"phase": "executing"}, "complete": DONE, "fail": FAILED}
MANY = [("POST", f"/v1/runtime/leases/{action}", {"leases": []}) for action in OF_LEASES]
BULK = {f"{path}/bulk": body for path, body in SUBMITS.items()}
# For workers, and clients get nowhere.
UNREADY = ("POST", "/v1/runtime/workers/unready", {"reason": "disk_low", "message": "full"})
OF_WORKERS = [("POST", "/v1/runtime/leases", {}), ("POST", "/v1/ingest/run", {}), UNREADY, *MANY]

# For document 001's runners, who name the lease in the message: tests/orchestrator/protocols/delta/runners/test_permissions.py.
OF_RUNNERS = [f"/api/v1/internal/{action}" for action in ("lease", "ack-lease", "heartbeat", "complete", "cancel-ack")]
# For document 003's runners, whose token names the job: tests/orchestrator/protocols/shithub/test_verification.py and
# test_heartbeat.py; and for its clients: test_cancel.py and test_rerun.py there.
_OF_A_JOB = ("status", "steps/<step_id>/status", "logs", "artifacts/upload", "cancel-check", "token", "cancel")
OF_WORKFLOW_RUNNERS = [f"/api/v1/jobs/<job_id>/{action}" for action in _OF_A_JOB]
OF_WORKFLOW_RUNNERS += ["/api/v1/runners/heartbeat", "/api/v1/runs/<run_id>/rerun"]
# The address or the token of the request is signed: tests/orchestrator/protocols/native/artifacts, tests/orchestrator/identity.
SIGNED_ADDRESSES = [("GET", "/v1/objects/<address>"), ("PUT", "/v1/objects/<address>"), ("GET", "/v1/identity/token")]
# For GitHub, which signs: tests/orchestrator/protocols/github.
SIGNED = [("POST", "/api/v1/webhooks/github", None)]

NOT_THERE = {
    "job_id": "rtj_01kkygkagq0jk17bx6y1w8c3df",
    "run_id": "run_20260317143329_bd39b25f6f31",
    "lease_id": "rtl_01kkygn4z3fkef0g4tgm6g3b1j",
    "limit_id": "999999999",
    "incident_id": "inc_01kkygkagq0jk17bx6y1w8c3df",
    "quota_id": "nobody:*",
    "batch_id": "rtb_01kkygkagq0jk17bx6y1w8c3df",
    "artifact_id": "art_01kkygkagq0jk17bx6y1w8c3df",
    "webhook_id": NO_WEBHOOK,
    "delivery_id": "dlv_01kkygkagq0jk17bx6y1w8c3df",
    "rule_id": "nrl_01kkygkagq0jk17bx6y1w8c3df",
    "schedule_id": "sch_01kkygkagq0jk17bx6y1w8c3df",
    "bulk_action_id": "blk_01kkygkagq0jk17bx6y1w8c3df",
    "name": "TOKEN",
    "org_slug": "nobody",
    "pool": "nowhere",
    "job_type": "scan",
    "pack_id": "nothing",
    "version": "0",
}
# Addresses at which a job has the form of document 004: a UUID.
BY_UUID = re.compile(r"/api/jobs/<|/runs/<run_id>/(logs|artifacts)")


def walk(patterns, prefix=""):
    """Every address with its view."""
    for pattern in patterns:
        route = prefix + str(pattern.pattern)
        if hasattr(pattern, "url_patterns"):
            yield from walk(pattern.url_patterns, route)
        else:
            yield _template(route), pattern.callback


ROUTES = list(walk(get_resolver().url_patterns))


def methods_of(view) -> set[str]:
    kind = getattr(view, "cls", None)
    if actions := getattr(view, "actions", None):
        return {method.upper() for method in actions}
    return set(kind().allowed_methods) - {"OPTIONS"} if kind else {"GET"}


def test_no_address_is_forgotten():
    named = [*OF_ONE, *OF_RUNS, *OF_A_LEASE, *OF_WORKERS, *SIGNED, *NAMING_ONE, *OF_OPERATORS]
    calls = {(method, path.partition("?")[0]) for method, path, _ in named}
    calls |= (
        {("GET", path) for path in [*LISTS, *LISTS_OF_CONTROL, *LISTS_OF_WORKFLOWS]}
        | {("POST", path) for path in [*OF_RUNNERS, *OF_WORKFLOW_RUNNERS]}
        | set(SIGNED_ADDRESSES)
        | set(OF_DOCUMENT_004)
        | {("POST", path) for path in [*SUBMITS, *BULK, *OF_GRAPHQL]}
        | {
            ("GET", path)
            for path in [*PAGES, *LIST_PAGES, *OF_POOLS, *OF_QUOTAS, *OF_USAGE, *OF_GOVERNANCE, *OF_EVENTS]
        }
    )
    there = {
        (method, path)
        for path, view in ROUTES
        # Those of the Bencher API: tests/orchestrator/protocols/bencher/test_authentication.py, of the registry of
        # images: tests/orchestrator/protocols/oci_registry/test_access.py
        if path not in OF_NOBODY and not path.startswith(("/admin/", "/v0/", "/v2/"))
        for method in methods_of(view) - {"HEAD"}
    }
    # A claim's route, which waits, is before the plain one of the same address.
    there -= {("GET", "/v1/runtime/leases"), ("GET", "/api/v1/internal/lease")}
    assert there == calls


@pytest.fixture(scope="module")
def tenants_of_module(django_db_setup, django_db_blocker):
    """The rows of `tenants`, which are the same for hundreds of tests."""
    with module_transaction(django_db_blocker):
        with django_db_blocker.unblock():
            found = make_tenants()
        yield found


@pytest.fixture
def tenants(tenants_of_module, db):
    """Two organizations alike, as they were made: a test may change its copy and the rows."""
    return copy.deepcopy(tenants_of_module)


def make_tenants():
    """Two organizations alike; the first has a job with a run, which a worker holds."""
    mine, theirs = OrganizationFactory(slug="sandtrace"), OrganizationFactory(slug="intruder")
    project = ProjectFactory(organization=mine)
    ProjectFactory(organization=theirs)
    holder = WorkerFactory()
    job = submitted(project)
    lease = claimed(holder).lease
    Run.objects.create(
        run_id="run_a", job_id=job.job_ulid, org_slug=mine.slug, project_slug="web", worker_id=holder.worker_id,
        payload={}, payload_sha256="0" * 64,
    )  # fmt: skip
    limit = limited(mine.slug, max_active=5, cause=Cause(ALICE, "mine"))
    limited(
        LimitTarget(LimitScope.PROJECT, mine.slug, "web"),
        kind=LimitKind.PAUSE,
        max_active=0,
        cause=Cause(ALICE, "mine"),
    )
    Breaker.objects.create(org_slug=mine.slug, job_type="runtime", state="open", limit_id=limit.pk)
    incident = Incident.objects.create(
        kind="breaker", org_slug=mine.slug, job_type="runtime", summary="mine", opened_at=job.created_at
    )
    JobStep.objects.create(job=job, index=0, run="true")
    repository = make_repository(project)
    for change in (set_secret, set_variable):
        change(organization=mine, repository=None, name="TOKEN", value="mine-alone", cause=Cause(ALICE))
    webhook = make_webhook(mine)
    (delivery,) = make_deliveries(webhook, status="dead", due_at=None, finished_at=job.created_at)
    rule = NotificationRule.objects.create(
        organization=mine, name="mine", event_types=["job.failed"], webhook=webhook, updated_by="client:alice"
    )
    ids = {"job_id": job.job_ulid, "run_id": "run_a", "lease_id": lease.lease_ulid, "limit_id": str(limit.pk)}
    ids["index"] = "0"
    ids |= {"org_slug": mine.slug, "pool": job.pool, "name": "TOKEN", "job_type": "scan"}
    payload_schemas.set_payload_schema(organization=mine, job_type="scan", document={}, cause=Cause(ALICE))
    ids |= {"pack_id": "simple", "version": register(mine, SIMPLE_PLAN, "simple").version}
    ids |= {"artifact_id": NOT_THERE["artifact_id"]}
    ids |= {"incident_id": incident.incident_ulid, "quota_id": f"{mine.slug}:*"}
    ids |= {"webhook_id": webhook.webhook_ulid, "delivery_id": delivery.delivery_ulid, "rule_id": rule.rule_ulid}
    schedule, action = make_schedule(mine, name="mine"), start_bulk_action(mine)
    ids |= {"schedule_id": schedule.schedule_ulid, "bulk_action_id": action.bulk_action_ulid}
    return SimpleNamespace(mine=mine, theirs=theirs, holder=holder, job=job, ids=ids, repository=repository)


@pytest.fixture
def workflows(tenants):
    """The same, with a workflow run of the first organization that has an artifact."""
    run, job = queued_workflow_job(tenants.repository)
    artifact = StoredArtifact.objects.create(
        job=job, batch=run.batch, organization=tenants.mine, project=tenants.repository.project, name="report.xml", byte_count=1, created_at=job.created_at,
        object_key="artifacts/1/report", upload_until=job.created_at, completed_at=job.created_at,
    )  # fmt: skip
    tenants.ids |= {"batch_id": run.batch.batch_ulid, "artifact_id": artifact.artifact_ulid}
    tenants.workflow_run = str(run.pk)
    return tenants


def filled(path, ids):
    if BY_UUID.match(path):
        ids = ids | dict.fromkeys(("job_id", "run_id"), str(uuid_of(ids["job_id"])))
    return re.sub("<([a-z_]+)>", lambda found: ids[found[1]], path)


def refusal(response) -> dict:
    """The whole of a refusal but its request's id: status, headers, body."""
    headers = {
        name: value for name, value in response.headers.items() if name not in {"X-Request-Id", "Content-Length"}
    }
    body = (
        json.dumps(problem_of(response) | {"request_id": ""})
        if "json" in response["Content-Type"]
        else response.content
    )
    return {"status": response.status_code, "headers": headers, "body": body}


@pytest.mark.parametrize(("method", "path", "body"), OF_ONE, ids=[f"{m} {p}" for m, p, _ in OF_ONE])
def test_anothers_thing_is_not_there(workflows, method, path, body):
    tenants = workflows
    intruder = Caller(api_token(tenants.theirs))
    with nothing_lost():
        found = refusal(intruder.call(method, filled(path, tenants.ids), body))
        missing = refusal(intruder.call(method, filled(path, NOT_THERE), body))
    assert found == missing
    assert found["status"] == 404
    owner = Caller(api_token(tenants.mine))
    if "follow" not in path:
        assert owner.call(method, filled(path, tenants.ids), body).status_code != 404


@pytest.mark.parametrize(("method", "path", "body"), NAMING_ONE, ids=[p for _, p, _ in NAMING_ONE])
def test_what_a_body_names_is_ones_own_or_not_there(tenants, method, path, body):
    def naming(ids):
        return json.loads(filled(json.dumps(body), ids))

    intruder = Caller(api_token(tenants.theirs))
    with nothing_lost():
        found = refusal(intruder.call(method, filled(path, tenants.ids), naming(tenants.ids)))
        missing = refusal(intruder.call(method, filled(path, NOT_THERE), naming(NOT_THERE)))
    assert found == missing
    assert found["status"] == 404


@pytest.mark.parametrize(("method", "path", "body"), OF_OPERATORS, ids=[p for _, p, _ in OF_OPERATORS])
def test_a_pool_is_not_there_for_a_tenant(tenants, method, path, body):
    for organization in (tenants.mine, tenants.theirs):
        caller = Caller(api_token(organization))
        with nothing_lost():
            found = refusal(caller.call(method, filled(path, tenants.ids), body))
            missing = refusal(caller.call(method, filled(path, NOT_THERE), body))
        assert found == missing
        assert found["status"] == 404


@pytest.mark.parametrize("path", LISTS_OF_CONTROL)
def test_a_list_of_control_shows_only_ones_own(tenants, path):
    intruder, owner = Caller(api_token(tenants.theirs)), Caller(api_token(tenants.mine))
    for query in ("", f"?org_slug={tenants.mine.slug}", "?limit=200"):
        assert intruder.get(path + query).json()["results"] == []
        assert {row["org_slug"] for row in owner.get(path + query).json()["results"]} == {tenants.mine.slug}


@pytest.mark.parametrize("path", LISTS_OF_WORKFLOWS)
def test_a_list_of_workflows_shows_only_ones_own(workflows, path):
    intruder, owner = Caller(api_token(workflows.theirs)), Caller(api_token(workflows.mine))
    assert len(owner.get(path).json()["results"]) == 1
    for query in ("", "?limit=200", "?repository=alice/demo", f"?job_id={workflows.job.job_ulid}"):
        answer = intruder.get(path + query)
        assert answer.json().get("results", []) == [], (query, answer.status_code)


@pytest.mark.parametrize("path", PAGES)
def test_anothers_page_is_not_there(workflows, path, django_user_model):
    tenants, not_there = workflows, NOT_THERE
    if "workflow" in path:
        tenants.ids["run_id"], not_there = tenants.workflow_run, NOT_THERE | {"run_id": "999999999"}
    member = django_user_model.objects.create_user("ivan")
    Membership.objects.create(user=member, organization=tenants.theirs)
    browser = Client(raise_request_exception=False)
    assert browser.get(filled(path, tenants.ids)).status_code == 302, "to the login"
    browser.force_login(member)
    found, missing = browser.get(filled(path, tenants.ids)), browser.get(filled(path, not_there))
    assert (found.status_code, missing.status_code) == (404, 404)
    assert without_ids(found) == without_ids(missing)
    assert Caller(api_token(tenants.theirs)).get(filled(path, tenants.ids)).status_code == 302, "no token opens it"


@pytest.mark.parametrize("path", LISTS)
def test_a_list_shows_only_ones_own_whatever_is_asked_for(tenants, path):
    own = submitted(tenants.theirs.projects.get())
    intruder, owner = Caller(api_token(tenants.theirs)), Caller(api_token(tenants.mine))
    assert [row["job_id"] for row in intruder.get(path).json()["results"]] == [own.job_ulid]
    for query in (f"org_slug={tenants.mine.slug}", "status=running"):
        assert intruder.get(f"{path}?{query}").json()["results"] == []
        assert len(owner.get(f"{path}?{query}").json()["results"]) == 1
    for query in ("project_slug=web", f"git_commit={tenants.job.git_commit}", "trigger_kind=manual", "limit=200"):
        assert [row["job_id"] for row in intruder.get(f"{path}?{query}").json()["results"]] == [own.job_ulid]


@pytest.mark.parametrize("path", LISTS)
def test_a_place_in_anothers_list_opens_only_ones_own(tenants, path):
    own = submitted(tenants.theirs.projects.get())
    for _ in range(2):
        submitted(tenants.mine.projects.get())
    cursor = Caller(api_token(tenants.mine)).get(f"{path}?limit=1").json()["next"].partition("?")[2]
    shown = Caller(api_token(tenants.theirs)).get(f"{path}?{cursor}").json()["results"]
    assert {row["job_id"] for row in shown} <= {own.job_ulid}


@pytest.mark.parametrize("path", SUBMITS)
def test_nobody_submits_for_another(tenants, path):
    intruder = Caller(api_token(tenants.theirs))
    with nothing_lost():
        found = refusal(intruder.post(path, SUBMITS[path]))
        missing = refusal(intruder.post(path, SUBMITS[path] | {"org_slug": "nobody"}))
    assert found == missing
    assert found["status"] == 404


@pytest.mark.parametrize("path", BULK)
def test_nobody_submits_many_for_another(tenants, path):
    intruder = Caller(api_token(tenants.theirs))
    wanted = [BULK[path], BULK[path] | {"org_slug": "nobody"}]
    with nothing_lost():
        results = intruder.post(path, {"jobs": wanted}).json()["results"]
    assert [one["status"] for one in results] == [404, 404]
    assert results[0] == results[1]


@pytest.mark.parametrize("path", SUBMITS)
def test_an_idempotency_key_belongs_to_one_token(tenants, path):
    bodies = {name: SUBMITS[path] | {"org_slug": getattr(tenants, name).slug} for name in ("mine", "theirs")}
    made = [
        Caller(api_token(getattr(tenants, name))).post(path, body, **{"Idempotency-Key": "k"})
        for name, body in bodies.items()
    ]
    assert [answer.status_code for answer in made] == [201, 201]
    assert [answer.json()["org_slug"] for answer in made] == ["sandtrace", "intruder"]
    assert not any("Idempotency-Replayed" in answer for answer in made)


@pytest.mark.parametrize(("method", "path", "body"), OF_A_LEASE, ids=[p for _, p, _ in OF_A_LEASE])
def test_anothers_lease_is_an_unknown_one(tenants, method, path, body):
    stranger = Caller(WorkerFactory().token)
    with nothing_lost():
        found = refusal(stranger.call(method, filled(path, tenants.ids), body))
        missing = [
            refusal(stranger.call(method, filled(path, tenants.ids | {"lease_id": name}), body)) for name in UNKNOWN
        ]
    assert found["status"] == 409
    assert json.loads(found["body"])["reason"] == "unknown_lease"
    assert missing == [found] * len(UNKNOWN)


@pytest.mark.parametrize("action", OF_LEASES)
def test_anothers_lease_is_an_unknown_one_among_many(tenants, action):
    stranger = Caller(WorkerFactory().token)
    names = [filled("<lease_id>", tenants.ids), NOT_THERE["lease_id"], "x"]
    body = {"leases": [{"lease_id": name} | OF_LEASES[action] for name in names]}
    with nothing_lost():
        results = stranger.post(f"/v1/runtime/leases/{action}", body).json()["results"]
    assert [one.pop("lease_id") for one in results] == names
    assert results == [results[0]] * 3
    assert (results[0]["status"], results[0]["error"]["reason"]) == (409, "unknown_lease")


UNKNOWN = [
    NOT_THERE["lease_id"],
    "x",
    "%00",
    "rtl_%00",
    "1",
    "RTL_01KKYGN4Z3FKEF0G4TGM6G3B1J",
    "%F0%9F%92%A9",
    "rtl_" + "z" * 300,
]


@pytest.mark.parametrize(
    ("method", "path", "body"), [*OF_A_LEASE, *OF_WORKERS], ids=[p for _, p, _ in [*OF_A_LEASE, *OF_WORKERS]]
)
def test_a_client_is_no_worker_not_even_of_its_own_job(tenants, method, path, body):
    owner = Caller(api_token(tenants.mine))
    with nothing_lost():
        response = owner.call(method, filled(path, tenants.ids), body)
    assert (response.status_code, problem_of(response)["code"]) == (403, "wrong_principal")


@pytest.mark.parametrize("path", sorted({path for path, _ in ROUTES if path.startswith("/admin/")}))
def test_the_operators_pages_open_to_no_token_and_no_member(tenants, path, django_user_model):
    path = re.sub("<[^>]*>", "1", path)
    member = django_user_model.objects.create_user("ivan")
    browser = Client(raise_request_exception=False)
    browser.force_login(member)
    if path in {"/admin/login/", "/admin/logout/", "/admin/jsi18n/"}:
        return
    for answer in (Caller(api_token(tenants.theirs)).get(path), browser.get(path)):
        assert answer.status_code in {302, 404}, path
        assert answer.status_code == 404 or answer["Location"].startswith("/admin/login/")
