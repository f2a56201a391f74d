"""One try of a delivery: what counts as success, what is kept of the answer, and where no connection goes."""

import asyncio
import re
import socket
import ssl
import time

import pytest
from standardwebhooks import Webhook as Receiver

from orchestrator.webhooks import sender as sender_module
from orchestrator.webhooks.sender import ANSWER_SECONDS, Message, Sender
from orchestrator.webhooks.signatures import new_key, secret_text
from tests.orchestrator.webhooks.certificates import authority_and_server
from tests.orchestrator.webhooks.receivers import LOOPBACK, answer, receiving

KEY = new_key()
EVENT = "018f2c5e-0000-7000-8000-000000000001"
BODY = b'{"eventType":"job.completed"}'


@pytest.fixture(autouse=True)
def opened(settings):
    settings.WEBHOOK_NETWORKS = [LOOPBACK]


def message(url, *keys):
    return Message(url, keys or (KEY,), EVENT, BODY)


def sent(*answers, tries=1, **options):
    """Send to a receiver with these answers. Returns the receiver, and the last result."""

    async def run():
        async with receiving(*answers) as receiver, Sender(**options) as sender:
            for _ in range(tries):
                found = await sender.send(message(receiver.url))
            return receiver, found

    return asyncio.run(run())


def test_a_message_is_posted_and_signed():
    receiver, found = sent(answer(204, b""))
    (request,) = receiver.requests
    assert request.line == "POST /hook?a=b HTTP/1.1"
    assert request.body == BODY
    assert request.headers["webhook-id"] == EVENT
    assert request.headers["content-type"] == "application/json"
    assert "cookie" not in request.headers
    Receiver(secret_text(KEY)).verify(request.body, request.headers)
    assert (found.is_success, found.status_code, found.answer) == (True, 204, "")
    assert re.fullmatch(r"The receiver answered 204 after \d+\.\d seconds\.", found.sentence)


def test_a_connection_is_used_again():
    receiver, found = sent(answer(200, b"fine"), tries=3)
    assert (len(receiver.requests), receiver.connections) == (3, 1)
    assert found.answer == "fine"


@pytest.mark.parametrize("status", [100, 199, 400, 404, 429, 500, 503])
def test_any_other_status_is_a_failure(status):
    _, found = sent(answer(status, b"no"), answer_seconds=ANSWER_SECONDS if status >= 200 else 0.5)
    assert not found.is_success
    assert not found.is_gone
    assert found.status_code == (status if status >= 200 else None)


def test_a_redirect_is_a_failure_and_its_target_is_not_called():
    async def run():
        async with (
            receiving(answer(200)) as target,
            receiving(answer(301, b"", Location=target.url)) as first,
            Sender() as sender,
        ):
            return target, await sender.send(message(first.url))

    target, found = asyncio.run(run())
    assert (found.is_success, found.status_code) == (False, 301)
    assert "not followed" in found.sentence
    assert target.connections == 0


def test_410_means_that_the_receiver_is_gone():
    assert sent(answer(410))[1].is_gone


def test_retry_after_is_passed_on():
    assert sent(answer(503, b"", Retry_After="120"))[1].retry_after.total_seconds() == 120
    assert sent(answer(503))[1].retry_after is None


def test_silence_ends_after_the_limit():
    assert ANSWER_SECONDS == 15.0

    async def silent(_writer):
        await asyncio.sleep(120)

    began = time.monotonic()
    _, found = sent(silent, answer_seconds=0.3)
    assert time.monotonic() - began < 60
    assert (found.is_success, found.status_code) == (False, None)
    assert "did not answer within" in found.sentence


def test_a_body_that_never_ends_is_cut_off():
    assert sender_module.BODY_SECONDS == 2.0

    async def endless(writer):
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"5\r\nabcde\r\n")
            await writer.drain()
            await asyncio.sleep(0.05)

    began = time.monotonic()
    _, found = sent(endless)
    assert time.monotonic() - began < 60
    assert found.is_success
    assert found.answer.startswith("abcde")


def test_a_huge_body_is_not_read():
    read = 0

    async def huge(writer):
        nonlocal read
        writer.write(b"HTTP/1.1 500 X\r\nContent-Length: 10737418240\r\n\r\n")
        for _ in range(10_000):
            writer.write(b"x" * 65536)
            await writer.drain()
            read += 65536

    _, found = sent(huge)
    assert found.status_code == 500
    assert found.answer == "x" * 4096
    assert read < 64 << 20


def test_a_compressed_body_is_not_decompressed():
    bomb = b"\x1f\x8b\x08\x00" + b"\0" * 100
    _, found = sent(answer(200, bomb, Content_Encoding="gzip"))
    assert found.is_success
    assert "\0" not in found.answer


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 5000 + b"\r\n",
        b"no http\r\n\r\n",
        b"HTTP/1.1 99999 OK\r\n\r\n",
    ],
)
def test_an_answer_that_is_no_http_is_a_failure(raw):
    _, found = sent(raw)
    assert not found.is_success
    assert "HTTP" in found.sentence or "closed" in found.sentence


def test_control_characters_of_an_answer_are_spelled_out():
    _, found = sent(answer(500, b"\x1b[31mred\0\xff"))
    assert "\x1b" not in found.answer
    assert "\0" not in found.answer
    assert "\\x1b[31mred" in found.answer


def test_a_refused_connection_and_a_lost_one_are_sentences():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]

    async def refused():
        async with Sender() as sender:
            return await sender.send(message(f"http://127.0.0.1:{port}/"))

    assert asyncio.run(refused()).sentence == "The receiver refused the connection."

    async def hang_up(_writer):
        return

    assert sent(hang_up)[1].sentence == "The receiver closed the connection before it answered."


# --- where no connection goes (attacks 82, 83) ------------------------------------------------------------------------


def blocked(url_of, settings, **options):
    """Send to a receiver whose network is not open. Returns the number of its connections, and the result."""
    settings.WEBHOOK_NETWORKS = []

    async def run():
        async with receiving(answer(200)) as receiver, Sender(**options) as sender:
            found = await sender.send(message(url_of(receiver.port)))
            await asyncio.sleep(0.05)
            return receiver.connections, found

    return asyncio.run(run())


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1", "2130706433", "0x7f.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0"]
)
@pytest.mark.parametrize("scheme", ["https", "http"])
def test_a_private_address_hears_nothing(settings, scheme, host):
    connections, found = blocked(lambda port: f"{scheme}://{host}:{port}/", settings)
    assert (connections, found.is_success, found.status_code) == (0, False, None)


def test_a_name_that_turns_private_hears_nothing(settings):
    """The check when the webhook was set saw a public address; the address is checked again for the connection."""
    connections, found = blocked(
        lambda port: f"https://hooks.example.com:{port}/", settings, resolve_name=lambda *_: ["127.0.0.1"]
    )
    assert connections == 0
    assert found.sentence == "The host of the URL has no public address. Nothing was sent."


def test_the_address_is_checked_where_the_socket_is_made(settings, monkeypatch):
    """A resolver that is wrong, or is not asked, leads to no connection."""

    async def wrong(_resolver, host, port=0, family=None):
        return [{"hostname": host, "host": "127.0.0.1", "port": port, "family": socket.AF_INET, "proto": 0, "flags": 0}]

    monkeypatch.setattr(sender_module._CheckedResolver, "resolve", wrong)
    connections, found = blocked(lambda port: f"https://hooks.example.com:{port}/", settings)
    assert (connections, found.is_success) == (0, False)
    assert "no public address" in found.sentence


def test_a_proxy_of_the_environment_is_not_used(settings, monkeypatch):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert sent(answer(200))[1].is_success


# --- TLS --------------------------------------------------------------------------------------------------------------


def over_tls(tmp_path, name, *, trusted=True):
    authority, server_context = authority_and_server(tmp_path, "hooks.example.com")
    client = ssl.create_default_context(cadata=authority if trusted else None)

    async def run():
        async with (
            receiving(answer(200), ssl_context=server_context) as receiver,
            Sender(resolve_name=lambda *_: ["127.0.0.1"], ssl_context=client) as sender,
        ):
            found = await sender.send(message(f"https://{name}:{receiver.port}/"))
            return receiver, found

    return asyncio.run(run())


def test_tls_is_under_the_name_of_the_url(tmp_path):
    receiver, found = over_tls(tmp_path, "hooks.example.com")
    assert found.is_success
    assert receiver.requests[0].headers["host"] == f"hooks.example.com:{receiver.port}"


@pytest.mark.parametrize(("name", "trusted"), [("other.example.com", True), ("hooks.example.com", False)])
def test_a_wrong_certificate_is_a_failure_and_nothing_is_sent(tmp_path, name, trusted):
    receiver, found = over_tls(tmp_path, name, trusted=trusted)
    assert not found.is_success
    assert "certificate" in found.sentence
    assert receiver.requests == []
