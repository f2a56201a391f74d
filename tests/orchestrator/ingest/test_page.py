"""The page of a run: findings first, everything escaped, seen by those who may."""

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from orchestrator.ingest.formatting import format_bytes, format_seconds
from orchestrator.ingest.models import Run
from runtime_jobs.models import Job, Membership
from tests.api_client import without_ids
from tests.factories import OrganizationFactory
from tests.orchestrator.ingest.conftest import payload_for
from tests.orchestrator.ingest.test_upload import PATH, changed

pytestmark = pytest.mark.django_db


def browser(user: User | None) -> Client:
    client = Client(raise_request_exception=True)
    if user is not None:
        client.force_login(user)
    return client


@pytest.fixture
def staff() -> Client:
    return browser(User.objects.create_user("olga", is_staff=True))


@pytest.fixture
def run(wendy, payload) -> Run:
    assert wendy.post(PATH, payload).status_code == 201
    return Run.objects.get()


def page(client: Client, run: Run) -> str:
    answer = client.get(f"/runs/{run.run_id}/")
    assert answer.status_code == 200
    return answer.content.decode()


def test_findings_come_first_and_the_worst_of_them_first(staff, run):
    text = page(staff, run)
    places = [
        text.index(f'id="{name}"') for name in ("findings", "processes", "network", "files", "resources", "about")
    ]
    assert places == sorted(places)
    assert "findings</strong>" in text
    assert text.index("metadata_address") < text.index("credential_read") < text.index("lookup_outside")


def test_it_shows_what_happened(staff, run, job):
    text = page(staff, run)
    for shown in ("Exited with code 5", "evil.example.test", "203.0.113.7:443", "~/.ssh/id_rsa", "/etc/evil", "packages.example.test", "2.4 MiB",
                  "from a thread", "180 MiB", "of 2 GiB", run.run_id, job.job_ulid, job.git_commit):  # fmt: skip
        assert shown in text, shown


def test_findings_are_counted_and_one_has_a_singular(staff, wendy, payload, run):
    total = payload["suspicious_activity"]["total"]
    assert f"<strong>{total} findings</strong>" in page(staff, run)
    pills = re.findall(r'class="pill (?:critical|high|medium|low)">(\d+) ', page(staff, run))
    assert sum(map(int, pills)) == total
    Run.objects.update(payload=changed(payload, "suspicious_activity", value={
        "items": payload["suspicious_activity"]["items"][:1], "total": 1, "truncated": False,
    }))  # fmt: skip
    assert "<strong>1 finding</strong>" in page(staff, run)


def test_a_file_that_was_denied_is_not_shown_as_missing(staff, wendy, payload, run):
    file = {"path": "/a", "ops": ["read"], "count": 1, "failed": 1, "denied": 0, "sensitive": False}
    files = [file | {"path": "/gone"}, file | {"path": "/closed", "denied": 1}]
    Run.objects.update(payload=changed(payload, "files", value={"items": files, "total": 2, "truncated": False}))
    text = page(staff, run)
    assert text.index("Access denied") < text.index("/closed") < text.index("Not found (ENOENT)") < text.index("/gone")


def test_a_worker_that_records_less_than_the_job_asks_for_is_shown(staff, job, run, payload):
    for requested, recorded, is_shown in (
        *(("full", "none", True), ("full", "network", True), ("network", "none", True)),
        *(("full", "full", False), ("none", "full", False), ("none", "none", False)),
    ):
        Job.objects.update(trace=requested)
        Run.objects.update(payload=changed(payload, "trace", "level", value=recorded))
        text = page(staff, run)
        assert (f"asks for the trace “{requested}”. Its worker recorded “{recorded}”" in text) is is_shown


def test_what_was_not_recorded_is_not_shown_as_nothing(staff, run, payload):
    nothing = {"items": [], "total": 0, "truncated": False}
    payload["counts"] |= {"files_accessed": 0, "suspicious_activity": 0, "processes": 0}
    payload["suspicious_activity"] = payload["files"] = payload["processes"] = nothing
    expected = {
        "full": ("No findings", 0, None),
        "network": ("No findings", 1, "Access to files was not recorded"),
        "none": ("Not traced", 4, "The command was not traced"),
    }
    for level, (verdict, dashes, notice) in expected.items():
        Job.objects.update(trace=level)
        Run.objects.update(payload=changed(payload, "trace", "level", value=level))
        text = page(staff, run)
        assert f"<strong>{verdict}</strong>" in text
        assert text.count("<dd>\u2013</dd>") == dashes
        assert notice is None or notice in text
        assert (notice is None) == ('class="notice"' not in text)
    assert "worst-untraced" in text


def test_a_run_without_findings_says_so(staff, wendy, job, worker):
    assert wendy.post(PATH, payload_for(job, worker, name="git", exit_code=0, network=())).status_code == 201
    text = page(staff, Run.objects.get())
    assert "No findings" in text
    assert 'id="findings"' not in text


def test_nothing_from_a_run_is_markup(staff, wendy, payload):
    evil = "</code><script>alert(1)</script><img src=x onerror=alert(1)>\"' onmouseover='x"
    for path in (("files", "items", 0, "path"), ("processes", "items", 0, "command"), ("suspicious_activity", "items", 0, "detail"),
                 ("network_attempts", "items", 0, "addr"), ("metadata", "git_ref"), ("metadata", "sandbox", "tool_version")):  # fmt: skip
        payload = changed(payload, *path, value=evil)
    payload = changed(payload, "processes", "items", 1, "exec_paths", value=[evil])
    assert wendy.post(PATH, payload).status_code == 201
    text = page(staff, Run.objects.get())
    assert "<script" not in text
    assert "<img" not in text
    assert "onmouseover='x" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_it_needs_no_script_no_style_attribute_and_nothing_from_elsewhere(staff, run):
    text = page(staff, run)
    for absent in ("<script", " style=", "http://", "onclick", "<iframe"):
        assert absent not in text.replace('href="https://', ""), absent
    assert "default-src 'self'" in staff.get(f"/runs/{run.run_id}/")["Content-Security-Policy"]


def test_members_see_their_organization_s_runs(run, organization):
    member = User.objects.create_user("mia")
    Membership.objects.create(user=member, organization=organization)
    assert run.run_id in page(browser(member), run)


def test_it_leads_to_the_job(staff, run, job, organization):
    assert f'href="/admin/runtime_jobs/job/{job.pk}/change/"' in page(staff, run)
    member = User.objects.create_user("mia")
    Membership.objects.create(user=member, organization=organization)
    assert f'href="/v1/runtime/jobs/{job.job_ulid}"' in page(browser(member), run)


def test_for_everybody_else_it_does_not_exist(run):
    stranger = User.objects.create_user("sam")
    Membership.objects.create(user=stranger, organization=OrganizationFactory(slug="other"))
    client = browser(stranger)
    hidden, missing = client.get(f"/runs/{run.run_id}/"), client.get("/runs/run_20260101000000_000000000000/")
    assert (hidden.status_code, missing.status_code) == (404, 404)
    assert without_ids(hidden).replace(run.run_id, "") == without_ids(missing).replace(
        "run_20260101000000_000000000000", ""
    )


@pytest.mark.parametrize("run_id", ["run_%00", "run_%0a", "..%2f", "%F0%9F%92%A9"])
def test_what_cannot_be_a_run_s_id_is_not_there(staff, run_id):
    assert staff.get(f"/runs/{run_id}/").status_code == 404
    assert staff.get(f"/v1/ingest/runs/{run_id}").status_code == 404


def test_without_a_session_it_leads_to_the_login(run):
    answer = browser(None).get(f"/runs/{run.run_id}/")
    assert answer.status_code == 302
    assert answer["Location"].startswith("/login/")


def test_only_looking_is_possible(staff, run):
    assert staff.post(f"/runs/{run.run_id}/").status_code == 405


def test_the_least_that_a_run_may_have_is_shown_too(staff, wendy, payload):
    for name in ("resources", "trace"):
        del payload[name]
    for name in ("processes", "files", "network_attempts", "suspicious_activity"):
        payload[name] = {"items": [], "total": 0, "truncated": False}
    payload = changed(payload, "summary", value=None)
    assert wendy.post(PATH, payload).status_code == 201
    text = page(staff, Run.objects.get())
    assert "No processes traced." in text
    assert "No network activity traced." in text


@pytest.mark.parametrize(("kind", "words"), [("timeout", "Timed out after 5 min"), ("exec_failed", "could not be started"),
                                             ("trace_incomplete", "Trace incomplete"), ("signaled", "Killed by SIGKILL, out of memory")])  # fmt: skip
def test_every_outcome_has_a_sentence(staff, wendy, payload, kind, words):
    outcome = {
        "kind": kind,
        "exit_code": None,
        "signal": "SIGKILL",
        "cause": "out_of_memory" if kind == "signaled" else None,
    }
    assert wendy.post(PATH, changed(payload, "outcome", value=outcome)).status_code == 201
    assert words in page(staff, Run.objects.get())


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2 << 30, "2 GiB"), (1 << 60, "1048576 TiB")]
)
def test_format_bytes(count, words):
    assert format_bytes(count) == words


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.0034, "3 ms"), (2.5, "2.5 s"), (60, "1 min"), (250, "4 min 10 s"), (7500, "2 h 5 min")]
)
def test_format_seconds(seconds, words):
    assert format_seconds(seconds) == words
