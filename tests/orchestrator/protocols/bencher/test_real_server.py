"""The REST API through the real server: refusals before any view, and a key that is refused by all processes at once."""

import json

import pytest
import requests

from orchestrator.protocols.bencher.reports.wire import serialize_report
from tests.factories import ProjectFactory, RunnerFactory, personal_key
from tests.live_server import serving
from tests.orchestrator.protocols.bencher.conftest import CORS_OF_ERRORS, make_server_admin
from tests.orchestrator.protocols.bencher.test_reports import report

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
LIMIT = 2000


@pytest.fixture(scope="module")
def server(database_url, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with serving(folder, DATABASE_URL=database_url, BODY_LIMIT_BYTES=str(LIMIT)) as found:
        yield found


@pytest.fixture
def headers():
    return {"Authorization": f"Bearer {personal_key(make_server_admin())}"}


def message_of(response: requests.Response, status: int) -> str:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert {name: response.headers[name] for name in CORS_OF_ERRORS} == CORS_OF_ERRORS
    assert response.json()["request_id"] == response.headers["x-request-id"]
    return response.json()["message"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_400_before_any_view(server, headers, chunked):
    body = b'{"name": "' + b"x" * LIMIT + b'"}'
    sent = iter([body[:500], body[500:]]) if chunked else body
    response = requests.post(f"{server.url}/v0/runners", data=sent, headers=headers, timeout=30)
    assert message_of(response, 400) == f"request body exceeded maximum size of {LIMIT} bytes"


def test_an_unknown_route_and_method_have_the_envelope(server, headers):
    assert message_of(requests.get(f"{server.url}/v0/nowhere", headers=headers, timeout=30), 404)
    assert message_of(requests.put(f"{server.url}/v0/runners", headers=headers, timeout=30), 405)


def test_a_runner_is_created_changed_and_read(server, headers):
    url = f"{server.url}/v0/runners"
    created = requests.post(url, json={"name": "Rack 7"}, headers=headers, timeout=30)
    assert created.status_code == 201
    changed = requests.patch(f"{url}/rack-7", json={"archived": True}, headers=headers, timeout=30)
    assert changed.json()["uuid"] == created.json()["uuid"]
    listed = requests.get(url, params={"archived": "true"}, headers=headers, timeout=30)
    assert (listed.json(), listed.headers["x-total-count"]) == ([changed.json()], "1")
    assert created.json()["key"] not in server.log()


@pytest.fixture
def server_of_kind(request, server, tmp_path, database_url):
    if request.param == "asgi":
        yield server
        return
    with serving(tmp_path, kind=request.param, DATABASE_URL=database_url) as found:
        yield found


@pytest.mark.parametrize("server_of_kind", ["asgi", "wsgi"], indirect=True)
def test_two_slashes_before_the_path_are_one(server_of_kind, server, headers):
    """Bencher's command line sends them."""
    url = server_of_kind.url
    assert requests.get(f"{url}//v0/server/version", timeout=30).json() == {"version": "0.6.12"}
    created = requests.post(f"{url}//v0/runners", json={"name": "Rack 7"}, headers=headers, timeout=30)
    assert created.status_code == 201
    listed = requests.get(f"{url}//v0/runners?per_page=1", headers=headers, timeout=30)
    assert [runner["slug"] for runner in listed.json()] == ["rack-7"]
    assert message_of(requests.get(f"{url}//v0/nowhere", headers=headers, timeout=30), 404)
    if server_of_kind is not server:
        return  # the WSGI server corrects all paths itself
    for path in ("//admin/", "//v1/runtime/jobs", "///v0/server/version", "//v0", "//x//v0/server/version"):
        assert requests.get(f"{url}{path}", timeout=30, allow_redirects=False).status_code == 404


def test_options_needs_no_credentials(server):
    response = requests.options(f"{server.url}/v0/runners", timeout=30)
    assert (response.status_code, response.text) == (200, "null")


def test_a_runner_key_opens_what_is_for_workers_and_nothing_of_people(server):
    runner = RunnerFactory()
    headers = {"Authorization": f"Bearer {runner.token}"}
    assert message_of(requests.get(f"{server.url}/v0/runners", headers=headers, timeout=30), 400)
    assert requests.get(f"{server.url}/v1/jobs", headers=headers, timeout=30).status_code == 403
    assert requests.post(f"{server.url}/v1/runtime/leases", json={}, headers=headers, timeout=30).status_code == 400
    assert runner.token not in server.log()


def test_a_large_report_is_streamed_whole(server, headers):
    """The server sends pages of metrics as the client reads, without knowing the length before."""
    project = ProjectFactory(visibility="public")
    names = [f"benchmark {number}" for number in range(7)]
    results = json.dumps({name: {"latency": {"value": 1.5}, "throughput": {"value": 2}} for name in names})
    made = report(project, *[results] * 90)
    url = f"{server.url}/v0/projects/{project.uuid}/reports/{made.uuid}"
    response = requests.get(url, timeout=60)
    assert response.json() == json.loads(json.dumps(serialize_report(made)))
    assert "content-length" not in response.headers
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-total-count"] == "1"
    assert response.headers["access-control-allow-origin"] == "*"
    with requests.get(url, stream=True, timeout=60) as cut:
        assert cut.raw.read(100)
    assert requests.get(f"{server.url}/v0/runners", headers=headers, timeout=30).status_code == 200
