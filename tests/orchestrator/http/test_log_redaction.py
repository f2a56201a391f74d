"""No log line shows a lease id or a token: not the line of the request, not Django's, not a crash's traceback."""

import io
import logging
import logging.config
import sys

import pytest
from django.conf import settings as django_settings

from orchestrator.http.observability.log_redaction import Redaction, redacted
from orchestrator.services.credentials import WEBHOOK_PREFIX
from runtime_jobs.identifiers import fingerprint, new_lease_id
from tests.api_client import Caller
from tests.factories import SUBMIT_BODY, claimed, submitted
from workers.registry.tokens import API_PREFIX, WORKER_PREFIX, new_token

LEASE = "/v1/runtime/leases"
WORDS = ("acknowledge", "heartbeat", "report", "logs", "complete", "fail", "acknowledge-cancel", "release")


@pytest.fixture
def written(monkeypatch):
    """Return what the server would write: its own logging configuration, everything from DEBUG up, into a string."""
    stream = io.StringIO()
    before = logging.getLogger().handlers[:], logging.getLogger().level
    monkeypatch.setattr(sys, "stderr", stream)
    logging.config.dictConfig(django_settings.LOGGING)
    levels = {name: logging.getLogger(name).level for name in ("", "django.request", "django.db.backends")}
    for name in levels:
        logging.getLogger(name).setLevel(logging.DEBUG)
    yield stream.getvalue
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    logging.getLogger().handlers[:], logging.getLogger().level = before


def secrets(*names):
    """Return what must not appear: the part after the prefix, so that a truncated secret is found, too."""
    return [name[-20:] for name in names]


@pytest.mark.django_db
def test_nothing_that_a_lease_goes_through_is_written_down(written, organization, worker, wendy, alice):
    submitted(organization.projects.get())
    lease_id = wendy.post(LEASE, {"worker_id": worker.worker_id}).json()["lease_id"]
    for word in WORDS:
        for body in ({}, b"[", {"x": lease_id}, {"result": {"status": lease_id}}, {"phase": lease_id}):
            wendy.post(f"{LEASE}/{lease_id}/{word}", body)
            alice.post(f"{LEASE}/{lease_id}/{word}", body)
            Caller("rto_worker_" + "x" * 43).post(f"{LEASE}/{lease_id}/{word}", body)
        wendy.get(f"{LEASE}/{lease_id}/{word}")
        wendy.post(f"{LEASE}/{lease_id}/{word}", {}, **{"X-Request-Id": lease_id, "Worker-Session": lease_id})
    wendy.get(f"{LEASE}/{lease_id}")
    wendy.get(f"/nowhere/{lease_id}?a={lease_id}")
    alice.get(f"/v1/runtime/jobs?cursor={lease_id}")
    text = written()
    assert text.count("orchestrator.access") > 100, "each request is logged"
    assert f"POST {LEASE}/<lease_id>/heartbeat 200 " in text
    for secret in secrets(lease_id, worker.token, *[caller.headers["Authorization"] for caller in (alice, wendy)]):
        assert secret not in text


@pytest.mark.django_db
@pytest.mark.parametrize("word", WORDS)
def test_a_crash_is_reported_with_its_traceback_and_without_the_lease(
    written, organization, worker, wendy, monkeypatch, word
):
    submitted(organization.projects.get())
    lease_id = claimed(worker).lease.lease_ulid
    bodies = {
        "report": {"phase": "executing"},
        "logs": {"seq": 0, "chunk": ""},
        "complete": {"result": {"status": "uploaded", "ingest_run_id": "r"}},
        "fail": {"result": {"status": "failed", "reason": "worker_error"}},
    }

    def crash(*_, **__):
        raise KeyError(f"the lease {lease_id} of {worker.token}")

    monkeypatch.setattr("orchestrator.protocols.native.leases.calls.refused_runs", lambda *_, **__: {})
    functions = {
        "acknowledge": "services.batch_calls.acknowledge_many",
        "heartbeat": "services.batch_calls.renew_many",
        "report": "services.heartbeat.report",
        "release": "services.heartbeat.release",
        "logs": "step_logs.job_log_writes.append_log",
        "complete": "services.batch_calls.complete_many",
        "fail": "services.batch_calls.fail_many",
        "acknowledge-cancel": "services.job_end.acknowledge_cancel",
    }
    monkeypatch.setattr(f"orchestrator.{functions[word]}", crash)
    response = wendy.post(f"{LEASE}/{lease_id}/{word}", bodies.get(word, {}))
    assert response.status_code == 500
    assert response.json()["code"] == "internal_error"
    assert lease_id not in response.content.decode()
    text = written()
    assert "Traceback" in text
    assert f"the lease rtl:{fingerprint(lease_id)} of rto:" in text
    assert f"{LEASE}/<lease_id>/{word} 500" in text
    assert response["X-Request-Id"] in text
    for secret in secrets(lease_id, worker.token):
        assert secret not in text


@pytest.mark.django_db
def test_the_line_of_a_request_has_its_route_status_time_and_id(written, alice):
    alice.post("/v1/runtime/jobs", SUBMIT_BODY, **{"X-Request-Id": "mine"})
    alice.call("PROPFIND", "/nowhere\n/at all")
    lines = [
        line.partition("orchestrator.access ")[2] for line in written().splitlines() if "orchestrator.access" in line
    ]
    assert lines[0].startswith("POST /v1/runtime/jobs 201 ")
    assert lines[0].endswith(" ms mine")
    assert lines[1].startswith("OTHER unmatched 404 ")


def test_whoever_writes_a_line_and_however_it_says_no_secret(written):
    names = [
        new_lease_id(),
        new_token(API_PREFIX),
        new_token(WORKER_PREFIX),
        new_lease_id().upper().replace("RTL", "rtl"),
    ]
    log = logging.getLogger("somebody.else")
    for name in names:
        log.info("in the message: %s", name)
        log.info(f"in the format: {name}")  # noqa: G004 that is the case
        log.info("in a mapping: %(a)s", {"a": name})
        log.info("in something else: %s %r", [name], {"a": (name,)})
        log.info({"a": name})
        log.warning("does not fit: %d %d", name)  # noqa: PLE1206 that is the case
        log.info("in the middle%sof words", name)
        log.info("cut off: %s", name[:20])
        log.error("stack", stack_info=True)
        try:
            raise ValueError(name)  # noqa: TRY301 the traceback is wanted
        except ValueError:
            log.exception("raised")
        try:
            try:
                raise ValueError(name)  # noqa: TRY301 likewise
            except ValueError as error:
                raise RuntimeError("around it") from error
        except RuntimeError:
            log.exception("raised around it")
    text = written()
    assert text.count("Traceback") == 12
    assert text.count(f"rtl:{fingerprint(names[0])}") == 10
    for name in names:
        assert name[12:] not in text.replace(name[:12], "")
        assert name[-15:] not in text


@pytest.mark.parametrize("secret", [WEBHOOK_PREFIX + "0123456789abcdef" * 4, WEBHOOK_PREFIX + "0123456789"])
def test_the_secret_of_a_webhook_is_hidden_also_when_it_is_truncated(secret):
    assert redacted(f"secret={secret}, end") == f"secret=rto:{fingerprint(secret)}, end"


def test_what_is_no_secret_stays():
    text = (
        "rtj_01kkygkagq0jk17bx6y1w8c3df wrk_01kkygmfjf4j9s26hzd0h93j0r rtl_ rto_api_ /v1/runtime/leases/<lease_id>/fail"
    )
    assert redacted(text) == text


def test_a_record_without_an_exception_stays_one():
    record = logging.LogRecord("x", logging.INFO, "x", 1, "%s", ("a",), (None, None, None))
    assert Redaction().filter(record)
    assert (record.getMessage(), record.exc_text) == ("a", None)
