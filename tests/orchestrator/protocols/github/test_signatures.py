"""Senders without a valid signature learn nothing; everything wrong is a 4xx in the form of the native API."""

import hashlib
import hmac
import json
from urllib.parse import urlencode

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from orchestrator.protocols.github import authentication
from orchestrator.services.credentials import WEBHOOK_PREFIX, webhook_secret
from runtime_jobs.models import OperatorEvent, Project
from tests.api_client import problem_of
from tests.db_snapshot import nothing_lost
from tests.factories import OrganizationFactory, ProjectFactory
from tests.orchestrator.protocols.github.conftest import PATH, deliver, new_secret, payload, ready, signature

pytestmark = pytest.mark.django_db
RAW = json.dumps(payload("pull_request.opened")).encode()


def refused(call, status, code):
    with nothing_lost():
        response = call()
    document = problem_of(response)
    assert (response.status_code, document["code"]) == (status, code), document
    return response


def test_the_address_is_the_contracts():
    assert reverse("github-webhook") == PATH == "/api/v1/webhooks/github"


def test_without_any_secret_the_door_is_not_there_yet(project):
    response = refused(lambda: deliver("ping", "x"), 503, "webhook_not_configured")
    assert int(response["Retry-After"]) > 0


def test_a_secret_stays_the_same_from_release_to_release(settings):
    """GitHub has a copy: a secret that is derived in another way makes all webhooks of an installation fail."""
    settings.SECRET_KEY = "the key of an installation"
    secret = webhook_secret(Project(pk=7, webhook_generation=2))
    assert secret == "rto_hook_0ea3c28ff507191d56c2eb2389530a8b7e718d93922c5b1c67db705cb53a690a"


def sha1(raw, secret):
    return hmac.new(secret.encode(), raw, hashlib.sha1).hexdigest()


@pytest.mark.parametrize(
    "forge",
    [
        lambda _secret: None,
        lambda _secret: "",
        lambda _secret: "sha256=",
        lambda _secret: "sha256=" + "0" * 64,
        lambda _secret: signature("another", RAW),
        lambda secret: signature(secret, RAW + b" "),
        lambda secret: signature(secret, RAW).upper(),
        lambda secret: signature(secret, RAW).removeprefix("sha256="),
        lambda secret: signature(secret, RAW) + "\u00e9",
        lambda secret: signature(secret, RAW) + ", " + signature(secret, RAW),
        lambda secret: signature(secret, RAW)[:-1],
        lambda secret: f"sha1={sha1(RAW, secret)}",
        lambda secret: f"md5={sha1(RAW, secret)}",
    ],
)
def test_a_wrong_signature_is_one_answer(secret, forge):
    sent = forge(secret)
    response = refused(
        lambda: deliver("pull_request.opened", "", raw=RAW, changes={"X-Hub-Signature-256": sent}),
        401,
        "unauthenticated",
    )
    assert response["WWW-Authenticate"]


def test_sha1_does_not_count_in_its_own_header_either(secret):
    changes = {"X-Hub-Signature-256": None, "X-Hub-Signature": f"sha1={sha1(RAW, secret)}"}
    refused(lambda: deliver("pull_request.opened", "", raw=RAW, changes=changes), 401, "unauthenticated")


def refusal(response):
    return response.status_code, problem_of(response) | {"request_id": ""}, response["WWW-Authenticate"]


def test_nobody_learns_which_repositories_are_known(secret):
    """A wrong signature, an unknown repository, another's project with one's own secret: one answer."""
    theirs = new_secret(ProjectFactory(organization=OrganizationFactory(slug="intruder"), repositories=["intruder/x"]))
    unknown = payload("pull_request.opened")
    unknown["repository"] = {"full_name": "no/body"}
    with nothing_lost():
        answers = [
            refusal(deliver("pull_request.opened", "wrong")),
            refusal(deliver("pull_request.opened", "wrong", body=unknown)),
            refusal(deliver("pull_request.opened", secret, body=unknown)),
            refusal(deliver("pull_request.opened", theirs)),
            refusal(deliver("pull_request.opened", secret, raw=b"no json")),
            refusal(deliver("pull_request.opened", secret, raw=b"")),
        ]
    assert answers == [answers[0]] * 6


@pytest.mark.parametrize("listed", ["cc-consulting-nv/web2", "xcc-consulting-nv/web", "xcc-consulting-nv/*"])
def test_a_secret_does_not_speak_for_a_repository_of_a_similar_name(db, listed):
    theirs = new_secret(ready("intruder", repositories=[listed]))
    refused(lambda: deliver("pull_request.opened", theirs), 401, "unauthenticated")


def test_the_signature_is_over_the_bytes_as_they_came(secret):
    """The same JSON written otherwise is another body; so is the form's payload without its form."""
    raw = json.dumps(payload("pull_request.opened"), indent=7, ensure_ascii=True, sort_keys=True).encode()
    spaced = {"X-Hub-Signature-256": signature(secret, RAW)}
    refused(lambda: deliver("pull_request.opened", "", raw=raw, changes=spaced), 401, "unauthenticated")
    assert deliver("pull_request.opened", secret, raw=raw).status_code == 201
    refused(lambda: deliver("pull_request.opened", "", form=True, changes=spaced), 401, "unauthenticated")


def test_a_new_secret_ends_the_old_one(project, secret):
    new = new_secret(project)
    assert secret.startswith(WEBHOOK_PREFIX)
    assert new != secret
    refused(lambda: deliver("ping", secret), 401, "unauthenticated")
    assert deliver("ping", new).status_code == 202
    events = OperatorEvent.objects.filter(action="project.webhook_secret_rotated").order_by("id")
    assert [event.after["webhook_generation"] for event in events] == [1, 2]
    assert not [event for event in events if new in str([event.before, event.after, event.reason])]


def test_a_secret_is_stored_nowhere_and_differs_by_project_and_key(settings, project, secret):
    other = ready("other")
    assert new_secret(other) != secret
    assert secret == webhook_secret(Project.objects.get(pk=project.pk))
    old, settings.SECRET_KEY = settings.SECRET_KEY, "another key of fifty and more characters, as it should be"
    refused(lambda: deliver("ping", secret), 401, "unauthenticated")
    settings.SECRET_KEY_FALLBACKS = [old]
    assert deliver("ping", secret).status_code == 202


def test_a_project_that_never_had_a_secret_is_signed_by_nothing(project):
    new_secret(ready("other"))
    refused(lambda: deliver("ping", ""), 401, "unauthenticated")
    refused(lambda: deliver("ping", webhook_secret(project)), 401, "unauthenticated")


def stranger(number: int = 0) -> dict:
    """A ping of an unknown repository, another one for each number."""
    return payload("ping") | {"repository": {"full_name": f"stranger/web-{number}"}}


def test_who_goes_on_with_wrong_signatures_waits(settings, secret):
    settings.BAD_TOKENS_PER_MINUTE = 3
    for _ in range(3):
        refused(lambda: deliver("ping", "wrong", body=stranger()), 401, "unauthenticated")
    response = refused(lambda: deliver("ping", "wrong", body=stranger()), 429, "rate_limited")
    assert 0 < int(response["Retry-After"]) <= 60


def test_another_repository_each_time_is_no_way_around_the_throttle(settings, secret, monkeypatch):
    """The name is the sender's choice: each was a search over all projects and an HMAC of up to 1 MiB."""
    settings.BAD_TOKENS_PER_MINUTE = 3
    searched = []
    monkeypatch.setattr(authentication, "projects_of", lambda name: searched.append(name) or [])
    statuses = [
        deliver("ping", "wrong", body=stranger(number), changes={"X-GitHub-Hook-ID": str(number)}).status_code
        for number in range(10)
    ]
    assert statuses == [401] * 3 + [429] * 7
    assert len(searched) == 3


def test_another_address_is_another_count(settings, secret):
    settings.BAD_TOKENS_PER_MINUTE = 1
    settings.BEHIND_PROXY = True
    for address, status in (("198.51.100.1", 401), ("198.51.100.1", 429), ("198.51.100.2", 401)):
        response = deliver("ping", "wrong", body=stranger(), changes={"X-Forwarded-For": address})
        assert response.status_code == status
    assert deliver("ping", secret, changes={"X-Forwarded-For": "198.51.100.3"}).status_code == 202


def test_a_hook_that_signed_correctly_lately_is_admitted_while_its_address_is_throttled(settings, secret):
    """GitHub's addresses are everybody's: a stranger's hook, made with a wrong secret, floods from them too."""
    settings.BAD_TOKENS_PER_MINUTE = 3
    assert deliver("ping", secret).status_code == 202
    for _ in range(3):
        assert deliver("ping", "wrong", body=stranger(), changes={"X-GitHub-Hook-ID": "1"}).status_code == 401
    assert deliver("ping", secret).status_code == 202
    for hook in ("2", None, "292430182 ", "x"):
        assert deliver("ping", secret, changes={"X-GitHub-Hook-ID": hook}).status_code == 429


def test_a_hook_s_number_is_no_secret_and_admits_one_wrong_signature_only(settings, secret):
    settings.BAD_TOKENS_PER_MINUTE = 1
    assert deliver("ping", secret).status_code == 202
    refused(lambda: deliver("ping", "wrong"), 401, "unauthenticated")
    for _ in range(3):
        refused(lambda: deliver("ping", "wrong"), 429, "rate_limited")


def test_a_flood_is_refused_before_its_body_is_parsed_and_the_database_is_asked(settings, secret, monkeypatch):
    settings.BAD_TOKENS_PER_MINUTE = 1
    refused(lambda: deliver("ping", "wrong"), 401, "unauthenticated")
    for name in ("signed_body", "peek"):
        monkeypatch.setattr(authentication, name, None)
    with CaptureQueriesContext(connection) as queries:
        response = deliver("ping", "wrong")
    assert (response.status_code, problem_of(response)["code"]) == (429, "rate_limited")
    assert [query["sql"] for query in queries] == []


# --- signed, and wrong all the same -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-GitHub-Event", None),
        ("X-GitHub-Event", ""),
        ("X-GitHub-Event", "x" * 65),
        ("X-GitHub-Event", "push pull"),
        ("X-GitHub-Delivery", ""),
        ("X-GitHub-Delivery", "x" * 65),
        ("X-GitHub-Delivery", "a b"),
        ("X-GitHub-Delivery", "\u00e9"),
    ],
)
def test_a_header_that_makes_no_sense_is_named(github, name, value):
    response = refused(lambda: github("push.branch", changes={name: value}), 400, "invalid")
    assert list(problem_of(response)["errors"]) == [name]


MALFORMED = {
    "half": b'{"repository": {"full_name": "cc-consulting-nv/web"}',
    "a list": b"[]",
    "only spaces": b"  ",
    "NUL": b'{"ref": "a\\u0000", "repository": {"full_name": "cc-consulting-nv/web"}}',
    "half a pair": b'{"ref": "\\ud800", "repository": {"full_name": "cc-consulting-nv/web"}}',
    "a key twice": b'{"a": 1, "a": 2, "repository": {"full_name": "cc-consulting-nv/web"}}',
    "a huge number": b'{"number": 99999999999999999999, "repository": {"full_name": "cc-consulting-nv/web"}}',
    "a number of 5000 digits": b'{"number": ' + b"9" * 5000 + b"}",
    "NaN": b'{"number": NaN, "repository": {"full_name": "cc-consulting-nv/web"}}',
    "deep": b'{"repository": {"full_name": "cc-consulting-nv/web"}, "a": ' + b"[" * 70 + b"]" * 70 + b"}",
    "deeper than any parser": b'{"a": ' + b"[" * 100_000,
    "Latin-1": b'{"a": "\xe9"}',
}


@pytest.mark.parametrize("form", [False, True], ids=["json", "form"])
@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED)
def test_what_is_not_one_json_object_is_malformed(settings, db, raw, form):
    settings.GITHUB_WEBHOOK_SECRET = "of the whole installation"
    if form:
        raw = urlencode({"payload": raw}).encode()
    refused(lambda: deliver("push", settings.GITHUB_WEBHOOK_SECRET, raw=raw, form=form), 400, "malformed_json")


@pytest.mark.parametrize(
    "raw",
    [
        *(b"payload={}&payload={}", b"other={}", b"payload={}&x=1", b"payload", b"&", b"payload=%FF", b"payload=\xff"),
        *(b"payload=%00", b"a=1&" * 100_000),
    ],
)
def test_a_form_has_one_field(settings, db, raw):
    settings.GITHUB_WEBHOOK_SECRET = "of the whole installation"
    refused(lambda: deliver("push", settings.GITHUB_WEBHOOK_SECRET, raw=raw, form=True), 400, "malformed_json")


def test_hostile_values_come_out_as_invalid_by_their_path(github):
    body = payload("push.branch")
    body["ref"] = "refs/heads/--upload-pack=x y"
    response = refused(lambda: github("push.branch", body=body), 400, "invalid")
    assert list(problem_of(response)["errors"]) == ["ref"]
    body = payload("pull_request.opened")
    body["number"] = "98"
    response = refused(lambda: github("pull_request.opened", body=body), 400, "invalid")
    assert list(problem_of(response)["errors"]) == ["number"]


@pytest.mark.parametrize(
    "kind", ["text/plain", "multipart/form-data; boundary=x", "", "application/json; charset=utf-16"]
)
def test_another_kind_of_body_is_refused(settings, db, kind):
    settings.GITHUB_WEBHOOK_SECRET = "of the whole installation"
    response = deliver("push", settings.GITHUB_WEBHOOK_SECRET, raw=RAW, content_type=kind)
    assert (response.status_code, problem_of(response)["code"]) == (415, "unsupported_media_type")


def test_a_body_of_more_than_a_mebibyte_is_refused(settings, github):
    settings.BODY_LIMIT_BYTES = settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 4 << 20
    response = refused(lambda: github("push.branch", raw=b" " * ((1 << 20) + 1)), 413, "payload_too_large")
    assert problem_of(response)["limit"] == 1 << 20
    body = payload("push.branch") | {"padding": ""}
    body["padding"] = "x" * ((1 << 20) - len(json.dumps(body, ensure_ascii=False).encode()))
    assert github("push.branch", body=body).status_code == 201, "exactly one is not too much"


def test_a_query_is_refused(github, secret):
    sent = {"X-GitHub-Event": "ping", "X-Hub-Signature-256": signature(secret, RAW)}
    response = Client().generic("POST", f"{PATH}?x=1", RAW, content_type="application/json", headers=sent)
    assert (response.status_code, problem_of(response)["code"]) == (400, "invalid_query")
