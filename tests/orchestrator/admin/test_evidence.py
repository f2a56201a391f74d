"""The pages *Evidence* and *Signing keys*."""

from datetime import UTC, datetime

import pytest

from orchestrator.evidence import exports
from orchestrator.evidence.models import AuditBundle, SigningKey
from orchestrator.evidence.signing_keys import create_signing_key
from runtime_jobs.models import OperatorEvent
from tests.factories import OPERATOR, submitted
from tests.orchestrator.admin.pages import address

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def folder(settings, tmp_path):
    settings.SIGNING_KEY_DIR = str(tmp_path / "keys")


@pytest.fixture
def key(folder):
    return create_signing_key(actor=OPERATOR)


def record(job_ulid: str, key_id: str) -> AuditBundle:
    return exports.record_audit_bundle(
        org_slug="acme",
        job_ulid=job_ulid,
        since=datetime(2026, 1, 1, tzinfo=UTC),
        until=datetime(2026, 2, 1, tzinfo=UTC),
        size_bytes=123_456,
        sha256="ab" * 32,
        key_id=key_id,
        lines={"jobs.jsonl": 4321},
    )


def text_of(response) -> str:
    assert response.status_code == 200
    return response.content.decode()


def test_bundles_are_listed_with_their_jobs_and_keys(olga, key):
    job = submitted()
    record(job.job_ulid, key.key_id)
    gone = record("rtj_01kkygkagq0jk17bx6y1w8c3df", "cd" * 32)
    page = text_of(olga.get(address(AuditBundle, "changelist")))
    for words in ("acme", "4,321", "120.6", address(type(job), "change", job.pk), gone.job_ulid, "cdcdcdcdcdcdcdcd…"):
        assert words in page
    assert address(SigningKey, "change", key.pk) in page
    assert "ab" * 32 in text_of(olga.get(address(AuditBundle, "change", gone.pk)))


def test_the_list_takes_the_same_statements_for_many_bundles(olga, key, django_assert_max_num_queries):
    for number in range(20):
        record(f"rtj_{number:026}", key.key_id)
    olga.get(address(AuditBundle, "changelist"))
    with django_assert_max_num_queries(12):
        olga.get(address(AuditBundle, "changelist"))


def test_a_key_is_retired_by_a_button(olga, key):
    page = text_of(olga.get(address(SigningKey, "change", key.pk)))
    assert key.public_pem.splitlines()[1] in page
    assert "PRIVATE" not in page
    assert olga.post(address(SigningKey, "retire", key.pk), {"reason": "rotation"}).status_code == 302
    key.refresh_from_db()
    assert key.retired_at is not None
    event = OperatorEvent.objects.latest("pk")
    assert (event.action, event.actor, event.reason) == ("signing_key.retired", "operator:olga", "rotation")
    assert "retired" in text_of(olga.get(address(SigningKey, "changelist")))
    assert address(SigningKey, "retire", key.pk) not in text_of(olga.get(address(SigningKey, "change", key.pk)))
