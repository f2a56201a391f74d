from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.workers.agent.conftest import TOKEN
from tests.workers.agent.scripted import (
    CERTIFICATE,
    Answer,
    ScriptedServer,
    drip,
    endless,
    hang,
    hang_up,
    scripted_server,
)
from workers.agent.errors import ServerUnreachable, WorkerStartError
from workers.agent.http.transport import ANSWER_BYTES, Timeouts, Transport, trusted_origin

SECRET_PATH = "/v1/runtime/leases/rtl_secret/heartbeat"
QUICK = Timeouts(connect=1, read=0.5, total=1)


def transport(server: ScriptedServer) -> Transport:
    return Transport(server.url, lambda: TOKEN)


def test_the_token_goes_along_and_connections_are_kept(server: ScriptedServer) -> None:
    sender = transport(server)
    for _ in range(3):
        assert sender.post("/x", b"{}", timeouts=Timeouts()).status == 200
    sender.close()
    assert {asked.headers["Authorization"] for asked in server.asked} == {f"Bearer {TOKEN}"}
    assert {asked.headers["Content-Type"] for asked in server.asked} == {"application/json; charset=utf-8"}
    assert len({asked.client for asked in server.asked}) == 1


def test_credentials_of_the_home_are_never_sent_instead(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login ann password hunter2\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    sender = Transport(server.url, lambda: "")
    sender._session.trust_env = True  # as for a server that is not on this machine
    sender.post("/x", b"{}", timeouts=Timeouts())
    sender.close()
    assert "Authorization" not in server.asked[0].headers


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    sender = transport(server)
    assert sender.post("/x", b"{}", timeouts=Timeouts()).status == 200
    sender.close()


@pytest.mark.parametrize("trouble", [hang, hang_up])
def test_trouble_on_the_way_is_reported_without_the_path(server: ScriptedServer, trouble: object) -> None:
    server.on("heartbeat", trouble)  # type: ignore[arg-type] # a script
    sender = transport(server)
    with pytest.raises(ServerUnreachable) as caught:
        sender.post(SECRET_PATH, b"{}", timeouts=QUICK)
    sender.close()
    assert "rtl_secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_server_that_nobody_runs_is_reported_without_the_path() -> None:
    sender = Transport("http://127.0.0.1:9", lambda: TOKEN)
    with pytest.raises(ServerUnreachable) as caught:
        sender.post(SECRET_PATH, b"{}", timeouts=QUICK)
    sender.close()
    assert "rtl_secret" not in repr(caught.value)


def test_a_server_that_drips_is_cut_off_at_the_total_time(server: ScriptedServer) -> None:
    server.on("x", drip)
    sender = transport(server)
    begun = time.monotonic()
    with pytest.raises(ServerUnreachable, match="within 1 s"):
        sender.post("/x", b"{}", timeouts=Timeouts(connect=5, read=30, total=1))
    sender.close()
    assert 0.9 < time.monotonic() - begun < 3


def test_a_body_without_end_is_left_unread(server: ScriptedServer) -> None:
    server.on("x", endless)
    sender = transport(server)
    answer = sender.post("/x", b"{}", timeouts=Timeouts())
    sender.close()
    assert answer.oversize
    assert len(answer.body) == ANSWER_BYTES


def test_a_redirect_is_an_answer_and_the_token_goes_nowhere_else(server: ScriptedServer) -> None:
    server.on("x", Answer(307, b"", {"Location": f"{server.url}/elsewhere"}))
    sender = transport(server)
    assert sender.post("/x", b"{}", timeouts=Timeouts()).status == 307
    sender.close()
    assert server.calls == ["x"]


def test_a_connection_that_the_server_closed_meanwhile_is_trouble_and_the_next_try_a_new_one(
    server: ScriptedServer,
) -> None:
    sender = transport(server)
    server.on("x", Answer(), hang_up, Answer())
    assert sender.post("/x", b"{}", timeouts=Timeouts()).status == 200
    with pytest.raises(ServerUnreachable):
        sender.post("/x", b"{}", timeouts=Timeouts())
    assert sender.post("/x", b"{}", timeouts=Timeouts()).status == 200
    sender.close()


def test_a_dripping_server_behind_tls_is_cut_off_too() -> None:
    with scripted_server(tls=True) as server:
        server.on("x", Answer(), drip)
        sender = Transport(server.url, lambda: TOKEN)
        sender._session.verify = str(CERTIFICATE)
        assert sender.post("/x", b"{}", timeouts=Timeouts()).status == 200
        begun = time.monotonic()
        with pytest.raises(ServerUnreachable, match="within 1 s"):
            sender.post("/x", b"{}", timeouts=Timeouts(connect=5, read=5, total=1))
        assert time.monotonic() - begun < 5
        sender.close()


def test_a_certificate_that_nobody_vouches_for_is_not_trusted() -> None:
    with scripted_server(tls=True) as server:
        sender = Transport(server.url, lambda: TOKEN)
        with pytest.raises(ServerUnreachable, match="SSLError"):
            sender.post("/x", b"{}", timeouts=Timeouts())
        sender.close()
        assert server.asked == []


@pytest.mark.parametrize(
    "url", ["https://orchestrator.example", "http://127.0.0.1:8000/", "http://localhost:1", "http://[::1]:1"]
)
def test_tokens_go_over_https_or_to_this_machine(url: str) -> None:
    assert trusted_origin(url) == url.rstrip("/")


@pytest.mark.parametrize(
    "url",
    [
        "http://orchestrator.example",
        "http://127.0.0.1.example",
        "ftp://127.0.0.1",
        "orchestrator.example",
        "https://",
        "https://ann:secret@orchestrator.example",
        "https://orchestrator.example/?token=x",
    ],
)
def test_tokens_go_nowhere_else(url: str) -> None:
    with pytest.raises(WorkerStartError) as caught:
        trusted_origin(url)
    assert "secret" not in str(caught.value)
