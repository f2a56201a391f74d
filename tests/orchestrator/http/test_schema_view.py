"""The contract that is written down is the one that is served: the OpenAPI file, the table of codes, the closed lists."""

import ast
import importlib
import itertools
import json
import re
from pathlib import Path

import jsonschema_rs
import pytest
import yaml
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiYamlRenderer

from orchestrator.http.errors.error_codes import CODES
from orchestrator.http.errors.problems import TITLES
from orchestrator.protocols.native.serializers import ACTOR_KINDS
from runtime_jobs.errors import LifecycleError
from runtime_jobs.event_types import JOB_EVENT_TYPES
from tests.api_client import Caller, refused
from tests.openapi_document import FILE, openapi_document

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("runtime_jobs", "leases", "workers/registry", "orchestrator")
SOURCES = [
    path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")) if "migrations" not in path.parts
]
DOCUMENT = openapi_document()
OPERATIONS = [
    pytest.param(path, method, operation, id=operation["operationId"])
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]
INTERNAL = "/api/v1/internal/"  # document 001's runners
DELTA = (INTERNAL, "/api/v1/runs")  # its errors in its envelope, unknown fields ignored
SHITHUB = ("/api/v1/runners/", "/api/v1/jobs/", "/api/v1/runs/{run_id}")  # document 003: its own envelope and tokens
BENCHER = "/v0/"  # document 002: its own envelope, and other codes; unknown fields ignored
OF_CALLERS = ([{"workerToken": []}], [{"apiToken": []}, {"session": []}])
_BY_WORKERS = [{"workerToken": []}, {"workerCertificate": []}]
OF_SIGNERS = [[{"githubSignature": []}]]
OF_RUNNERS = (_BY_WORKERS, [*_BY_WORKERS, {}])
OF_JOBS = [[{"identityRequestToken": []}]]
PUBLIC = [{}]
COMMON_CODES = {"busy", "rate_limited"}


def within(part):
    """The names of the components that a part of the document consists of."""
    for name in re.findall("'#/components/schemas/([A-Za-z]+)'", str(part)):
        yield name
        yield from within(DOCUMENT["components"]["schemas"][name])


IGNORANT = {
    name
    for path, methods in DOCUMENT["paths"].items()
    if path.startswith((*DELTA, BENCHER))
    for method in ("post", "patch")
    for name in within(methods.get(method, {}).get("requestBody"))
}


def test_the_committed_document_is_the_served_one():
    served = SchemaGenerator().get_schema(request=None, public=True)
    written = OpenApiYamlRenderer().render(served, renderer_context={}).decode()
    assert FILE.read_text() == written, "run manage.py spectacular --file docs/openapi.yaml"


@pytest.mark.django_db
def test_it_is_made_once_and_takes_no_parameters(monkeypatch):
    Caller().get("/v1/schema")
    monkeypatch.setattr(SchemaGenerator, "get_schema", None)
    assert Caller().get("/v1/schema").status_code == 200
    refused(lambda: Caller().get("/v1/schema?lang=de"), 400, "invalid_query")


@pytest.mark.django_db
def test_it_is_served_to_anybody_and_shown_in_the_browser():
    served = yaml.load(Caller().get("/v1/schema").content, Loader=yaml.CSafeLoader)
    assert served["paths"].keys() == DOCUMENT["paths"].keys()
    page = Caller().get("/v1/docs")
    assert page.status_code == 200
    assert re.findall(r"<script(?![^>]* src=)[^>]*>\s*\S", page.content.decode()) == [], (
        "no inline script passes our CSP"
    )


def codes_in(tree):
    """Every (status, code) in the source as two constants side by side, as in `Refusal(404, "not_found")`."""
    for node in ast.walk(tree):
        values = node.args if isinstance(node, ast.Call) else node.elts if isinstance(node, ast.Tuple) else []
        pairs = list(itertools.pairwise(values))
        if isinstance(node, ast.Dict):
            pairs += [(key, value) for key, value in zip(node.keys, node.values, strict=True) if key is not None]
        for first, second in pairs:
            constants = [one.value for one in (first, second) if isinstance(one, ast.Constant)]
            if len(constants) == 2 and isinstance(constants[0], int) and 400 <= constants[0] < 600:
                yield tuple(constants)


def test_every_code_in_the_source_is_in_the_table_with_its_status():
    found = {
        pair
        for path in SOURCES
        for pair in codes_in(ast.parse(path.read_text()))
        if re.fullmatch("[a-z]+(_[a-z]+)*", str(pair[1]))
    }
    assert len(found) > 15
    assert {(status, code) for status, code in found if CODES.get(code, (None,))[0] != status} == set()


def test_every_error_of_the_core_is_in_the_table():
    for path in SOURCES:
        if path.name in {"errors.py", "runs.py"}:
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))

    def kinds(kind):
        yield from (one for below in kind.__subclasses__() for one in (below, *kinds(below)))

    found = {kind.code for kind in kinds(LifecycleError)}
    assert len(found) > 15
    assert found - set(CODES) == set()


def test_every_code_of_the_table_is_documented_once_as_it_is():
    rows = re.findall(r"^\| `([a-z_]+)` \| (\d{3}) \| (.*) \|$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert [(code, int(status), when) for code, status, when in rows] == [(code, *CODES[code]) for code in CODES]
    assert {status for status, _ in CODES.values()} <= set(TITLES)


@pytest.mark.parametrize(("path", "method", "operation"), OPERATIONS)
def test_every_operation_says_what_it_takes_and_answers(path, method, operation):
    assert re.fullmatch("[a-z]+(_[a-z]+)+", operation["operationId"])
    assert operation["description"]
    if path.startswith(SHITHUB):
        assert operation["security"] in ([{"registrationToken": []}], [{"jobToken": []}], [{"apiToken": []}])
    elif path.startswith(BENCHER):
        assert all(name.startswith("bencher") for scheme in operation["security"] for name in scheme)
    else:
        assert operation["security"] in (
            OF_RUNNERS
            if path.startswith(INTERNAL)
            else OF_SIGNERS
            if path.startswith("/api/v1/webhooks/")
            else OF_JOBS
            if path == "/v1/identity/token"
            else [PUBLIC]
            if path.startswith(("/.well-known/", "/v1/objects/", "/v1/keys"))
            else OF_CALLERS
        )
    result = {
        code for answer in operation["responses"].values() for code in re.findall("`([a-z_]+)`", answer["description"])
    }
    assert result >= COMMON_CODES
    is_public = operation["security"] == PUBLIC
    assert path.startswith(BENCHER) or ("unauthenticated" in result) != is_public
    assert path.startswith((BENCHER, *SHITHUB)) or "invalid_query" in result
    of_people = not is_public and operation["security"] not in OF_JOBS
    assert path.startswith((BENCHER, *SHITHUB)) or ("wrong_principal" in result) == of_people
    takes_json = "application/octet-stream" not in operation.get("requestBody", {}).get("content", {})
    assert ("malformed_json" in result) == (method in {"post", "patch", "put"} and takes_json)
    for status, answer in operation["responses"].items():
        assert "X-Request-Id" in answer["headers"]
        assert ("Retry-After" in answer["headers"]) == (status in {"429", "503"})
        errors = "application/json" if path.startswith((*DELTA, *SHITHUB, BENCHER)) else "application/problem+json"
        # A document that GraphQL's own rules refuse has its errors in GraphQL's media type.
        of_graphql = ["application/graphql-response+json"] if (path, status) == ("/api/graphql", "400") else []
        assert status < "400" or list(answer["content"]) == [errors, *of_graphql]


# Once for all examples: its components are many, and each shows few of them.
COMPONENTS = "urn:components"


@pytest.fixture(scope="module")
def registry():
    document = json.loads(json.dumps({"components": DOCUMENT["components"]}))
    return jsonschema_rs.Registry([(COMPONENTS, document)])


def validator_of(schema, registry):
    referring = json.dumps(schema).replace('"#/components/', f'"{COMPONENTS}#/components/')
    return jsonschema_rs.validator_for(json.loads(referring), registry=registry)


@pytest.mark.parametrize(("path", "method", "operation"), OPERATIONS)
def test_every_example_is_of_its_schema(registry, path, method, operation):
    bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
    contents = [content for body in bodies for content in body.get("content", {}).values()]
    shown = [(content["schema"], one["value"]) for content in contents for one in content.get("examples", {}).values()]
    for schema, value in shown:
        validator_of(schema, registry).validate(value)
    if path.startswith(("/v1/runtime", "/v1/jobs", *DELTA)) and not path.endswith("logs"):
        assert shown, "no example"


@pytest.mark.parametrize(
    "name", [name for name, schema in DOCUMENT["components"]["schemas"].items() if "properties" in schema]
)
def test_nothing_is_taken_or_answered_that_is_not_named(name):
    schema = DOCUMENT["components"]["schemas"][name]
    if name in IGNORANT:
        assert schema.get("additionalProperties") == {}
    else:
        assert schema.get("additionalProperties") is False


def test_the_closed_lists_of_events_and_actors_are_those_of_the_core():
    texts = "\n".join(path.read_text() for path in SOURCES if {"services", "evidence"} & {*path.parts})
    claim = (ROOT / "leases" / "sql" / "claim.sql").read_text()  # it writes events by itself
    found = re.findall(r'"((?:job|lease)\.[a-z_]+)"', texts) + re.findall(r"'((?:job|lease)\.[a-z_]+)'", claim)
    assert set(found) == set(JOB_EVENT_TYPES)
    actors = "\n".join(path.read_text() for path in SOURCES)
    assert set(re.findall(r'Actor\("([a-z]+)"', actors)) <= set(ACTOR_KINDS)
