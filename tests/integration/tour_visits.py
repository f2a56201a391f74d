"""Opens pages and GET operations of a running server, and keeps what was broken."""

from __future__ import annotations

import base64
import html
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import requests
from django.db.models import F
from django.test import Client
from django.urls import Resolver404, resolve

from leases.models import Limit
from orchestrator.bulk_actions.models import BulkAction
from orchestrator.incidents.models import Incident
from orchestrator.ingest.models import Run
from orchestrator.results.models import Benchmark, Branch, Measure, Metric, Report, Testbed
from orchestrator.schedules.models import Schedule
from orchestrator.webhooks.models import Delivery, NotificationRule, Webhook
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import Batch, Job, JobEvent, Project, WorkflowRun
from runtime_jobs.specs import PAYLOAD_TYPES
from tests.integration.tour_rows import Tour
from tests.openapi_document import openapi_document
from tests.orchestrator.admin.pages import address, all_pages

LINK = re.compile(r'(?:href|src|data-[a-z-]+)="(/[^"#]*)')
IS_LONG = "PROOF_TOUR" in os.environ
LINKS_OF_A_SHAPE = 2 if IS_LONG else 1  # of one view with the same parameters
ROWS_OF_A_VIEW = 4 if IS_LONG else 1  # of other models than those below
WHOLE = (Job, Batch, WorkflowRun)  # each row was made by another feature
PUBLIC = (
    *("/", "/login/", "/runs/", "/workflow-runs/", "/v1/docs", "/v1/schema"),
    *("/healthz", "/readyz", "/metrics", "/favicon.ico"),
)
FOR_SCRIPTS = ("/admin/autocomplete/", "/logout/", "/admin/logout/", "/static/")


@dataclass
class Visits:
    """Counts the addresses that were opened, and lists the broken ones."""

    url: str
    opened: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = ", ".join(f"{number} {kind}" for kind, number in sorted(self.opened.items()))
        return f"{counts}; broken: {len(self.broken)}"

    def get(self, kind: str, path: str, session: requests.Session, expected: set[int], **headers: str) -> Any:
        """Open one address, and return the answer."""
        with session.get(self.url + path, headers=headers, stream=True, timeout=60) as answer:
            is_stream = answer.headers.get("Content-Type", "").startswith("text/event-stream")
            if not is_stream:
                answer.content  # noqa: B018 - reads the body
            elif answer.status_code == 200:
                next(answer.iter_content(64), b"")
        self.opened[kind] += 1
        assert "/login/" not in answer.url or "/login/" in path, "the session is not accepted"
        if answer.status_code not in expected:
            text = "" if is_stream else re.sub(r"<[^>]+>|\s+", " ", answer.text)[:200]
            self.broken.append(f"{answer.status_code} {path} {text}")
        return answer


def open_pages(visits: Visits, person: Client) -> None:
    """Open every kind of page as a person, and up to `LINKS_OF_A_SHAPE` links of each shape on them."""
    session = requests.Session()
    session.cookies["sessionid"] = person.cookies["sessionid"].value
    waiting = list(dict.fromkeys([*_pages(), *PUBLIC]))
    seen, shapes = set(waiting), Counter[tuple[str, ...]](_shape_of(*split(path)) for path in waiting)
    while waiting:
        path = waiting.pop(0)
        answer = visits.get(
            "pages", path, session, {200, 403} if path.endswith("/add/") else {200, *_not_offered(path)}
        )
        if not answer.headers.get("Content-Type", "").startswith("text/html"):
            continue
        for found in map(html.unescape, LINK.findall(answer.text)):
            path, query = split(urljoin(answer.url, found))
            shape, link = _shape_of(path, query), f"{path}?{query}" if query else path
            if link in seen or not shape or shapes[shape] >= LINKS_OF_A_SHAPE:
                continue
            seen.add(link)
            shapes[shape] += 1
            waiting.append(link)


def _not_offered(path: str) -> set[int]:
    """The status of a button's page where the button is absent."""
    return {404} if re.fullmatch(r"/admin/leases/limit/\d+/remove/", path) else set()


def split(address: str) -> tuple[str, str]:
    """Return path and query."""
    parts = urlsplit(address)
    return parts.path, parts.query


def _shape_of(path: str, query: str) -> tuple[str, ...]:
    """The view and the names of the parameters; nothing of a link that is no page."""
    if path.startswith(FOR_SCRIPTS):
        return ()
    try:
        route = resolve(path).route
    except Resolver404:
        route = path  # a link to nothing: open it, and see
    return (route, *sorted({name.partition("=")[0] for name in query.split("&")}))


def _pages() -> Iterator[str]:
    rows = Counter[tuple[str, ...]]()
    whole = {address(model, "change", 0).replace("/0/", "/<path:object_id>/") for model in WHOLE}
    for page in all_pages():
        shape = _shape_of(page, "")
        rows[shape] += 1
        if rows[shape] <= ROWS_OF_A_VIEW or f"/{shape[0]}" in whole:
            yield page
    for event in JobEvent.objects.order_by("event_type", "job_type", "pk").distinct("event_type", "job_type"):
        yield address(JobEvent, "change", event.pk)
    for run in Run.objects.all():
        yield f"/runs/{run.run_id}/"
    for workflow_run in WorkflowRun.objects.all():
        yield f"/workflow-runs/{workflow_run.pk}/"


# --- operations -------------------------------------------------------------------------------------------------------


def open_operations(visits: Visits, tour: Tour) -> set[str]:
    """Open every GET operation of the OpenAPI file for each row that it may name. Returns the operations without one."""
    calls = Calls(tour)
    session = requests.Session()
    without = set()
    for path, operations in openapi_document()["paths"].items():
        if "get" not in operations:
            continue
        rows = list(calls.of(path))
        for call, authorization, expected in rows:
            headers = {"Authorization": authorization} if authorization else {}
            visits.get("calls", call, session, expected, **headers)
        visits.opened["operations"] += bool(rows)
        without |= set() if rows else {path}
    return without


# Parameters of paths: the model with the column of each, and the column of the organization.
NAMED: dict[str, tuple[Any, dict[str, str], str]] = {
    "run_id": (Run, {"run_id": "run_id"}, "org_slug"),
    "limit_id": (Limit, {"limit_id": "pk"}, "org_slug"),
    "incident_id": (Incident, {"incident_id": "incident_ulid"}, "org_slug"),
    "rule_id": (NotificationRule, {"rule_id": "rule_ulid"}, "organization__slug"),
    "schedule_id": (Schedule, {"schedule_id": "schedule_ulid"}, "organization__slug"),
    "bulk_action_id": (BulkAction, {"bulk_action_id": "bulk_action_ulid"}, "organization__slug"),
    "webhook_id": (Webhook, {"webhook_id": "webhook_ulid"}, "organization__slug"),
    "delivery_id": (
        Delivery, {"webhook_id": "webhook__webhook_ulid", "delivery_id": "delivery_ulid"}, "org_slug"
    ),
}  # fmt: skip
FIXED = {
    "pool": {"pool": "shared-linux"},
    "pack_id": {"pack_id": "scanner", "version": "1.0.0"},
    "quota_id": {"quota_id": "{}:*"},
}


class Calls:
    """The calls of an operation: one for each row, with a token that may read it."""

    def __init__(self, tour: Tour) -> None:
        self.tour = tour
        own = {tour.organization.slug: tour.token, "bencher": tour.bencher_token, "sandtrace": tour.workflow_token}
        self.tokens = {slug: f"Bearer {token}" for slug, token in own.items()}
        self.person = f"Bearer {tour.mia_key}"
        self.server_admin = f"Bearer {tour.admin_key}"

    def of(self, path: str) -> Iterator[tuple[str, str, set[int]]]:
        """Yield address, credentials and expected statuses."""
        if path == "/v0/auth/oci/token":
            yield path, f"Basic {base64.b64encode(f'mia:{self.tour.mia_key}'.encode()).decode()}", {200}
        elif path.startswith("/v0/"):
            for call in self._bencher(path):
                is_admins = path.startswith(("/v0/runners", "/v0/specs"))
                yield call, self.server_admin if is_admins else self.person, {200}
        elif path == "/v1/identity/token":
            url = urlsplit(self.tour.identity["ACTIONS_ID_TOKEN_REQUEST_URL"])
            yield f"{url.path}?{url.query}", f"Bearer {self.tour.identity['ACTIONS_ID_TOKEN_REQUEST_TOKEN']}", {200}
        elif "{" not in path:
            for authorization in self.tokens.values():
                yield path + {"/v1/checks": f"?head_sha={self.tour.head_sha}"}.get(path, ""), authorization, {200}
        else:
            expected = (
                {200, 409} if path.endswith(("/manifest", "/attestation")) else {200}
            )  # of a job that has not ended
            for values, org_slug in self._rows(path):
                yield path.format(**values), self.tokens[org_slug], expected

    def _rows(self, path: str) -> Iterable[tuple[dict[str, Any], str]]:
        """Return the parameters of the path for each row, with the organization."""
        if "{job_id}" in path:
            return (
                ({"job_id": uuid_of(job.job_ulid) if path.startswith("/api/") else job.job_ulid}, job.org_slug)
                for job in self._jobs(path)
            )
        if path.startswith("/runs/"):
            return self._runs(path)
        if path.startswith(("/v1/artifacts/", "/v1/objects/")):
            return self._artifacts(path)
        if "{batch_id}" in path:
            batches = Batch.objects.filter(workflow_run=None) if "/runs/" in path else Batch.objects.all()
            return (({"batch_id": batch.batch_ulid}, batch.org_slug) for batch in batches)
        name = path[path.index("{") + 1 : path.index("}")]
        if "{delivery_id}" in path:
            name = "delivery_id"
        own = self.tour.organization.slug
        if name in FIXED:
            return [({key: value.format(own) for key, value in FIXED[name].items()}, own)]
        model, columns, org_slug = NAMED[name]
        rows = model.objects.exclude(**{org_slug: ""}).values_list(org_slug, *columns.values())
        if model is Delivery:  # there are hundreds
            rows = rows.order_by("webhook", "event_type", "status").distinct("webhook", "event_type", "status")
        return ((dict(zip(columns, row[1:], strict=True)), row[0]) for row in rows)

    def _runs(self, path: str) -> Iterator[tuple[dict[str, Any], str]]:
        for job in self._jobs(path).filter(job_type__in=PAYLOAD_TYPES):
            names = job.stored_artifacts.values_list("name", flat=True) if "{name}" in path else [""]
            for name in names:
                yield {"run_id": uuid_of(job.job_ulid), "name": quote(name)}, job.org_slug

    def _artifacts(self, path: str) -> Iterator[tuple[dict[str, Any], str]]:
        for org_slug, authorization in self.tokens.items():
            token = authorization.partition(" ")[2]
            for listed in self.tour.call("GET", "/v1/artifacts", token=token)["results"]:
                values = {"artifact_id": listed["artifact_id"]}
                if "objects" in path:
                    shown = self.tour.call("GET", f"/v1/artifacts/{listed['artifact_id']}", token=token)
                    values = {"address": urlsplit(shown["download_url"]).path.rpartition("/")[2]}
                yield values, org_slug

    @staticmethod
    def _jobs(path: str) -> Any:
        """One job of each type, state and reason: a response depends on nothing else."""
        jobs = Job.objects.order_by("job_type", "state", "failure_reason", "pk")
        jobs = jobs.distinct("job_type", "state", "failure_reason")
        if "runtime" in path:
            return jobs.filter(job_type="runtime")
        if path.startswith("/v1/"):
            return jobs
        first = jobs.filter(root_job_ulid=F("job_ulid"))  # document 004 knows no attempts
        return first.filter(replay_of_job_ulid__isnull=False) if path.endswith("/replay") else first

    def _bencher(self, path: str) -> Iterator[str]:
        found: dict[str, list[Any]] = {
            "{job}": [uuid_of(job.job_ulid) for job in Job.objects.filter(job_type="oci")],
            "{report}": list(Report.objects.values_list("uuid", flat=True)),
            "{testbed}": list(Testbed.objects.values_list("uuid", flat=True)),
            "{branch}": list(Branch.objects.values_list("uuid", flat=True)),
            "{benchmark}": list(Benchmark.objects.values_list("uuid", flat=True)),
            "{measure}": list(Measure.objects.values_list("uuid", flat=True)),
            "{organization}": list(Project.objects.filter(slug="adapter").values_list("organization__slug", flat=True)),
            "{metric}": list(Metric.objects.values_list("uuid", flat=True)),
            "{runner}": ["rack-7"],
            "{spec}": ["two-cores"],
        }
        path = path.replace("{project}", "adapter")
        if path.endswith("/perf"):
            names = {"branches": Branch, "testbeds": Testbed, "benchmarks": Benchmark, "measures": Measure}
            query = "&".join(
                f"{name}={model.objects.values_list('uuid', flat=True)[0]}" for name, model in names.items()
            )
            yield f"{path}?{query}"
            return
        name = next((name for name in found if name in path), None)
        yield from (path.replace(name, str(value)) for value in found[name]) if name else [path]
