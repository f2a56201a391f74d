"""A body is one JSON object in UTF-8, or it is refused and nothing has happened."""

import codecs
import copy
import functools
import gzip
import json

import pytest

from tests.api_client import refused
from tests.factories import SUBMIT_BODY

pytestmark = pytest.mark.django_db
JOBS = "/v1/runtime/jobs"
WHOLE = json.dumps(SUBMIT_BODY)
BOMB = gzip.compress(b" " * (16 << 20))


def with_command(word: str) -> bytes:
    """The example's body with these bytes as they are in the place of a JSON value."""
    return WHOLE.replace('"pnpm"', word).encode("utf-8", "surrogatepass")


MALFORMED = {
    "nothing but a word": b"hello",
    "half an object": b'{"org_slug": ',
    "two objects": b"{} {}",
    "a list": b"[]",
    "null": b"null",
    "a string": b'"x"',
    "a number": b"7",
    "only spaces": b"  ",
    "deep lists": b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "deep objects": b'{"a": ' * 5000 + b"1" + b"}" * 5000,
    "deep, but not deep enough for the parser's own limit": b'{"a": ' + b"[" * 70 + b"]" * 70 + b"}",
    "a hundred thousand open brackets": b"[" * 100_000,
    "NUL in a string": with_command('"a\\u0000b"'),
    "NUL in a key": b'{"a\\u0000": 1}',
    "a raw NUL": with_command('"a\0b"'),
    "half a surrogate pair": with_command('"\\ud800"'),
    "half a surrogate pair in a key": b'{"\\udfff": 1}',
    "surrogates in UTF-8": with_command('"\ud800"'),
    "a key twice": b'{"org_slug": "sandtrace", ' + WHOLE.encode()[1:],
    "a key twice, spelled differently": b'{"org_\\u0073lug": "sandtrace", ' + WHOLE.encode()[1:],
    "a key twice, deep inside": WHOLE.replace('"pnpm"', '{"a": 1, "a": 1}').encode(),
    "NaN": WHOLE.replace("300", "NaN").encode(),
    "Infinity": WHOLE.replace("300", "Infinity").encode(),
    "minus Infinity": WHOLE.replace("300", "-Infinity").encode(),
    "1e400": WHOLE.replace("300", "1e400").encode(),
    "a number of 5000 digits": WHOLE.replace("300", "9" * 5000).encode(),
    "a number of 20 digits": WHOLE.replace("300", "9" * 20).encode(),
    "a byte order mark": codecs.BOM_UTF8 + WHOLE.encode(),
    "UTF-16": WHOLE.encode("utf-16"),
    "UTF-16 without a mark": WHOLE.encode("utf-16-le"),
    "UTF-32": WHOLE.encode("utf-32"),
    "Latin-1": WHOLE.replace("pnpm", "pnpmé").encode("latin-1"),
    "overlong UTF-8": with_command('"x"').replace(b'"x"', b'"\xc0\xaf"'),
    "a control character as it is": WHOLE.replace("pnpm", "pn\npm").encode(),
    "a comment": WHOLE.encode() + b"// end",
    "a trailing comma": WHOLE.encode()[:-1] + b",}",
    "single quotes": WHOLE.replace('"', "'").encode(),
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED)
def test_what_is_not_one_json_object_is_malformed(alice, raw):
    refused(lambda: alice.post(JOBS, raw), 400, "malformed_json")


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED)
def test_it_is_malformed_where_every_field_is_optional_too(wendy, raw):
    refused(
        lambda: wendy.post("/v1/runtime/leases/rtl_01kkygn4z3fkef0g4tgm6g3b1j/heartbeat", raw), 400, "malformed_json"
    )


def test_64_levels_are_deep_enough_for_anybody(alice):
    raw = b'{"a": ' + b"[" * 62 + b"]" * 62 + b"}"
    assert "a" in refused(lambda: alice.post(JOBS, raw), 400, "unknown_field")["errors"]


@pytest.mark.parametrize("size", [(1 << 20) + 1, 12 << 20])
def test_a_body_above_one_mebibyte_is_too_large(alice, size):
    raw = WHOLE.encode().ljust(size)
    assert refused(lambda: alice.post(JOBS, raw), 413, "payload_too_large")["limit"] == 1 << 20


def test_a_body_of_one_mebibyte_is_not(alice):
    assert alice.post(JOBS, WHOLE.encode().ljust(1 << 20)).status_code == 201


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "text/html",
        "application/xml",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json; charset=utf-16",
        "application/json; charset=rot13",
        "application/json; charset=zlib",
        "application/json; charset=latin-1",
        "application/json; charset=x-utf-8-x",
        "application/merge-patch+json",
        "*/*",
        "application/*",
        "json",
        "",
    ],
)
def test_a_body_that_is_not_called_json_is_not_read(alice, kind):
    refused(lambda: alice.post(JOBS, SUBMIT_BODY, content_type=kind), 415, "unsupported_media_type")


@pytest.mark.parametrize(
    "kind", ["application/json; charset=UTF-8", 'application/json; charset="utf-8"', "Application/JSON"]
)
def test_utf_8_may_be_named(alice, kind):
    assert alice.post(JOBS, SUBMIT_BODY, content_type=kind).status_code == 201


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "identity, gzip", "GZIP", "x"])
def test_no_compressed_body_is_unpacked(alice, encoding):
    answer = alice.post(JOBS, BOMB, **{"Content-Encoding": encoding})
    problem = refused(lambda: answer, 415, "unsupported_media_type")
    assert problem["detail"] == f"Content-Encoding: '{encoding}' is not supported. Send the body without compression."
    assert answer["Accept-Encoding"] == "identity"


def test_an_encoding_that_changes_nothing_is_accepted(alice):
    assert alice.post(JOBS, SUBMIT_BODY, **{"Content-Encoding": "Identity"}).status_code == 201


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "application/x-www-form-urlencoded"])
def test_an_empty_body_equals_an_empty_object(alice, kind):
    errors = refused(lambda: alice.post(JOBS, b"", content_type=kind), 400, "invalid")["errors"]
    assert errors == {name: ["This field is required."] for name in SUBMIT_BODY}


def fields(value, path=()):
    """Every place of a value in a body."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield (*path, name)
            yield from fields(inner, (*path, name))


WRONG_TYPES = {str: [7, 7.5, True, [], {}], int: ["7", 7.0, True, [], {}], bool: [1, 0, "true", "1", [], {}]}
WRONG_TYPES |= {list: ["x", 1, True, {}, [1], [None], [["x"]]], dict: ["x", 1, True, [], [{}]]}


def value_at(body, path):
    return functools.reduce(lambda place, name: place[name], path, body)


def changed(path, value):
    body = copy.deepcopy(SUBMIT_BODY)
    value_at(body, path[:-1])[path[-1]] = value
    return body


WRONG = [(path, wrong) for path in fields(SUBMIT_BODY) for wrong in WRONG_TYPES[type(value_at(SUBMIT_BODY, path))]]


@pytest.mark.parametrize(("path", "wrong"), WRONG, ids=[f"{'.'.join(p)}={json.dumps(w)}" for p, w in WRONG])
def test_a_value_is_of_its_type_and_not_made_so(alice, path, wrong):
    body = changed(path, wrong)
    errors = refused(lambda: alice.post(JOBS, body), 400, "invalid")["errors"]
    assert any(name.startswith(".".join(path)) for name in errors), errors


@pytest.mark.parametrize(
    "path",
    [
        ("status",), ("fence",), ("org_id",), ("ingest_run_id",), ("retry_of_job_ulid",), ("weight",), ("created_at",),
        ("is_admin",), ("env",), ("pool",), ("__class__",), ("",), ("ORG_SLUG",), ("source", "token"),
        ("source", "installation_id"), ("execution", "env"), ("execution", "image"), ("trigger", "id"),
    ],
    ids=".".join,
)  # fmt: skip
def test_an_unknown_field_is_refused_by_name(alice, path):
    problem = refused(lambda: alice.post(JOBS, changed(path, "x")), 400, "unknown_field")
    assert problem["errors"] == {".".join(path) or "body": ["Unknown field."]}
