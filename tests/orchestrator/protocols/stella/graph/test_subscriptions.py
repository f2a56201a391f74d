"""The WebSocket of GraphQL on the real server, with the client `gql`: events and logs equal those of the streams."""

import asyncio
import contextlib
import gc
import json
import signal
import warnings

import pytest
import requests
from django.conf import settings
from django.contrib.auth import get_user_model
from django.test import Client as Browser
from django.utils import timezone
from gql import Client, GraphQLRequest, gql
from gql.transport.exceptions import TransportError, TransportQueryError
from gql.transport.websockets import WebsocketsTransport
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from leases.models import LimitKind
from orchestrator.core.db_scope import release_connection_after
from orchestrator.services import job_end
from orchestrator.step_logs import job_log_writes
from runtime_jobs.identifiers import uuid_of
from runtime_jobs.models import ApiToken, Membership
from runtime_jobs.models.tenants import Scope
from tests.factories import (
    OrganizationFactory,
    ProjectFactory,
    WorkerFactory,
    api_token,
    claimed,
    limited,
    submitted,
)
from tests.live_server import eventually, serving
from tests.older_transactions import wait_for_older_transactions
from tests.orchestrator.protocols.stella.events.test_stream import EventSource, number, run_one
from tests.orchestrator.protocols.stella.graph.documents import PATH, members
from tests.orchestrator.protocols.stella.graph.test_queries import NINE_LEVELS, SIXTEEN_ALIASES, TEN_THOUSAND_NODES
from tests.orchestrator.protocols.stella.requests import MISSING
from workers.registry.tokens import digest_of

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # see `closed_sockets`
]

MODERN, LEGACY = WebsocketsTransport.GRAPHQLWS_SUBPROTOCOL, WebsocketsTransport.APOLLO_SUBPROTOCOL
ARGUMENTS = "$tenant: String, $jobTypes: [String!], $eventTypes: [String!], $jobId: ID, $after: String"
GIVEN = "tenant: $tenant, jobTypes: $jobTypes, eventTypes: $eventTypes, jobId: $jobId, after: $after"
JOB_EVENTS = f"subscription Events({ARGUMENTS}) {{ jobEvents({GIVEN}) {{ {members('JobEventMessage')} }} }}"
RUN_LOGS = (
    f"subscription($id: ID!, $after: String) {{ runLogs(runId: $id, after: $after) {{ {members('RunLogMessage')} }} }}"
)
OWN = "{ dashboard { tenants } }"


@pytest.fixture(scope="module")
def server(database_url, tmp_path_factory):
    folder, secret = tmp_path_factory.mktemp("server"), settings.SECRET_KEY  # sessions are made in this process
    with serving(folder, DATABASE_URL=database_url, SECRET_KEY=secret, STREAM_AUTH_SECONDS="0.5") as found:
        yield found


@pytest.fixture
def organization():
    return OrganizationFactory(slug="acme")


@pytest.fixture
def project(organization):
    return ProjectFactory(organization=organization)


@pytest.fixture
def token(organization):
    return api_token(organization, (Scope.ORCH_READ,))


@pytest.fixture(autouse=True)
def closed_sockets():
    """Close what gql has left: it may end before its socket has, which would be a warning in any later test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


async def in_thread(work, *args, **kwargs):
    """Write to the database in a thread, which gives its connection back to the pool of all tests of this process."""
    return await asyncio.to_thread(release_connection_after(work), *args, **kwargs)


def address(server):
    return server.url.replace("http", "ws") + PATH


def client(server, token=None, *, payload=None, subprotocols=(MODERN,), headers=None, **options):
    """A client that ends its subscriptions itself: gql waits 10 s at its end for each that is still open."""
    transport = WebsocketsTransport(
        address(server),
        init_payload={"Authorization": f"Bearer {token}"} if token else payload or {},
        subprotocols=list(subprotocols),
        headers=headers or {},
        **options,
    )
    return Client(transport=transport, fetch_schema_from_transport=False)


async def take(messages, count, name="jobEvents"):
    """The next messages that are no signs of life."""
    found = []
    async with asyncio.timeout(60):
        while len(found) < count:
            message = (await anext(messages))[name]
            if any(message.get(member) for member in ("event", "snapshot", "gap")):
                found.append(message)
    return found


def subscription(session, **variables):
    return session.subscribe(GraphQLRequest(JOB_EVENTS, variable_values=variables))


def ask(server, token=None, *, query=OWN, **options):
    """The data of one query over the WebSocket."""

    async def run():
        async with client(server, token, **options) as session:
            return await session.execute(gql(query))

    return asyncio.run(run())


def refused_with(call):
    """The code of the Close frame with which the server ends a connection."""
    return close_frame(call).code


def close_frame(call):
    with pytest.raises((TransportError, ConnectionClosed)) as refused:
        call()
    error = refused.value
    while not isinstance(error, ConnectionClosed):
        error = error.__cause__ or error.__context__
        assert error is not None
    return error.rcvd


def pages_of(server, token):
    """The envelopes of all events of the tenant."""
    wait_for_older_transactions()
    headers = {"Authorization": f"Bearer {token}"}
    return requests.get(f"{server.url}/api/events?limit=200", headers=headers, timeout=30).json()["results"]


def completed(envelope):
    """An envelope of the stream, with null for the members that an event of an operator lacks."""
    absent = {"status": None, "duration": None, "result": None}
    return envelope | {"payload": absent | envelope["payload"]}


def test_job_events_equal_those_of_the_stream(server, project, token):
    submitted(project)
    wait_for_older_transactions()  # its event is before the place of the snapshot
    source = EventSource(server, token)
    places = []

    def stream_events(count):
        found = []
        for _ in range(count):
            found += source.events(1)
            places.append(source.last_id)
        return found

    async def run():
        async with client(server, token) as session:
            messages = subscription(session)
            (first,) = await take(messages, 1)
            name, snapshot = source.next()
            assert name == "snapshot"
            assert first["snapshot"] | {"measuredAt": 0} == snapshot | {"measuredAt": 0}
            await in_thread(lambda: [run_one(project) for _ in range(3)])
            await in_thread(limited, "acme", kind=LimitKind.RATE, per_hour=9)
            happened = len(await in_thread(pages_of, server, token)) - 1
            found = await take(messages, happened)
            await messages.aclose()
            return found

    with contextlib.closing(source):
        found = asyncio.run(run())
        streamed = stream_events(len(found))
    assert [message["event"] for message in found] == [completed(envelope) for envelope in streamed]
    assert [message["place"] for message in found] == places
    assert {"job.queued", "job.failed"} < {message["event"]["eventType"] for message in found}
    pages = pages_of(server, token)
    assert [message["event"] for message in found] == [completed(envelope) for envelope in pages[1:]]
    listed = ask(server, token, query=f"{{ events(first: 100) {{ {members('EventPage')} }} }}")["events"]
    assert listed["results"] == [completed(envelope) for envelope in pages]


def test_a_subscription_continues_after_a_place(server, project, token):
    async def run(after, count):
        async with (
            client(server, token) as session,
            contextlib.aclosing(subscription(session, after=after)) as messages,
        ):
            (first,) = await take(messages, 1)
            assert first["snapshot"]
            await in_thread(run_one, project)
            return await take(messages, count)

    first = asyncio.run(run(None, 4))
    run_one(project)
    per_job = len(pages_of(server, token)) // 2
    later = asyncio.run(run(first[1]["place"], 3 * per_job - 2))
    events = [message["event"] for message in (*first[:2], *later)]
    hashes = [event["integrity"]["hash"] for event in events if event["integrity"]]
    assert hashes == [envelope["integrity"]["hash"] for envelope in pages_of(server, token) if envelope["integrity"]]


def test_tenants_are_apart_and_filters_apply(server, project, token):
    other = ProjectFactory(organization=OrganizationFactory(slug="neighbour"))

    theirs = api_token(other.organization, (Scope.ORCH_READ,))

    async def run():
        async with client(server, token) as mine, client(server, theirs) as neighbour:
            streams = [subscription(mine, eventTypes=["job.failed"], tenant="acme"), subscription(neighbour)]
            for stream in streams:
                await take(stream, 1)
            jobs = await in_thread(lambda: [(run_one(project), run_one(other)) for _ in range(2)])
            found = jobs, await take(streams[0], 2), await take(streams[1], 8)
            for stream in streams:
                await stream.aclose()
            return found

    jobs, mine, others = asyncio.run(run())
    assert [message["event"]["jobId"] for message in mine] == [str(uuid_of(job.job_ulid)) for job, _ in jobs]
    assert {message["event"]["eventType"] for message in mine} == {"job.failed"}
    assert {message["event"]["tenant"] for message in others} == {"neighbour"}


def test_run_logs_equal_those_of_the_stream(server, project, token):
    job = submitted(project)
    found = claimed(WorkerFactory())
    lease = {"lease_ulid": found.lease.lease_ulid, "worker": found.lease.worker}
    run_id = str(uuid_of(job.job_ulid))

    async def run(after=None):
        async with client(server, token) as session:
            messages = session.subscribe(GraphQLRequest(RUN_LOGS, variable_values={"id": run_id, "after": after}))
            received = [(await anext(messages))["runLogs"]] if after is None else []
            if after is None:
                await in_thread(job_log_writes.append_log, **lease, step=0, seq=1, chunk=b"two\n")
                await in_thread(job_end.fail, **lease, reason="command_failed")
            async with asyncio.timeout(60):
                received += [message["runLogs"] async for message in messages]
            return received

    job_log_writes.append_log(**lease, step=0, seq=0, chunk=b"one\n")
    received = asyncio.run(run())
    source = EventSource(server, token, path=f"/runs/{run_id}/logs")
    streamed = []
    while (event := source.next()) is not None:
        streamed.append((source.last_id, *event))
    source.close()
    text = "".join(message["chunk"]["text"] for message in received if message["chunk"])
    assert text == "".join(content["text"] for _, name, content in streamed if name == "chunk") == "one\ntwo\n"
    end = streamed[-1][2]
    assert received[-1]["end"] == {"status": end["status"], "state": end["state"], "exitCode": end["exit_code"]}
    assert received[-1]["id"] == streamed[-1][0]
    rest = asyncio.run(run(after=received[0]["id"]))
    assert rest == received[1:]


@pytest.mark.parametrize(
    ("subscription_of", "variables"),
    [
        (JOB_EVENTS, {"tenant": "{tenant}"}),
        (JOB_EVENTS, {"jobId": "{job}"}),
        (RUN_LOGS, {"id": "{job}"}),
    ],
)
def test_another_tenants_are_those_that_do_not_exist(server, project, subscription_of, variables):
    job = submitted(project)
    intruder = api_token(ProjectFactory(organization=OrganizationFactory(slug="intruder")).organization)

    def attempt(job_id, tenant):
        given = {name: value.format(job=job_id, tenant=tenant) for name, value in variables.items()}

        async def run():
            async with client(server, intruder) as session:
                async for _ in session.subscribe(GraphQLRequest(subscription_of, variable_values=given)):
                    pytest.fail("a message")

        with pytest.raises(TransportQueryError) as refused:
            asyncio.run(run())
        (error,) = refused.value.errors
        del error["extensions"]["request_id"]
        return error

    found = attempt(uuid_of(job.job_ulid), "acme")
    assert found["extensions"]["code"] == "not_found"
    assert found == attempt(MISSING, "nobody")


def test_queries_are_answered_too(server, token):
    assert ask(server, token) == {"dashboard": {"tenants": ["acme"]}}


@pytest.mark.parametrize("query", [NINE_LEVELS, SIXTEEN_ALIASES, TEN_THOUSAND_NODES])
def test_an_expensive_document_is_refused_and_the_connection_stays(server, token, query):
    async def run():
        async with client(server, token) as session:
            with pytest.raises(TransportQueryError) as refused:
                await session.execute(gql(query))
            assert refused.value.errors[0]["extensions"]["code"] == "query_too_expensive"
            return await session.execute(gql(OWN))

    assert asyncio.run(run()) == {"dashboard": {"tenants": ["acme"]}}


# --- admission --------------------------------------------------------------------------------------------------------


def test_without_a_valid_token_no_client_is_admitted(server, organization):
    assert refused_with(lambda: ask(server)) == 4401
    assert refused_with(lambda: ask(server, "rto_api_" + "x" * 43)) == 4401
    assert refused_with(lambda: ask(server, payload={"Authorization": 5})) == 4401
    header = {"Authorization": f"Bearer {api_token(organization)}"}
    assert refused_with(lambda: ask(server, headers=header)) == 4401, "the token belongs into connection_init"
    worker = close_frame(lambda: ask(server, WorkerFactory().token))
    assert (worker.code, worker.reason) == (4403, "wrong_principal")
    assert refused_with(lambda: ask(server, api_token(organization, (Scope.JOBS_READ, Scope.ORCH_QUOTA)))) == 4403


@pytest.fixture
def cookie(organization):
    user = get_user_model().objects.create_user("mia", password="correct horse battery")
    Membership.objects.create(user=user, organization=organization)
    browser = Browser()
    browser.force_login(user)
    return {"Cookie": f"sessionid={browser.cookies['sessionid'].value}"}


def test_a_session_is_admitted_with_our_origin_only(server, cookie, token):
    assert ask(server, headers=cookie | {"Origin": server.url}) == {"dashboard": {"tenants": ["acme"]}}
    assert refused_with(lambda: ask(server, headers=cookie)) == 4401
    assert refused_with(lambda: ask(server, headers={"Cookie": "sessionid=x", "Origin": server.url})) == 4401
    for origin in ("https://evil.example", "null", server.url + ".evil.example"):
        for headers in (cookie, {}):
            status, problem = handshake(server, headers={**headers, "Origin": origin})
            assert (status, problem["code"]) == (403, "forbidden")


def handshake(server, *, subprotocols=(MODERN,), headers=None):
    """The status and the problem document of a handshake that is refused."""
    with pytest.raises(InvalidStatus) as refused:
        connect(address(server), subprotocols=list(subprotocols) or None, additional_headers=headers or {}).close()
    response = refused.value.response
    assert response.headers["Content-Type"] == "application/problem+json"
    return response.status_code, json.loads(response.body)


@pytest.mark.parametrize("subprotocols", [(LEGACY,), ("other",), ()])
def test_the_legacy_protocol_is_refused(server, subprotocols):
    status, problem = handshake(server, subprotocols=subprotocols)
    assert (status, problem["code"]) == (400, "invalid")
    assert MODERN in str(problem["errors"])


def test_the_modern_protocol_is_chosen_of_both(server, token):
    assert ask(server, token, subprotocols=(LEGACY, MODERN)) == {"dashboard": {"tenants": ["acme"]}}


def test_a_revoked_token_ends_its_connection(server, project, token):
    async def run():
        async with client(server, token) as session:
            messages = subscription(session)
            await take(messages, 1)
            revoked = ApiToken.objects.filter(digest=digest_of(token))
            await in_thread(revoked.update, revoked_at=timezone.now())
            await take(messages, 1)

    assert refused_with(lambda: asyncio.run(run())) == 4403


def test_a_token_that_loses_the_scope_ends_its_connection(server, project, token):
    async def run():
        async with client(server, token) as session:
            messages = subscription(session)
            await take(messages, 1)
            changed = ApiToken.objects.filter(digest=digest_of(token))
            await in_thread(changed.update, scopes=[Scope.JOBS_READ])
            await take(messages, 1)

    assert refused_with(lambda: asyncio.run(run())) == 4403


def test_connections_of_a_token_are_bounded_with_its_streams(organization, token, database_url, tmp_path):
    with serving(tmp_path, DATABASE_URL=database_url, STREAMS_PER_CALLER="2") as server:

        async def run():
            async with client(server, token):
                with contextlib.closing(await asyncio.to_thread(EventSource, server, token)) as source:
                    assert source.status == 200
                    with pytest.raises((TransportError, ConnectionClosed)):
                        async with client(server, token) as third:
                            await third.execute(gql(OWN))
                    other = api_token_of_other
                    async with client(server, other) as session:
                        await session.execute(gql(OWN))
                    with contextlib.closing(await asyncio.to_thread(EventSource, server, token)) as refused:
                        assert refused.status == 429

        api_token_of_other = api_token(organization, (Scope.ORCH_READ,))
        asyncio.run(run())

        async def two():
            with contextlib.suppress(TransportError):
                async with client(server, token) as first, client(server, token) as second:
                    return [await session.execute(gql(OWN)) for session in (first, second)]

        eventually(lambda: asyncio.run(two()))  # the first connection does not count any more


def test_a_connection_that_ends_leaves_no_listener(server, project, token):
    async def run():
        async with client(server, token, close_timeout=1) as session:  # it ends with open subscriptions
            streams = [subscription(session) for _ in range(5)]
            for stream in streams:
                await take(stream, 1)
            listeners = await asyncio.to_thread(number, server, "orchestrator_event_listeners")
            await streams[0].aclose()  # the client sends `complete`
            # At once, and not with the next message: a sign of life follows after 15 s.
            await asyncio.to_thread(eventually, lambda: number(server, "orchestrator_event_listeners") == 4, 10.0)
            return listeners

    assert asyncio.run(run()) == 5
    eventually(lambda: number(server, "orchestrator_event_listeners") == 0)


def test_the_end_of_the_process_is_announced(project, token, database_url, tmp_path):
    with serving(tmp_path, DATABASE_URL=database_url) as server:

        async def run():
            async with client(server, token) as session:
                messages = subscription(session)
                await take(messages, 1)
                server.process.send_signal(signal.SIGTERM)
                await take(messages, 1)

        assert refused_with(lambda: asyncio.run(run())) == 1001


def test_a_message_above_the_limit_ends_the_connection(server, token):
    with connect(address(server), subprotocols=[MODERN]) as socket:
        socket.send(json.dumps({"type": "connection_init", "payload": {"Authorization": f"Bearer {token}"}}))
        assert json.loads(socket.recv(timeout=30)) == {"type": "connection_ack"}
        socket.send(json.dumps({"type": "ping", "payload": {"x": "y" * 70_000}}))
        with pytest.raises(ConnectionClosed) as refused:
            socket.recv(timeout=30)
    assert refused.value.rcvd.code == 1009
