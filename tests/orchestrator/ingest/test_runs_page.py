"""The list of runs and the way to it, for members of organizations, who have no console."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from orchestrator.http.auth.login_attempts import PER_NAME_AND_NETWORK
from orchestrator.services import job_end
from runtime_jobs.models import Membership
from tests.factories import OrganizationFactory, ProjectFactory, claimed, submitted

PASSWORD = "correct horse battery"

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def fast(settings):
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def mia() -> User:
    return User.objects.create_user("mia", password=PASSWORD)


def uploaded(organization, run_id: str, **changes) -> None:
    submitted(ProjectFactory(organization=organization), **changes)
    lease = claimed().lease
    job_end.complete(lease_ulid=lease.lease_ulid, worker=lease.worker, ingest_run_id=run_id)


def knock(client: Client, password: str = PASSWORD, **more):
    return client.post("/login/", {"username": "mia", "password": password, **more})


def test_a_member_logs_in_and_sees_the_runs_of_ones_own(client, mia):
    mine, theirs = OrganizationFactory(slug="mine"), OrganizationFactory(slug="theirs")
    uploaded(mine, "run_mine")
    uploaded(theirs, "run_theirs")
    submitted(ProjectFactory(organization=mine, slug="waits"))
    Membership.objects.create(user=mia, organization=mine)
    assert client.get("/runs/")["Location"] == "/login/?next=/runs/"
    assert knock(client)["Location"] == "/runs/"
    text = client.get("/runs/").content.decode()
    assert 'href="/runs/run_mine/"' in text
    assert "theirs" not in text
    assert "waits" not in text
    assert client.post("/logout/")["Location"] == "/login/"
    assert client.get("/runs/").status_code == 302


def test_staff_sees_every_run(client):
    uploaded(OrganizationFactory(slug="theirs"), "run_theirs")
    client.force_login(User.objects.create_user("olga", is_staff=True))
    assert "run_theirs" in client.get("/runs/").content.decode()


def test_a_command_is_shown_as_a_shell_would_take_it(client):
    uploaded(OrganizationFactory(slug="theirs"), "run_theirs", command=("sh", "-c", "sleep 100"))
    client.force_login(User.objects.create_user("olga", is_staff=True))
    assert "sh -c &#x27;sleep 100&#x27;" in client.get("/runs/").content.decode()


def test_a_user_without_an_organization_sees_a_message(client, mia):
    client.force_login(mia)
    assert "You are not a member of an organization" in client.get("/runs/").content.decode()


def test_the_door_leads_back_to_where_one_wanted_to_go_and_nowhere_else(client, mia):
    assert knock(client, next="/runs/run_x/")["Location"] == "/runs/run_x/"
    client.logout()
    assert knock(client, next="https://evil.example/")["Location"] == "/runs/"


def test_guessing_is_slow_here_too(client, mia):
    for _ in range(PER_NAME_AND_NETWORK):
        assert knock(client, "wrong").status_code == 200
    answer = knock(client)
    assert answer.status_code == 429
    assert "Too many attempts" in answer.content.decode()


def test_it_opens_no_console_to_a_member(client, mia):
    knock(client)
    assert client.get("/admin/")["Location"].startswith("/admin/login/")
