"""The programs of this machine reach its own server, whatever proxy the environment names for other machines."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from orchestrator.devtools import dev_server
from orchestrator.devtools.demo.client import DemoError, JobFollower
from orchestrator.devtools.dev_server import ListenAddress


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"authorization": self.headers.get("Authorization")}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def address():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield ListenAddress("127.0.0.1", server.server_address[1])
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(monkeypatch):
    """A proxy that refuses every connection: nothing listens at port 1."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("proxy")
def test_the_own_server_is_reached_without_the_proxy(address):
    assert dev_server.responds(address)


@pytest.mark.usefixtures("proxy")
def test_the_demo_reaches_its_server_without_the_proxy(address):
    assert JobFollower(address.url, "secret", job_id="1").job() == {"authorization": "Bearer secret"}


def test_a_server_that_does_not_respond_ends_the_demo_in_one_line():
    with pytest.raises(DemoError, match=r"^the server does not respond at http://127\.0\.0\.1:1 \(ConnectionError\)$"):
        JobFollower("http://127.0.0.1:1", "secret", job_id="1").job()


def test_the_demo_sends_its_own_token_and_no_login_of_netrc(address, tmp_path, monkeypatch):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login other password other\n")
    monkeypatch.setenv("NETRC", str(netrc))
    assert JobFollower(address.url, "secret", job_id="1").job() == {"authorization": "Bearer secret"}
