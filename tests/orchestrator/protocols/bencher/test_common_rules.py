"""Contract 2.0: envelope, statuses of bad requests, headers of successes, OPTIONS, pages, filters, ids, times."""

import re
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from django.test import Client

from runtime_jobs.identifiers import uuid_of
from tests.factories import HardwareSpecFactory, RunnerFactory, WorkerFactory
from tests.orchestrator.protocols.bencher.conftest import ABSENT, CORS_OF_ERRORS, error_of, refused
from workers.models import HardwareSpec, Worker

pytestmark = pytest.mark.django_db
BODY = {"name": "a"}


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v0/", "/v0/nowhere", "/v0/runners/", "/v0/runners/a/b/c/d", "/v0/runners/a/keys"])
def test_an_unknown_route_is_404(ada, path):
    refused(lambda: ada.get(path), 404)


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/v0/runners", "GET, POST, OPTIONS"),
        ("DELETE", "/v0/runners/rack-7", "GET, PATCH, OPTIONS"),
        ("HEAD", "/v0/specs", "GET, POST, OPTIONS"),
        ("GET", "/v0/runners/rack-7/key", "POST, OPTIONS"),
        ("PATCH", "/v0/runners/rack-7/specs/a", "DELETE, OPTIONS"),
        ("POST", "/v0/specs/a", "GET, PATCH, DELETE, OPTIONS"),
    ],
)
def test_a_wrong_method_is_405_with_allow(ada, runner, method, path, allow):
    response = ada.call(method, path)
    assert response.status_code == 405
    assert response["Allow"] == allow
    if method != "HEAD":
        error_of(response, 405)


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'"a"', b"", b"\xff", b'{"name": "a", "name": "b"}', b'{"name": "\\u0000"}', b"{" * 100]
)
def test_a_body_that_is_no_json_object_is_400(ada, body):
    refused(lambda: ada.post("/v0/runners", body), 400)


def test_another_content_type_is_400(ada):
    message = refused(lambda: ada.post("/v0/runners", BODY, content_type="text/plain"), 400)
    assert message == "Content-Type: Must be application/json."


def test_a_missing_content_type_is_json(ada):
    assert ada.post("/v0/runners", BODY, content_type="").status_code == 201


def test_a_compressed_body_is_400(ada):
    message = refused(lambda: ada.post("/v0/runners", BODY, **{"Content-Encoding": "gzip"}), 400)
    assert message == "Content-Encoding: 'gzip' is not supported. Send the body without compression."


@pytest.mark.parametrize("accept", ["text/html", "application/xml", "nonsense"])
def test_accept_is_ignored(ada, accept):
    response = ada.get("/v0/runners", Accept=accept)
    assert (response.status_code, response["Content-Type"]) == (200, "application/json")
    error_of(ada.get("/v0/runners/absent", Accept=accept), 404)


def test_a_body_over_the_limit_is_400_with_the_limit(ada, settings):
    settings.BODY_LIMIT_BYTES = 1000
    message = refused(lambda: ada.post("/v0/runners", {"name": "a", "x": "y" * 1000}), 400)
    assert message == "request body exceeded maximum size of 1000 bytes"


def test_unknown_fields_and_query_parameters_are_ignored(ada):
    assert ada.post("/v0/runners?x=1", BODY | {"x": {"y": [1]}}).status_code == 201
    assert ada.get("/v0/runners?x=1&x=2&format=html").status_code == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": None}, "name"),
        ({"name": 7}, "name"),
        ({"name": ""}, "name"),
        ({"name": " a"}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"name": "ä" * 33}, "name"),
        ({"name": "a", "slug": "A"}, "slug"),
        ({"name": "a", "slug": ""}, "slug"),
        ({"name": "a", "slug": ["a"]}, "slug"),
    ],
)
def test_a_bad_value_is_400_and_names_the_field(ada, body, field):
    message = refused(lambda: ada.post("/v0/runners", body), 400)
    assert message.startswith(f"{field}: ")


def test_the_request_id_of_a_client_is_that_of_the_error(ada):
    document = error_of(ada.get("/v0/runners/absent", **{"X-Request-Id": "mine"}), 404)
    assert document["request_id"] == "mine"


def test_an_error_before_the_views_has_the_envelope_too():
    response = Client().get("/v0/nowhere?token=bencher_runner_" + "x" * 30)
    assert "Revoke it" in error_of(response, 400)["message"]


def test_an_unexpected_error_says_nothing(ada, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("secret detail")

    monkeypatch.setattr("orchestrator.services.runners.create_runner", fail)
    assert "secret" not in error_of(ada.post("/v0/runners", BODY), 500)["message"]


# --- headers ----------------------------------------------------------------------------------------------------------


def headers_of(response) -> dict[str, str]:
    return {name: response[name] for name in CORS_OF_ERRORS} | {"x-total-count": response["x-total-count"]}


@pytest.mark.parametrize(
    ("method", "path", "body", "total"),
    [
        ("GET", "/v0/runners", None, "1"),
        ("GET", "/v0/specs?per_page=0", None, "1"),
        ("GET", "/v0/specs?name=x", None, "0"),
        ("POST", "/v0/runners", BODY, "1"),
        ("GET", "/v0/runners/rack-7", None, "1"),
        ("PATCH", "/v0/runners/rack-7", {}, "1"),
        ("GET", "/v0/runners/rack-7/specs", None, "1"),
        ("DELETE", "/v0/specs/two-cores", None, "0"),
    ],
)
def test_a_success_has_the_headers_of_its_method(ada, runner, spec, method, path, body, total):
    response = ada.call(method, path, body)
    assert 200 <= response.status_code < 300
    assert headers_of(response) == {
        "access-control-allow-origin": "*",
        "access-control-allow-methods": method,
        "access-control-allow-headers": "Content-Type, Authorization",
        "access-control-expose-headers": "X-Total-Count",
        "x-total-count": total,
    }
    assert response["x-request-id"]
    assert response["Cache-Control"] == "no-store"


def test_the_list_of_a_runners_specs_reports_one_and_has_no_pages(ada):
    runner = RunnerFactory(specs=[HardwareSpecFactory() for _ in range(12)])
    response = ada.get(f"/v0/runners/{runner.slug}/specs?per_page=2")
    assert (len(response.json()), response["x-total-count"]) == (12, "1")


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v0/runners", "GET, POST, OPTIONS"),
        ("/v0/runners/a", "GET, PATCH, OPTIONS"),
        ("/v0/runners/a/key", "POST, OPTIONS"),
        ("/v0/runners/a/token", "POST, OPTIONS"),
        ("/v0/runners/a/specs", "GET, POST, OPTIONS"),
        ("/v0/runners/a/specs/b", "DELETE, OPTIONS"),
        ("/v0/specs", "GET, POST, OPTIONS"),
        ("/v0/specs/a", "GET, PATCH, DELETE, OPTIONS"),
    ],
)
def test_options_needs_no_credentials_and_lists_the_methods(path, methods):
    response = Client().options(path)
    assert (response.status_code, response.content) == (200, b"null")
    assert response["Content-Type"] == "application/json"
    assert response["access-control-allow-methods"] == methods
    assert response["access-control-allow-origin"] == "*"


# --- lists ------------------------------------------------------------------------------------------------------------


def slugs(response) -> list[str]:
    assert response.status_code == 200, response.content
    return [item["slug"] for item in response.json()]


@pytest.fixture(params=["runners", "specs"])
def many(request, ada):
    """A list with 10 rows: b to j by name, a archived; the last created is the first by name."""
    factory = RunnerFactory if request.param == "runners" else HardwareSpecFactory
    at = datetime(2026, 1, 1, tzinfo=UTC)
    for number, name in enumerate("jihgfedcb"):
        factory(slug=f"slug-{name}", name=name.upper(), created_at=at + timedelta(days=number))
    archived = {"state": "archived"} if request.param == "runners" else {}
    factory(slug="slug-a", name="A", created_at=at + timedelta(days=20), archived_at=at, **archived)
    path = f"/v0/{request.param}"
    return lambda query="": ada.get(f"{path}?{query}")


def test_a_page_has_8_rows_by_name(many):
    response = many()
    assert slugs(response) == [f"slug-{name}" for name in "bcdefghi"]
    assert response["x-total-count"] == "9"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("sort=name&direction=desc&per_page=2", "ji"),
        ("sort=created&per_page=2", "bc"),
        ("sort=created&direction=asc&per_page=2", "ji"),
        ("per_page=255", "bcdefghij"),
        ("per_page=3&page=2", "efg"),
        ("per_page=3&page=0", "bcd"),
        ("per_page=3&page=4", ""),
        ("per_page=0", ""),
        ("page=4294967295&per_page=255", ""),
    ],
)
def test_a_list_is_sorted_and_paged(many, query, expected):
    response = many(query)
    assert slugs(response) == [f"slug-{name}" for name in expected]
    assert response["x-total-count"] == "9"


def test_ties_by_name_are_sorted_by_slug(ada):
    for slug in ("c", "a", "b"):
        HardwareSpecFactory(slug=slug, name="same")
    assert slugs(ada.get("/v0/specs")) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "query",
    [
        "sort=slug",
        "sort=",
        "direction=up",
        "per_page=256",
        "per_page=-1",
        "per_page=",
        "per_page=x",
        "per_page=1.0",
        "page=4294967296",
        "page=-1",
        "page=%C2%B2",
        "archived=yes",
        "archived=",
        "name=",
        "name=%20a",
        "page=1&page=2",
        "search=%00",
    ],
)
def test_a_bad_query_value_is_400_and_names_the_parameter(many, query):
    message = error_of(many(query), 400)["message"]
    assert message.startswith(f"{query.partition('=')[0]}: ")


def test_archived_means_archived_ones_as_well(many):
    assert slugs(many("archived=true&per_page=255")) == [f"slug-{name}" for name in "abcdefghij"]
    assert many("archived=false")["x-total-count"] == "9"


def test_name_is_exact(many):
    assert slugs(many("name=C")) == ["slug-c"]
    assert slugs(many("name=c")) == []


@pytest.mark.parametrize(
    ("text", "expected"), [("LUG-D", "d"), ("slug_f", "f"), ("s%25g-h", "h"), ("", "bcdefghi"), ("zz", "")]
)
def test_search_is_part_of_name_or_slug_in_any_case_with_wildcards(many, text, expected):
    assert slugs(many(f"search={text}")) == [f"slug-{name}" for name in expected]


def test_search_is_part_of_the_uuid(ada, runner, spec):
    for path, uuid in (("/v0/runners", uuid_of(runner.worker_id)), ("/v0/specs", spec.uuid)):
        text = str(uuid)
        for part in (text, text.upper(), text[4:30]):
            assert len(ada.get(f"{path}?search={part}").json()) == 1
        assert ada.get(f"{path}?search=zz{text}").json() == []


# --- ids and times ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("collection", ["runners", "specs"])
@pytest.mark.parametrize("bad", ["A", "a_b", "a--b", "-a", "x" * 65, "%C3%A4", "a%20b", "%00", "..x", "urn:uuid:x"])
def test_an_id_that_is_neither_uuid_nor_slug_is_400(ada, collection, bad):
    refused(lambda: ada.get(f"/v0/{collection}/{bad}"), 400)


@pytest.mark.parametrize("collection", ["runners", "specs"])
@pytest.mark.parametrize("absent", ["absent", ABSENT, "f" * 64])
def test_a_well_formed_id_of_nothing_is_404(ada, collection, absent):
    refused(lambda: ada.get(f"/v0/{collection}/{absent}"), 404)


@pytest.mark.parametrize("number", [0x99, 2**128 - 1, UUID("c232ab00-9414-11ec-b3c8-9f6bdeced846").int])
def test_a_uuid_of_any_version_is_found(ada, number):
    uuid = UUID(int=number)
    HardwareSpec.objects.filter(pk=HardwareSpecFactory().pk).update(uuid=uuid)
    for text in (str(uuid), str(uuid).upper(), uuid.hex):
        assert ada.get(f"/v0/specs/{text}").json()["uuid"] == str(uuid)


def test_a_runner_is_found_by_the_bits_of_its_worker_id(ada, runner):
    uuid = uuid_of(runner.worker_id)
    assert ada.get(f"/v0/runners/{uuid}").json()["uuid"] == str(uuid) == ada.get("/v0/runners/rack-7").json()["uuid"]


def test_a_new_uuid_is_of_version_7(ada):
    assert HardwareSpecFactory().uuid.version == 7


def test_times_are_in_utc_with_z_and_without_fractions(ada, runner, spec):
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    Worker.objects.update(created_at=at)
    HardwareSpec.objects.update(created_at=at)
    for path in ("/v0/runners/rack-7", "/v0/specs/two-cores"):
        document = ada.get(path).json()
        assert document["created"] == "2026-01-02T03:04:05Z"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", document["modified"])


def test_absent_and_null_in_a_change_are_no_change(ada, runner, spec):
    nulls = {"name": None, "slug": None, "archived": None}
    for path, body in (("/v0/runners/rack-7", nulls), ("/v0/specs/two-cores", nulls | {"fallback": None})):
        before = ada.get(path).json()
        for unchanged in ({}, body):
            after = ada.call("PATCH", path, unchanged).json()
            assert after | {"modified": 0} == before | {"modified": 0}


def test_a_worker_outside_of_the_runner_pool_is_no_runner(ada):
    worker_elsewhere = WorkerFactory(slug="build-01")
    assert ada.get("/v0/runners").json() == []
    refused(lambda: ada.get(f"/v0/runners/{worker_elsewhere.slug}"), 404)
    refused(lambda: ada.call("PATCH", f"/v0/runners/{worker_elsewhere.slug}", {"name": "b"}), 404)
    refused(lambda: ada.post(f"/v0/runners/{worker_elsewhere.slug}/key"), 404)
