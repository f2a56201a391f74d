"""`httpx-sse`, a client that is not ours, over kills and restarts of the server: no gap, no repeat, in order."""

import threading

import httpx
import pytest
from django.conf import settings
from httpx_sse import connect_sse

from orchestrator.services import job_end
from runtime_jobs.models import JobEvent
from runtime_jobs.models.tenants import Scope
from tests.factories import OrganizationFactory, ProjectFactory, WorkerFactory, api_token, claimed, submitted
from tests.live_server import eventually, serving

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
PATH = "/api/dashboard/events"


class Follower:
    """Follows the events in a thread, and begins again after its last event whenever the connection ends."""

    def __init__(self, token):
        self._headers = {"Authorization": f"Bearer {token}"}
        self._last_id = ""
        self.url, self.is_connected, self.received, self.unexpected = "", False, [], []
        self._may_connect, self._ended = threading.Event(), False
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def point_at(self, url):
        """Connect to this server from now on."""
        self.url, self.is_connected = url, False
        self._may_connect.set()

    def pause(self):
        """Do not connect again before `point_at`."""
        self._may_connect.clear()

    def end(self):
        self._ended = True
        self._may_connect.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _follow(self):
        while self._may_connect.wait() and not self._ended:
            try:
                self._read()
            except (httpx.TransportError, httpx.StreamError):
                continue  # the server was killed

    def _read(self):
        headers = self._headers | ({"Last-Event-ID": self._last_id} if self._last_id else {})
        with (
            httpx.Client(timeout=httpx.Timeout(60)) as client,
            connect_sse(client, "GET", f"{self.url}{PATH}", headers=headers) as source,
        ):
            for event in source.iter_sse():
                self._last_id = event.id or self._last_id
                if not event.data:
                    continue  # a sign of life; the library passes it on
                if event.event == "snapshot":
                    self.is_connected = True
                elif event.event == "message":
                    self.received.append(event.json()["integrity"]["hash"])
                else:
                    self.unexpected.append((event.event, event.data))


def run_one(project):
    submitted(project)
    lease = claimed(WorkerFactory()).lease
    job_end.fail(lease_ulid=lease.lease_ulid, worker=lease.worker, reason="command_failed")


def hashes():
    return list(JobEvent.objects.order_by("xid", "id").values_list("hash", flat=True))


def test_no_gap_and_no_repeat_over_kills_and_restarts(database_url, tmp_path):
    organization = OrganizationFactory(slug="acme")
    project = ProjectFactory(organization=organization)
    followers = [Follower(api_token(organization, (Scope.ORCH_READ,))) for _ in range(3)]
    try:
        for turn in range(3):
            with serving(tmp_path, DATABASE_URL=database_url, SECRET_KEY=settings.SECRET_KEY) as server:
                for follower in followers:
                    follower.point_at(server.url)
                eventually(lambda: all(follower.is_connected for follower in followers))
                for _ in range(5):
                    run_one(project)
                if turn == 0:
                    eventually(lambda: all(follower.received for follower in followers))
                for follower in followers:
                    follower.pause()
                if turn < 2:
                    server.process.kill()  # in the middle of what is being sent
                    server.process.wait()
                    run_one(project)  # while no server runs
                else:
                    eventually(lambda: all(len(follower.received) >= len(hashes()) for follower in followers))
    finally:
        for follower in followers:
            follower.end()
    expected = hashes()
    for follower in followers:
        assert follower.unexpected == []
        assert follower.received == expected
