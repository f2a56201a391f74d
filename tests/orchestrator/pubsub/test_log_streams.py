"""Log streams on the real server: hundreds of followers, clients that do not read, limits, revocation, shutdown."""

import contextlib
import http.client
import os
import signal
import socket
import threading

import psutil
import pytest
import requests
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone

from orchestrator.services import job_end
from orchestrator.step_logs import job_log_writes
from runtime_jobs.models import ApiToken, Membership
from tests.factories import (
    OrganizationFactory,
    ProjectFactory,
    WorkerFactory,
    api_token,
    claimed,
    submitted,
    submitted_steps,
)
from tests.live_server import eventually, serving
from workers.registry.tokens import digest_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
MIB = 1 << 20
PER_CALLER, PER_ORGANIZATION = 100, 250
SETTINGS = {
    "STREAMS_PER_CALLER": str(PER_CALLER),
    "STREAMS_PER_ORGANIZATION": str(PER_ORGANIZATION),
    "STREAM_STALL_SECONDS": "6",  # a test that reads may get no processor for some seconds
    "STREAM_AUTH_SECONDS": "0.5",
}


@pytest.fixture(scope="module")
def server(database_url, tmp_path_factory):
    folder, secret = tmp_path_factory.mktemp("server"), settings.SECRET_KEY  # sessions are made in this process
    with serving(folder, DATABASE_URL=database_url, SECRET_KEY=secret, **SETTINGS) as found:
        found.size = process_of(found).memory_info().rss
        yield found


@pytest.fixture
def organization():
    return OrganizationFactory(slug="sandtrace")


class Log:
    """The log of a running job, written as its worker does."""

    def __init__(self, organization, job_type="runtime"):
        project = ProjectFactory(organization=organization)
        submit = submitted if job_type == "runtime" else submitted_steps
        submit(project)
        self.worker = WorkerFactory()
        self.lease = claimed(self.worker, job_types=(job_type,)).lease
        self.path = f"/v1/jobs/{self.lease.job_id}/logs"
        self.next = {}
        self.text = b""

    def append(self, chunk, step=0):
        seq = self.next.get(step, 0)
        self.next[step] = seq + 1
        job_log_writes.append_log(lease_ulid=self.lease.lease_ulid, worker=self.worker, seq=seq, chunk=chunk, step=step)
        self.text += chunk

    def end(self):
        job_end.fail(lease_ulid=self.lease.lease_ulid, worker=self.worker, reason="worker_error")


class Reader:
    """A client of one log. `status` is known once it exists; nothing of the body is read before it is asked for."""

    def __init__(self, server, path, headers, *, receive_buffer=None, method="GET"):
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(60)
        self.socket.connect(server.address)
        self.connection = http.client.HTTPConnection(*server.address)
        self.connection.sock = self.socket
        self.connection.request(method, path, headers=headers)
        self.answer = self.connection.getresponse()
        self.status = self.answer.status

    def read(self, size):
        found = b""
        while len(found) < size:
            part = self.answer.read1(size - len(found))
            assert part, "the stream ended"
            found += part
        return found

    def rest(self):
        """Return what arrives until the end of the response. Raises if the response has no end."""
        return self.answer.read()

    def is_cut_off(self):
        """Read on; True if the connection ends without the end of the answer."""
        try:
            self.answer.read()
        except (http.client.IncompleteRead, ConnectionError):
            return True
        return False

    def close(self):
        self.answer.close()
        self.socket.close()


@pytest.fixture
def reader(server):
    with contextlib.ExitStack() as opened:

        def read(log, token, *, follow=True, of=server, **options):
            headers = token if isinstance(token, dict) else {"Authorization": f"Bearer {token}"}
            found = Reader(of, log.path + ("?follow=1" if follow else ""), headers, **options)
            opened.callback(found.close)
            return found

        yield read
    eventually(lambda: streams(server) == number(server, "orchestrator_followed_jobs") == 0)


def number(server, name):
    lines = requests.get(f"{server.url}/metrics", timeout=10).text.splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(f"{name} ")), 0.0)


def streams(server):
    return number(server, 'orchestrator_streams{kind="follow"}') + number(server, 'orchestrator_streams{kind="read"}')


def ended(server, reason):
    return number(server, f'orchestrator_streams_ended_total{{reason="{reason}"}}')


def process_of(server):
    return psutil.Process(server.process.pid)


def test_hundreds_of_followers_cost_no_thread_and_no_query_each(server, organization, reader):
    log = Log(organization)
    log.append(b"first\n")
    process, threads = process_of(server), process_of(server).num_threads()
    before = process.memory_info().rss
    tokens = [api_token(organization, ("jobs:read",)) for _ in range(3)]
    followers = [reader(log, token) for token in tokens for _ in range(80)]
    assert {one.read(6) for one in followers} == {b"first\n"}
    assert process.num_threads() - threads <= 45, "the threads of requests, of readers and of one announcer"
    assert process.memory_info().rss - before < 60 * MIB
    reads = number(server, "orchestrator_stream_reads_total")
    for chunk in (b"second\n", b"third\n"):
        log.append(chunk)
        assert {one.read(len(chunk)) for one in followers} == {chunk}
    assert number(server, "orchestrator_stream_reads_total") - reads < 40
    neighbour = OrganizationFactory(slug="neighbour")
    headers = {"Authorization": f"Bearer {api_token(neighbour)}"}
    assert requests.get(f"{server.url}/v1/jobs", headers=headers, timeout=10).status_code == 200
    assert number(server, "orchestrator_followed_jobs") == 1
    log.append(b"last\n")
    log.end()
    assert {one.rest() for one in followers} == {b"last\n"}
    eventually(lambda: number(server, "orchestrator_followed_jobs") == 0)


@pytest.mark.parametrize("follow", [True, False], ids=["follow", "once"])
def test_clients_that_do_not_read_cost_little_and_are_cut_off(server, organization, reader, follow):
    log = Log(organization)
    for _ in range(10):
        log.append(os.urandom(512 << 10))
    token = api_token(organization)
    warm = reader(log, token)
    assert warm.read(len(log.text)) == log.text
    if not follow:  # then nothing is kept that the others could share
        warm.close()
        eventually(lambda: streams(server) == 0)
    stalled = ended(server, "stalled")
    idle = [reader(log, token, follow=follow, receive_buffer=4096) for _ in range(60)]
    sizes = []

    def are_cut_off():
        sizes.append(process_of(server).memory_info().rss)
        return ended(server, "stalled") - stalled == 60

    eventually(are_cut_off, seconds=90)
    assert max(sizes) - server.size < 120 * MIB, "60 times 5 MiB were asked for"
    assert all(one.is_cut_off() for one in idle)
    assert streams(server) == follow, "the one that has read everything continues"
    if follow:
        log.append(b"more")
        assert warm.read(4) == b"more"


def test_streams_of_a_token_and_of_an_organization_are_limited(server, organization, reader):
    log = Log(organization)
    first, second, third = (api_token(organization) for _ in range(3))
    mine = [reader(log, first) for _ in range(PER_CALLER)]
    refused = reader(log, first)
    problem = requests.get(server.url + log.path, headers={"Authorization": f"Bearer {first}"}, timeout=30)
    assert refused.status == problem.status_code == 429
    assert problem.headers["Retry-After"].isdecimal()
    assert {"code": "too_many_streams", "limit": 100, "open_streams": 100, "limited_by": "caller"}.items() <= (
        problem.json().items()
    )
    assert {reader(log, token).status for token in [second] * 100 + [third] * 50} == {200}
    problem = requests.get(server.url + log.path, headers={"Authorization": f"Bearer {third}"}, timeout=30).json()
    assert (problem["code"], problem["limited_by"], problem["limit"]) == ("too_many_streams", "organization", 250)
    stranger = OrganizationFactory(slug="neighbour")
    assert reader(Log(stranger), api_token(stranger)).status == 200
    mine[0].close()
    eventually(lambda: reader(log, third).status == 200)


def test_a_browser_s_streams_are_limited_too(server, organization, reader):
    log, headers, _ = browser(organization)
    assert {reader(log, headers).status for _ in range(PER_CALLER)} == {200}
    assert reader(log, headers).status == 429


def browser(organization):
    """A member with a session: the log of a job of the organization, the headers of the browser, and the user."""
    user = get_user_model().objects.create_user("mia", password="correct horse battery")
    Membership.objects.create(user=user, organization=organization)
    client = Client()
    client.force_login(user)
    return Log(organization), {"Cookie": f"sessionid={client.cookies['sessionid'].value}"}, user


def test_a_revoked_token_ends_its_streams_and_no_others(server, organization, reader):
    log = Log(organization)
    token, other = api_token(organization), api_token(organization)
    followers = [reader(log, token), reader(log, token)]
    stays = reader(log, other)
    ApiToken.objects.filter(digest=digest_of(token)).update(revoked_at=timezone.now())
    assert all(one.is_cut_off() for one in followers)
    log.append(b"secret")
    assert stays.read(6) == b"secret"
    assert ended(server, "revoked") == 2
    log.end()
    assert stays.rest() == b""


@pytest.mark.parametrize("loss", ["logout", "membership", "password"])
def test_a_browser_that_may_not_read_any_more_is_cut_off(server, organization, reader, loss):
    log, headers, user = browser(organization)
    follower = reader(log, headers)
    log.append(b"seen")
    assert follower.read(4) == b"seen"
    if loss == "logout":
        Session.objects.all().delete()
    elif loss == "membership":
        user.memberships.all().delete()
    else:
        user.set_password("another horse battery")
        user.save()
    assert follower.is_cut_off()


def test_late_and_slow_followers_get_every_byte_in_order(server, organization, reader):
    log = Log(organization, "steps")
    token = api_token(organization)
    early, slow = reader(log, token), reader(log, token, receive_buffer=8192)
    received = {}

    def slowly():
        parts = []
        while part := slow.answer.read1(32 << 10):
            parts.append(part)
        received["slow"] = b"".join(parts)

    def quickly(name, one):
        received[name] = one.rest()

    reading = [threading.Thread(target=slowly), threading.Thread(target=quickly, args=("early", early))]
    for thread in reading:
        thread.start()
    for step in range(4):
        for size in (1, 0, 200_000, 70_000, 512 << 10, 65_536, 3):
            log.append(os.urandom(size), step=step)
        if step == 1:
            late = reader(log, token)
            reading.append(threading.Thread(target=quickly, args=("late", late)))
            reading[-1].start()
    log.end()
    for thread in reading:
        thread.join(60)
    assert {name: text == log.text for name, text in received.items()} == {"slow": True, "early": True, "late": True}
    assert reader(log, token, follow=False).rest() == log.text
    assert reader(log, token).rest() == log.text, "to follow a job that has ended is to read its log"


def test_a_follower_learns_of_an_end_without_output(server, organization, reader):
    log = Log(organization)
    follower = reader(log, api_token(organization))
    eventually(lambda: number(server, "orchestrator_followed_jobs") == 1)
    log.end()
    assert follower.rest() == b""


def test_an_answer_that_does_not_stream_is_dropped_too(server):
    """The connection takes the whole response, and the kernel ends the connection of a client that reads nothing."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(server.address)
        client.sendall(b"GET /v1/schema HTTP/1.1\r\nHost: localhost\r\n\r\n")
        port = client.getsockname()[1]

        def is_connected():
            return any(one.raddr and one.raddr.port == port for one in process_of(server).net_connections())

        eventually(is_connected)
        eventually(lambda: not is_connected(), seconds=60)


def test_the_head_of_a_followed_log_is_answered_at_once(server, organization, reader):
    follower = reader(Log(organization), api_token(organization), method="HEAD")
    assert (follower.status, follower.answer.headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    assert streams(server) == 0


def test_a_server_that_stops_ends_its_streams(organization, reader, database_url, tmp_path):
    log = Log(organization)
    with serving(tmp_path, DATABASE_URL=database_url) as server:
        followers = [reader(log, api_token(organization), of=server) for _ in range(5)]
        server.process.send_signal(signal.SIGTERM)
        assert all(one.is_cut_off() for one in followers)
        server.process.wait(timeout=20)
        assert "graceful shutdown exceeded" not in server.log()
        assert "without completing response" not in server.log()
        assert "Traceback" not in server.log()


def test_nothing_of_all_this_made_the_server_complain(server):
    text = server.log()
    assert "Traceback" not in text
    assert " ERROR " not in text
    assert "Warning" not in text
