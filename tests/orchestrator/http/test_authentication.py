"""Methods, media types, hosts and headers: whatever knocks gets a problem document, never HTML, never a 500."""

import pytest
from django.test import Client

from runtime_jobs.models import Job
from tests.api_client import Caller, problem_of, refused
from tests.factories import SUBMIT_BODY, submitted

pytestmark = pytest.mark.django_db
JOBS = "/v1/runtime/jobs"
JOB = "/v1/runtime/jobs/rtj_01kkygkagq0jk17bx6y1w8c3df"
LEASE = "/v1/runtime/leases/rtl_01kkygn4z3fkef0g4tgm6g3b1j"
ALLOWED = {
    JOBS: {"GET", "HEAD", "POST"},
    JOB: {"GET", "HEAD"},
    f"{JOB}/cancel": {"POST"},
    f"{JOB}/events": {"GET", "HEAD"},
    "/v1/runtime/leases": {"POST"},
    f"{LEASE}/heartbeat": {"POST"},
    "/v1/limits": {"GET", "HEAD", "POST"},
    "/v1/limits/1": {"GET", "HEAD", "PATCH", "DELETE"},
    "/v1/limits/pause": {"POST"},
    "/v1/incidents": {"GET", "HEAD"},
    "/v1/schema": {"GET", "HEAD"},
    "/healthz": {"GET", "HEAD"},
    "/readyz": {"GET", "HEAD"},
    "/metrics": {"GET", "HEAD"},
}


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "X"])
@pytest.mark.parametrize("path", ALLOWED)
def test_a_wrong_method_is_405_and_says_which_are_right(alice, wendy, path, method):
    caller = wendy if "leases" in path else alice
    if method in ALLOWED[path]:
        return
    response = caller.call(method, path)
    assert problem_of(response)["code"] == "method_not_allowed"
    assert set(response["Allow"].split(", ")) == ALLOWED[path]


def test_a_method_is_what_the_request_line_says(alice):
    headers = {"X-HTTP-Method-Override": "POST", "X-Method-Override": "DELETE"}
    assert alice.call("GET", JOBS, **headers).status_code == 200
    refused(lambda: alice.call("GET", f"{JOB}/cancel", **headers), 405, "method_not_allowed")


@pytest.mark.parametrize("wanted", ["text/xml", "text/html", "application/problem+json; q=0.5, image/png"])
def test_what_cannot_be_rendered_is_406(alice, wanted):
    refused(lambda: alice.get(JOBS, Accept=wanted), 406, "not_acceptable")


@pytest.mark.parametrize("wanted", ["*/*", "application/json", "application/*", "text/html, */*;q=0.1"])
def test_json_is_what_there_is(alice, wanted):
    assert alice.get(JOBS, Accept=wanted)["Content-Type"] == "application/json"


@pytest.mark.parametrize("wanted", ["*/*", "text/plain", "text/*", "application/json"])
def test_logs_are_plain_text_for_whoever_asks(alice, organization, wanted):
    job = submitted(organization.projects.get())
    response = alice.get(f"{JOBS}/{job.job_ulid}/logs", Accept=wanted)
    assert (response.status_code, response["Content-Type"]) == (200, "text/plain; charset=utf-8")
    assert response["X-Content-Type-Options"] == "nosniff"


def test_a_refusal_is_a_problem_document_where_the_answer_would_be_text_or_yaml(alice):
    refused(lambda: alice.get(f"{JOB}/logs", Accept="text/plain"), 404, "not_found")
    refused(lambda: alice.get("/v1/schema", Accept="text/xml"), 406, "not_acceptable")
    refused(lambda: alice.post("/v1/schema"), 405, "method_not_allowed")


@pytest.mark.parametrize(
    "path",
    [
        "/v1", "/v1/", "/v1/runtime", "/v1/runtime/jobs/", "/v3/runtime/jobs", "/v1/runtime/jobs/x",
        "/v1/runtime/jobs/RTJ_01KKYGKAGQ0JK17BX6Y1W8C3DF", "/v1/runtime/jobs/rtj_01KKYGKAGQ0JK17BX6Y1W8C3DF",
        "/v1/runtime/jobs/rtj_01kkygkagq0jk17bx6y1w8c3d", "/v1/runtime/jobs/rtj_01kkygkagq0jk17bx6y1w8c3dff",
        "/v1/runtime/jobs/rtj_81kkygkagq0jk17bx6y1w8c3df", "/v1/runtime/jobs/rtj_01kkygkagq0jk17bx6y1w8c3di",
        "/v1/runtime/jobs/%00", "/v1/runtime/jobs/rtj_01kkygkagq0jk17bx6y1w8c3d%00", "/v1/runtime/jobs/..%2f..%2fadmin",
        "/v1/runtime/jobs/../../../etc/passwd", "/v1/runtime/jobs/%ff%fe", "/v1/runtime/jobs/%F0%9F%92%A9",
        "/v1/runtime/jobs/99999999999999999999999999", "/v1/runtime/jobs/1", f"{JOB}/nothing", f"{JOB}/cancel/",
        "/v1/runtime/leases/x", LEASE, f"{LEASE}/nothing", "/.env", "/index.php", "/%0d%0aX-A:b",
    ],
)  # fmt: skip
def test_what_is_not_there_is_404_in_one_shape(alice, path):
    document = refused(lambda: alice.get(path), 404, "not_found")
    missing = refused(lambda: alice.get(JOB), 404, "not_found")
    assert document | {"request_id": ""} == missing | {"request_id": ""}


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "a b", "testserver@evil", "[::1", "", "x:y"]
)
@pytest.mark.parametrize("path", [JOBS, "/nowhere"])
def test_an_unknown_host_is_refused(alice, host, path):
    with_host = {"Host": host}
    refused(lambda: alice.get(path, **with_host), 400, "invalid")


def test_what_a_stranger_says_of_proxies_counts_nothing(alice):
    lies = {
        "X-Forwarded-For": "10.9.8.7",
        "X-Forwarded-Host": "evil.example",
        "X-Forwarded-Proto": "https",
        "Forwarded": "for=10.9.8.7;host=evil.example",
        "X-Real-IP": "10.9.8.7",
    }
    created = alice.post(JOBS, SUBMIT_BODY, **lies)
    assert created.status_code == 201
    assert Job.objects.get(job_ulid=created.json()["job_id"]).source_address == "127.0.0.1"
    alice.post(JOBS, SUBMIT_BODY)
    assert alice.get(f"{JOBS}?limit=1", **lies).json()["next"].startswith("http://testserver/")


def test_behind_our_own_proxy_its_last_word_counts(alice, settings):
    settings.BEHIND_PROXY = True
    created = alice.post(JOBS, SUBMIT_BODY, **{"X-Forwarded-For": "10.9.8.7, 192.0.2.44"})
    assert Job.objects.get(job_ulid=created.json()["job_id"]).source_address == "192.0.2.44"


@pytest.mark.parametrize(("behind_proxy", "address"), [(True, "192.0.2.45"), (False, "127.0.0.1")])
def test_the_operator_names_the_header_of_the_proxy(alice, settings, behind_proxy, address):
    settings.BEHIND_PROXY, settings.CLIENT_ADDRESS_HEADER = behind_proxy, "Fly-Client-IP"
    created = alice.post(JOBS, SUBMIT_BODY, **{"X-Forwarded-For": "10.9.8.7", "Fly-Client-IP": "192.0.2.45"})
    assert Job.objects.get(job_ulid=created.json()["job_id"]).source_address == address


@pytest.mark.parametrize("sent", ["abc-1.2_3", "x" * 64])
def test_a_sane_request_id_is_echoed(alice, sent):
    assert alice.get(JOBS, **{"X-Request-Id": sent})["X-Request-Id"] == sent


@pytest.mark.parametrize(
    "sent", ["", "x" * 65, "a b", "é", "a\tb", "rto_api_" + "x" * 43, "rtl_01kkygn4z3fkef0g4tgm6g3b1j"]
)
def test_any_other_is_replaced(alice, sent):
    response = alice.get(JOBS, **{"X-Request-Id": sent})
    assert response["X-Request-Id"].startswith("req_")


TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    ("sent", "kept"),
    [(f"00-{TRACE}-b7ad6b7169203331-01", True), (f"00-{'0' * 32}-b7ad6b7169203331-01", False), ("x", False)],
)
def test_a_trace_becomes_the_correlation_id(alice, sent, kept):
    created = alice.post(JOBS, SUBMIT_BODY, traceparent=sent, **{"X-Request-Id": "mine"}).json()
    assert created["correlation_id"] == (TRACE if kept else "mine")


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Length": "²"}, {"Content-Length": "-1"}, {"Content-Length": "x"}, {"Content-Length": "1" * 5000},
        {"Cookie": 'sessionid="\\000\\000\\000\\000\\000\\000\\000\\000"'}, {"Cookie": "sessionid=" + "x" * 5000},
        {"Cookie": "=;;=;a=b=c"}, {"Accept": ";;;"}, {"Accept": "é"}, {"Content-Type": ";"}, {"Authorization": "\xff"},
        {"Origin": "null"}, {"Worker-Session": "\x00"}, {"Idempotency-Key": "\x00"}, {"traceparent": "\x00" * 55},
    ],
    ids=str,
)  # fmt: skip
def test_no_header_makes_it_crash(alice, headers):
    response = Client(raise_request_exception=False).generic("POST", JOBS, b"{}", headers=alice.headers | headers)
    assert 400 <= response.status_code < 500
    problem_of(response)


def test_a_post_of_another_sites_page_is_refused_in_our_words():
    strict = Client(enforce_csrf_checks=True)
    for path in ("/healthz", "/readyz", "/metrics"):
        assert problem_of(strict.post(path))["code"] == "method_not_allowed"


def test_a_token_in_plain_text_is_refused_and_not_sent_on(settings):
    """A redirect would make a GET of the POST, and its client would send the token openly again and again."""
    settings.HTTPS = settings.SECURE_SSL_REDIRECT = True
    for path in (JOBS, "/api/v1/nothing"):
        answer = Client().post(path, "{}", content_type="application/json")
        assert answer.status_code == 403
    assert problem_of(Client().post(JOBS, "{}", content_type="application/json"))["code"] == "https_required"
    assert Client().get("/admin/")["Location"].startswith("https://")
    assert Client().post(JOBS, "{}", content_type="application/json", secure=True).status_code == 401


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_probes_of_the_machine_itself_need_no_https(settings, path):
    settings.HTTPS = settings.SECURE_SSL_REDIRECT = True
    assert Client().get(path).status_code in {200, 503}


def test_an_anonymous_caller_sees_no_difference_between_ids(organization):
    job = submitted(organization.projects.get())
    nobody = Caller()
    known, missing = nobody.get(f"{JOBS}/{job.job_ulid}"), nobody.get(JOB)
    assert known.status_code == missing.status_code == 401
    assert known["WWW-Authenticate"].startswith("Bearer")
