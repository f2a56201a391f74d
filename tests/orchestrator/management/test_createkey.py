"""`manage.py createkey`: keys of people and projects for the Bencher API."""

import io
import re

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client

from runtime_jobs.models import ApiToken, OperatorEvent, PersonalKey
from tests.factories import OrganizationFactory, ProjectFactory
from workers.registry.tokens import digest_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def root():
    return User.objects.create(username="root", is_staff=True, is_superuser=True)


def createkey(*arguments: str) -> str:
    output = io.StringIO()
    call_command("createkey", *arguments, stdout=output)
    return output.getvalue().removesuffix("\n")


def status(key: str) -> int:
    return Client().get("/v0/runners", headers={"Authorization": f"Bearer {key}"}).status_code


def test_a_personal_key_is_printed_alone(root):
    key = createkey("--user", "root", "--name", "laptop")
    assert re.fullmatch(r"bencher_user_[0-9A-Za-z]{30}", key)
    row = PersonalKey.objects.get()
    assert (row.name, row.expires_at, row.digest) == ("laptop", None, digest_of(key))
    assert status(key) == 200


def test_a_json_web_token_has_three_parts_and_an_end(root):
    token = createkey("--user", "root", "--jwt", "--days", "2")
    assert token.count(".") == 2
    row = PersonalKey.objects.get()
    assert round((row.expires_at - row.created_at).total_seconds() / 86400, 1) == 2.0
    assert status(token) == 200


def test_the_key_of_a_project(root):
    ProjectFactory(organization=OrganizationFactory(slug="acme"))
    key = createkey("--project", "acme/web")
    assert re.fullmatch(r"bencher_run_[0-9A-Za-z]{30}", key)
    assert str(ApiToken.objects.get().project) == "acme/web"


@pytest.mark.parametrize("arguments", [["--user", "root"], ["--user", "root", "--jwt"], ["--project", "acme/web"]])
def test_a_key_is_revoked_by_itself(root, arguments, monkeypatch):
    ProjectFactory(organization=OrganizationFactory(slug="acme"))
    key = createkey(*arguments)
    monkeypatch.setattr("sys.stdin", io.StringIO(key + "\n"))
    assert createkey("--revoke").startswith("revoked: createkey (")
    rows = [*PersonalKey.objects.all(), *ApiToken.objects.all()]
    assert [row.revoked_at is not None for row in rows] == [True]
    event = OperatorEvent.objects.latest("pk")
    assert (event.actor, event.reason) == ("operator:manage.py createkey", "manage.py createkey --revoke")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--user", "nil"], "No user has the name 'nil'"),
        (["--project", "acme"], "There is no project 'acme'"),
        (["--project", "acme/nil"], "Name it as ORG/PROJECT"),
        (["--project", "acme/web", "--jwt"], "--jwt needs --user"),
        (["--user", "root", "--days", "0"], "--days must be at least 1"),
        ([], "one of the arguments --user --project --revoke is required"),
        (["--revoke"], "is no key of this installation"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(root, arguments, message, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("bencher_user_x\n"))
    with pytest.raises(CommandError, match=re.escape(message)):
        createkey(*arguments)
    assert not PersonalKey.objects.exists()
    assert not ApiToken.objects.exists()
