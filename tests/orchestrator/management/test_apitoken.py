"""`manage.py apitoken`: API tokens of organizations."""

import io
import json
import re

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from runtime_jobs.models import ApiToken, OperatorEvent
from tests.factories import OrganizationFactory
from workers.registry.tokens import digest_of

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def organization():
    return OrganizationFactory(slug="acme")


def apitoken(*arguments: str) -> str:
    output = io.StringIO()
    call_command("apitoken", *arguments, stdout=output)
    return output.getvalue().removesuffix("\n")


def test_the_token_is_printed_alone_and_works():
    token = apitoken("--org", "acme", "--scopes", "jobs:read,jobs:write", "orch:read", "--name", "ci")
    assert re.fullmatch(r"rto_api_\S{40,}", token)
    row = ApiToken.objects.get()
    assert (row.name, row.scopes, row.expires_at) == ("ci", ["jobs:read", "jobs:write", "orch:read"], None)
    assert row.digest == digest_of(token)
    assert Client().get("/v1/jobs", headers={"Authorization": f"Bearer {token}"}).status_code == 200


def test_json_has_the_token_and_what_it_permits():
    created = json.loads(apitoken("--org", "acme", "--scopes", "orch:quota", "--days", "2", "--json"))
    assert set(created) == {"token", "org_slug", "name", "scopes", "expires_at"}
    assert (created["org_slug"], created["scopes"]) == ("acme", ["orch:quota"])
    row = ApiToken.objects.get(digest=digest_of(created["token"]))
    assert row.expires_at.isoformat() == created["expires_at"]


def test_the_event_belongs_to_the_organization_and_has_no_token():
    token = apitoken("--org", "acme", "--scopes", "orch:read")
    event = OperatorEvent.objects.get()
    assert (event.action, event.actor, event.org_slug) == ("token.created", "operator:manage.py apitoken", "acme")
    assert token not in str((event.before, event.after, event.target))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--org", "nil", "--scopes", "orch:read"], "There is no organization 'nil'"),
        (["--org", "acme", "--scopes", "orch:all"], "There is no scope 'orch:all'. The scopes are jobs:read"),
        (["--org", "acme", "--scopes", "orch:read", "--days", "0"], "--days must be at least 1"),
        (["--org", "acme"], "the following arguments are required: --scopes"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(arguments, message):
    with pytest.raises(CommandError, match=re.escape(message)):
        apitoken(*arguments)
    assert not ApiToken.objects.exists()
