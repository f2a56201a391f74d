"""The request of a fetch is decompressed, and limited before and after."""

import asyncio
import gzip
import zlib

import pytest

from orchestrator.http.asgi import body_limit
from orchestrator.http.asgi.body_limit import ClientDisconnected
from orchestrator.protocols.git_http.request_body import read_request
from orchestrator.protocols.git_http.wire import GitRefusal

LIMIT = 1 << 20


@pytest.fixture(autouse=True)
def limit(settings):
    settings.GIT_REQUEST_LIMIT_BYTES = LIMIT
    yield
    assert body_limit._spool.size == 0


def received(*blocks: bytes, encoding: str = "", ends: bool = True) -> bytes:
    messages = [{"type": "http.request", "body": block, "more_body": True} for block in blocks]
    messages.append({"type": "http.request", "body": b"", "more_body": False} if ends else {"type": "http.disconnect"})

    async def read() -> bytes:
        iterator = iter(messages)

        async def receive():
            return next(iterator)

        body = await read_request(receive, encoding=encoding)
        try:
            return body.file.read()
        finally:
            body.close()

    return asyncio.run(read())


def refused(*blocks: bytes, encoding: str = "") -> int:
    with pytest.raises(GitRefusal) as raised:
        received(*blocks, encoding=encoding)
    return raised.value.status


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip"])
def test_a_compressed_body_is_the_same_wherever_it_is_split(encoding):
    content = bytes(range(256)) * 2000
    packed = gzip.compress(content)
    assert received(packed, encoding=encoding) == content
    assert received(*(packed[start : start + 7] for start in range(0, len(packed), 7)), encoding=encoding) == content


@pytest.mark.parametrize("encoding", ["", "identity"])
def test_a_plain_body_is_passed_on(encoding):
    assert received(b"0032want ", b"rest", encoding=encoding) == b"0032want rest"
    assert received(encoding=encoding) == b""


def test_a_body_may_have_exactly_the_limit():
    assert len(received(b"x" * LIMIT)) == LIMIT
    assert len(received(gzip.compress(b"x" * LIMIT), encoding="gzip")) == LIMIT


def test_a_larger_body_is_413_also_if_only_its_content_is_larger():
    assert refused(b"x" * LIMIT, b"x") == 413
    bomb = gzip.compress(b"\0" * (LIMIT + 1))
    assert len(bomb) < 2000
    assert refused(bomb, encoding="gzip") == 413


def test_compressed_data_without_content_is_limited_too():
    """Empty blocks of deflate: five bytes each, and no content."""
    packer = zlib.compressobj(wbits=31)
    head = packer.compress(b"") + packer.flush(zlib.Z_FULL_FLUSH)
    assert refused(head, *[b"\x00\x00\x00\xff\xff" * 10_000] * 25, encoding="gzip") == 413


# The bytes contain the time. As ids they would differ between the processes of the suite, which then refuse to begin.
@pytest.mark.parametrize(
    "packed",
    [b"no gzip", gzip.compress(b"x" * 100)[:-1], gzip.compress(b"x")[:5], gzip.compress(b"x") + b"more"],
    ids=["no gzip", "without the last byte", "half a header", "more bytes after it"],
)
def test_a_body_that_is_not_one_whole_gzip_is_400(packed):
    assert refused(packed, encoding="gzip") == 400


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "zstd"])
def test_another_encoding_is_415(encoding):
    assert refused(b"x", encoding=encoding) == 415


def test_a_client_that_disconnects_is_no_error_of_the_request():
    with pytest.raises(ClientDisconnected):
        received(b"0032want", ends=False)


def test_a_body_that_does_not_arrive_is_408(settings):
    settings.BODY_SECONDS = 0.01

    async def never():
        await asyncio.Event().wait()

    with pytest.raises(GitRefusal) as raised:
        asyncio.run(read_request(never, encoding=""))
    assert raised.value.status == 408


def test_the_bodies_of_a_process_are_limited_together(settings):
    settings.BODY_SPOOL_BYTES = 100_000
    assert refused(b"x" * 200_000) == 503
