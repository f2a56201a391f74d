"""A cached token is refused at once where it is revoked, on a notification elsewhere, and within a second anyway."""

import threading
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone
from rest_framework.exceptions import AuthenticationFailed

from orchestrator import checks
from orchestrator.core import principal_cache
from orchestrator.core.cause import Cause
from orchestrator.core.principal_cache import CHANNEL, MAX_SECONDS, PrincipalCache, principals
from orchestrator.http.auth import authentication
from orchestrator.http.auth.authentication import SEEN_EVERY, authenticate_bearer
from orchestrator.pubsub.hub import NotificationHub
from orchestrator.services import credentials, worker_state
from runtime_jobs.models import ApiToken
from tests.factories import OPERATOR, OrganizationFactory, PoolFactory, WorkerFactory, api_token
from workers.models import Worker
from workers.registry.models import WorkerState
from workers.registry.tokens import digest_of

committed = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _empty():
    principals.clear()
    yield
    principals.clear()


@pytest.fixture
def queries(monkeypatch):
    """Digests that were looked up in the database."""
    found = []
    for name in ("_TOKEN", "_WORKER"):
        query = getattr(authentication, name)

        class Recording:
            def all(self, digest, query=query):
                found.append(digest)
                return query.all(digest)

        monkeypatch.setattr(authentication, name, Recording())
    return found


def caller(token, *, now=None):
    return authenticate_bearer(f"Bearer {token}", network="192.0.2.1", now=now)


def refused(token, *, now=None):
    with pytest.raises(AuthenticationFailed):
        caller(token, now=now)


@committed
def test_a_second_request_within_a_second_reads_nothing(queries):
    token, worker = api_token(OrganizationFactory()), WorkerFactory()
    for _ in range(3):
        assert caller(token, now=10.0).organizations
        assert caller(worker.token, now=10.0).worker.pk == worker.pk
    assert queries == [digest_of(token), digest_of(worker.token)]
    caller(token, now=11.0)
    assert len(queries) == 3


@committed
def test_zero_seconds_read_each_time(queries, settings):
    settings.AUTH_CACHE_SECONDS = 0
    worker = WorkerFactory()
    caller(worker.token), caller(worker.token)
    assert len(queries) == 2
    assert len(principals) == 0


@pytest.mark.django_db
def test_what_a_transaction_reads_is_not_kept(queries):
    """Another transaction may have changed it without a commit yet."""
    worker = WorkerFactory()
    caller(worker.token), caller(worker.token)
    assert len(queries) == 2


@committed
def test_a_revoked_token_is_refused_at_once_where_it_was_revoked():
    token = api_token(OrganizationFactory())
    caller(token)
    credentials.revoke_api_token(token_id=ApiToken.objects.get().pk, cause=Cause(OPERATOR, "leaked"))
    refused(token)


@committed
@pytest.mark.parametrize("change", ["revoked", "rotated"])
def test_a_worker_is_refused_at_once_where_its_token_was_ended(change):
    worker = WorkerFactory()
    caller(worker.token)
    if change == "revoked":
        worker_state.set_worker_state(worker_id=worker.worker_id, state=WorkerState.REVOKED, cause=Cause(OPERATOR))
    else:
        worker_state.rotate_worker_token(worker_id=worker.worker_id, cause=Cause(OPERATOR))
    refused(worker.token)


@committed
def test_a_changed_worker_or_pool_is_read_again_at_once():
    worker = WorkerFactory(labels=["old"])
    assert caller(worker.token).worker.labels == ["old"]
    worker.labels, worker.pool = ["new"], PoolFactory(slug="other")
    worker.save()
    found = caller(worker.token).worker
    assert (found.labels, found.pool.slug) == (["new"], "other")
    worker.pool.slug = "renamed"
    worker.pool.save()
    assert caller(worker.token).worker.pool.slug == "renamed"


@committed
def test_a_deleted_token_is_refused_at_once_where_it_was_deleted():
    token = api_token(OrganizationFactory())
    caller(token)
    ApiToken.objects.get().delete()
    refused(token)


@committed
def test_a_lost_notification_costs_a_second_at_most():
    token, worker = api_token(OrganizationFactory()), WorkerFactory()
    caller(token, now=100.0), caller(worker.token, now=100.0)
    # An update without signals, as of another process.
    ApiToken.objects.update(revoked_at=timezone.now())
    Worker.objects.update(state=WorkerState.REVOKED)
    assert caller(token, now=100.999), "else this test shows nothing"
    refused(token, now=100.0 + MAX_SECONDS)
    refused(worker.token, now=100.0 + MAX_SECONDS)


@committed
def test_a_token_is_not_kept_beyond_its_expiry():
    token = api_token(OrganizationFactory())
    ApiToken.objects.update(expires_at=timezone.now() + timedelta(days=1))
    caller(token, now=5.0)
    entry = principals._entries[digest_of(token)]
    assert entry.valid_until == 6.0
    principals.clear()
    now = timezone.now()
    row = ApiToken.objects.select_related("organization").get()
    row.expires_at = now + timedelta(milliseconds=300)
    kept = authentication.ApiTokenRow(row, row.organization, now)

    class Query:
        def all(self, _digest):
            return [kept]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(authentication, "_TOKEN", Query())
        caller(token, now=5.0)
    assert principals._entries[digest_of(token)].valid_until == pytest.approx(5.3)


def notifications_of(statement, *values):
    """Payloads that a listening session receives for this statement."""
    connection.ensure_connection()
    session = connection.connection
    session.execute(f"LISTEN {CHANNEL}")
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement, values)
        return [notice.payload for notice in session.notifies(timeout=0)]
    finally:
        session.execute(f"UNLISTEN {CHANNEL}")


READ_BY_PRINCIPALS = {
    "worker_id", "slug", "pool", "digest", "certificate_subject", "capacity", "labels", "capabilities", "state",
}  # fmt: skip
# Written by claims and requests, or displayed only.
NOT_READ = {
    "id", "note", "session", "last_seen_at", "offered", "offered_types", "offered_isolation", "created_at", "leases_from",
    "unready_reason",  # a claim that finds an old value writes it once more
    "agent_version", "name", "archived_at", "modified_at",  # displayed from rows that are read anew; archiving changes the state, too
}  # fmt: skip


def test_each_column_of_a_worker_is_known():
    """A new column belongs to the trigger of `0005_credential_changes`, or to NOT_READ with a reason."""
    assert {field.name for field in Worker._meta.concrete_fields} == READ_BY_PRINCIPALS | NOT_READ


@committed
@pytest.mark.parametrize("name", sorted(READ_BY_PRINCIPALS))
def test_a_change_of_a_worker_is_notified(name):
    WorkerFactory()
    column = Worker._meta.get_field(name).column
    assert notifications_of(f"UPDATE workers_worker SET {column} = {column}") == [""]


@committed
@pytest.mark.parametrize("name", sorted(NOT_READ - {"id", "created_at"}))
def test_what_claims_write_is_not_notified(name):
    WorkerFactory()
    column = Worker._meta.get_field(name).column
    assert notifications_of(f"UPDATE workers_worker SET {column} = {column}") == []


@committed
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE runtime_jobs_apitoken SET revoked_at = now()",
        "UPDATE runtime_jobs_apitoken SET expires_at = now()",
        "UPDATE runtime_jobs_apitoken SET scopes = '{}'",
        "DELETE FROM runtime_jobs_apitoken",
        "DELETE FROM workers_worker",
        "UPDATE workers_pool SET slug = 'renamed'",
        "UPDATE runtime_jobs_organization SET slug = slug",
    ],
)
def test_whatever_ends_or_changes_a_token_is_notified(statement):
    api_token(OrganizationFactory()), WorkerFactory()
    assert notifications_of(statement) == [""]


@committed
def test_a_notification_empties_the_cache_of_a_process_that_listens():
    worker = WorkerFactory()
    caller(worker.token, now=1.0)
    NotificationHub().listener._channels[CHANNEL]("")
    assert len(principals) == 0


@committed
def test_a_revocation_during_the_query_is_not_overwritten_by_its_result(monkeypatch):
    worker = WorkerFactory()
    query = authentication._WORKER

    class Overtaken:
        def all(self, digest):
            row = query.all(digest)
            worker_state.set_worker_state(worker_id=worker.worker_id, state=WorkerState.REVOKED, cause=Cause(OPERATOR))
            return row

    monkeypatch.setattr(authentication, "_WORKER", Overtaken())
    caller(worker.token, now=1.0)
    monkeypatch.setattr(authentication, "_WORKER", query)
    refused(worker.token, now=1.0)


@committed
def test_a_change_that_is_rolled_back_or_uncommitted_clears_nothing_yet():
    worker = WorkerFactory()
    caller(worker.token, now=1.0)
    with transaction.atomic():
        worker.labels = ["new"]
        worker.save()
        assert len(principals) == 1, "a request that read now would keep the old row"
    assert len(principals) == 0


@committed
def test_last_seen_moves_every_five_seconds(queries):
    worker = WorkerFactory()
    caller(worker.token, now=1.0)
    first = Worker.objects.get().last_seen_at
    assert first is not None
    caller(worker.token, now=2.0)
    assert Worker.objects.get().last_seen_at == first
    Worker.objects.update(last_seen_at=first - SEEN_EVERY)
    asked_at = authentication._touched[worker.pk]
    authentication._touched[worker.pk] = asked_at - SEEN_EVERY.total_seconds()
    caller(worker.token, now=3.0)
    assert Worker.objects.get().last_seen_at >= first
    assert len(queries) == 3


@committed
def test_nothing_but_digests_is_kept():
    token, worker = api_token(OrganizationFactory()), WorkerFactory()
    caller(token), caller(worker.token)
    assert set(principals._entries) == {digest_of(token), digest_of(worker.token)}
    kept = repr([(digest, vars(entry.principal)) for digest, entry in principals._entries.items()])
    kept += repr([vars(entry.principal.worker) for entry in principals._entries.values() if entry.principal.is_worker])
    assert token not in kept
    assert worker.token not in kept


@committed
def test_a_principal_never_crosses_tokens():
    """Eight threads authenticate eight callers, while the cache is cleared all the time."""
    tokens = {worker.token: worker.pk for worker in (WorkerFactory() for _ in range(8))}
    wrong, start, done = [], threading.Barrier(9), threading.Event()

    def authenticate(token, key):
        start.wait(20)
        try:
            wrong.extend(token for _ in range(40) if caller(token).worker.pk != key)
        finally:
            connection.close()

    def clear():
        start.wait(20)
        while not done.wait(0.001):
            principals.clear()

    threads = [threading.Thread(target=authenticate, args=pair) for pair in tokens.items()]
    clearing = threading.Thread(target=clear)
    for thread in (*threads, clearing):
        thread.start()
    for thread in threads:
        thread.join(60)
    done.set()
    clearing.join(20)
    assert wrong == []


def test_the_cache_is_bounded_and_forgets_the_oldest(monkeypatch):
    monkeypatch.setattr(principal_cache, "MAX_ENTRIES", 3)
    cache = PrincipalCache()
    for name in "abcd":
        cache.put(name, name, valid_until=9.0, generation=cache.generation)
    cache.put("b", "new", valid_until=10.0, generation=cache.generation)
    cache.put("e", "e", valid_until=10.0, generation=cache.generation)
    assert list(cache._entries) == ["d", "b", "e"]
    assert cache.get("b", now=9.5) == "new"
    assert cache.get("d", now=9.0) is None, "its time is up"


@pytest.mark.parametrize(("seconds", "found"), [(0, 0), (0.5, 0), (1, 0), (1.01, 1), (-1, 1), (60, 1)])
def test_a_cache_for_longer_than_a_second_is_reported(settings, seconds, found):
    settings.AUTH_CACHE_SECONDS = seconds
    assert [error.id for error in checks.token_cache()] == ["orchestrator.E011"] * found
