"""The decision to receive an upload: by its token before the body, and by the bytes of others during it."""

import asyncio
import io
import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.http import HttpRequest

from orchestrator.http.asgi.body_limit import ANONYMOUS_BYTES
from orchestrator.http.asgi.router import Router
from orchestrator.http.asgi.upload_body import FLOOR_BYTES, UPLOAD, Uploads
from orchestrator.http.errors.problems import ApiError
from orchestrator.images.errors import RegistryError
from orchestrator.images.tokens import PERSON_AUDIENCE, PUSH, RepositoryAccess, new_access_token, new_pull_token
from orchestrator.protocols.oci_registry import access
from orchestrator.protocols.oci_registry.access import authorize, share_of_upload
from runtime_jobs.models import Project
from tests.orchestrator.images.world import BOTH, basic, token

pytestmark = pytest.mark.django_db
LARGE = ANONYMOUS_BYTES + 1


class MemoryFile:
    """The file of a body, in memory."""

    def __init__(self):
        self.content, self.size = b"", 0

    def write(self, block):
        self.content += block
        self.size += len(block)

    def discard(self):
        pass


class Call:
    """A request to the router, whose application only remembers what it was called with."""

    def __init__(self, bearer, *blocks, method="PATCH", path="/v2/adapter/blobs/uploads/x"):
        authorization = bearer if " " in (bearer or " ") else f"Bearer {bearer}"
        headers = [(b"authorization", authorization.encode())] if bearer else []
        self.scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": headers, "client": ("127.0.0.1", 1),
        }  # fmt: skip
        self.blocks, self.seen, self.sent = list(blocks), None, []

    async def receive(self):
        block = self.blocks.pop(0)
        return {"type": "http.request", "body": block, "more_body": bool(self.blocks)}

    async def send(self, message):
        self.sent.append(message)

    async def application(self, scope, _receive, _send):
        self.seen = scope

    def run(self):
        router = Router(
            requests=self.application, long_polls=self.application, uploads=[Uploads(share_of_upload, MemoryFile)]
        )
        asyncio.run(router(self.scope, self.receive, self.send))
        return self

    @property
    def answer(self):
        headers = {name.decode().lower(): value.decode() for name, value in self.sent[0]["headers"]}
        return self.sent[0]["status"], headers


def request_of(scope, bearer):
    request = HttpRequest()
    request.META["HTTP_AUTHORIZATION"] = f"Bearer {bearer}"
    request.scope = scope
    return request


def expired_token(project):
    entries = [RepositoryAccess("adapter", project.uuid, BOTH, BOTH)]
    return new_access_token("mia", entries, audience=PERSON_AUDIENCE, now=datetime.now(UTC) - timedelta(seconds=301))


class TestToken:
    def test_a_token_may_expire_while_the_body_arrives(self, project, monkeypatch):
        """Once the body of a gigabyte was received for ten minutes, and refused then."""
        bearer = token(project)
        call = Call(bearer, bytes(LARGE), b"x").run()
        assert call.seen[UPLOAD].size == LARGE + 1

        class Later(datetime):
            @classmethod
            def now(cls, tz=None):
                return datetime.now(tz) + timedelta(minutes=10)

        monkeypatch.setattr(access, "datetime", Later)
        assert authorize(request_of(call.seen, bearer), "adapter", PUSH).project == project
        with pytest.raises(RegistryError) as refusal:
            authorize(request_of({}, bearer), "adapter", PUSH)
        assert refusal.value.status == 401

    @pytest.mark.parametrize("method", ["PATCH", "PUT", "POST"])
    @pytest.mark.parametrize(
        ("name", "error"), [("none", ""), ("basic", ""), ("wrong", "invalid_token"), ("expired", "invalid_token"),
                            ("pull only", "insufficient_scope")],
    )  # fmt: skip
    def test_a_large_body_without_a_valid_token_is_401_with_the_challenge(self, project, method, name, error):
        """Clients request a new token then. With 413, which was the answer once, they end."""
        bearer = {
            "none": None, "basic": basic("x"), "wrong": "x", "expired": expired_token(project),
            "pull only": token(project, actions=("pull",)),
        }[name]  # fmt: skip
        status, headers = Call(bearer, bytes(LARGE), method=method).run().answer
        assert status == 401
        expected = 'scope="repository:adapter:pull,push"' + (f',error="{error}"' if error else "")
        assert headers["www-authenticate"].endswith(expected)

    def test_a_small_body_without_a_valid_token_is_answered_by_the_view(self, project):
        assert Call(expired_token(project), bytes(100)).run().seen is not None

    def test_a_large_body_without_the_right_is_403(self, project):
        entries = [
            RepositoryAccess("adapter", project.uuid, BOTH, ("pull",)),
            RepositoryAccess("secret", None, BOTH, ()),
        ]
        bearer = new_access_token("mia", entries, audience=PERSON_AUDIENCE)
        answers = [
            Call(given, bytes(LARGE), path=f"/v2/{name}/blobs/uploads/x").run().answer
            for given, name in [
                (bearer, "adapter"), (bearer, "secret"), (new_pull_token(project.uuid, project.uuid), "adapter")
            ]
        ]  # fmt: skip
        assert [(status, "www-authenticate" in headers) for status, headers in answers] == [(403, False)] * 3

    def test_a_name_that_is_none_cannot_change_the_challenge(self, project):
        status, headers = Call(None, bytes(LARGE), path='/v2/a"b/blobs/uploads/x').run().answer
        assert (status, "www-authenticate" in headers) == (400, False)

    def test_an_upload_is_counted_for_its_organization(self, project, other):
        second = Project.objects.create(organization=project.organization, slug="second", public_slug="second")
        first, foreign, same = (
            share_of_upload(Call(token(owner), path=f"/v2/{owner.public_slug}/blobs/uploads/").scope)
            for owner in (project, other, second)
        )
        assert isinstance(first, str)
        assert (first == same, first == foreign) == (True, False)


MIB = 1 << 20


class TestShares:
    """The limit is 16 MiB."""

    @pytest.fixture
    def uploads(self, settings):
        settings.IMAGE_SPOOL_BYTES = 16 * MIB
        return Uploads(lambda _: None, MemoryFile)

    @staticmethod
    async def hold(uploads, share, size):
        """Send so many bytes and then nothing. Return the task, or the refusal."""
        is_silent, sent = asyncio.Event(), io.BytesIO(bytes(size))

        async def receive():
            if block := sent.read(MIB // 4):
                return {"type": "http.request", "body": block, "more_body": True}
            is_silent.set()
            return await asyncio.Event().wait()

        task = asyncio.ensure_future(uploads.receive({"headers": []}, receive, share))
        silent = asyncio.ensure_future(is_silent.wait())
        await asyncio.wait([task, silent], return_when=asyncio.FIRST_COMPLETED)
        silent.cancel()
        return task

    def outcomes(self, uploads, *holds):
        """Whether each of these uploads is received, while those before it continue."""

        async def run():
            tasks = [await self.hold(uploads, share, size) for share, size in holds]
            received = [not task.done() for task in tasks]
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, (asyncio.CancelledError, ApiError)) for result in results)
            return received

        return asyncio.run(run())

    def test_one_organization_has_half(self, uploads):
        assert self.outcomes(uploads, ("a", 8 * MIB), ("a", 2 * MIB), ("b", 2 * MIB)) == [True, False, True]

    def test_others_find_room_however_many_have_begun(self, uploads):
        """Once two shares, such as two projects of one organization, could have everything."""
        assert self.outcomes(uploads, ("a", 8 * MIB), ("b", 8 * MIB), ("c", 2 * MIB)) == [True, False, True]
        assert self.outcomes(uploads, ("a", 8 * MIB), ("b", 4 * MIB), ("c", 2 * MIB)) == [True, True, True]

    def test_small_uploads_are_always_received(self, uploads, settings):
        settings.IMAGE_SPOOL_BYTES = 0
        assert self.outcomes(uploads, ("a", FLOOR_BYTES), ("b", FLOOR_BYTES), ("b", FLOOR_BYTES + 1)) == [
            True, True, False,
        ]  # fmt: skip


def test_an_upload_that_is_cancelled_is_discarded_after_its_write(settings):
    """Else the write creates a file that is never discarded."""
    settings.IMAGE_SPOOL_BYTES = 16 * MIB
    is_writing, may_end, calls = threading.Event(), threading.Event(), []

    class SlowFile(MemoryFile):
        def write(self, block):
            is_writing.set()
            assert may_end.wait(60)
            calls.append("write")

        def discard(self):
            calls.append("discard")

    async def receive():
        return {"type": "http.request", "body": bytes(MIB), "more_body": True}

    async def run():
        uploads = Uploads(lambda _: None, SlowFile)
        task = asyncio.ensure_future(uploads.receive({"headers": []}, receive, "a"))
        await asyncio.to_thread(is_writing.wait, 60)
        task.cancel()
        for _ in range(10):  # the task sees its end
            await asyncio.sleep(0)
        threading.Timer(0.2, may_end.set).start()  # an early discard would come first
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert calls == ["write", "discard"]
