"""The credentials of an open stream are checked again: each way in which they may have lost their right."""

from dataclasses import replace
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone

from orchestrator.http.auth.credentials import Credential, revoked_among
from runtime_jobs.models import ApiToken, Membership
from runtime_jobs.models.tenants import Scope
from tests.factories import OrganizationFactory, api_token

pytestmark = pytest.mark.django_db


@pytest.fixture
def organization():
    return OrganizationFactory(slug="sandtrace")


@pytest.fixture
def tokens(organization):
    for _ in range(3):
        api_token(organization, (Scope.JOBS_READ,))
    return [
        Credential(f"token:{pk}", "", "sandtrace", counts_for_organization=True)
        for pk in ApiToken.objects.values_list("pk", flat=True)
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"revoked_at": timezone.now()},
        {"expires_at": timezone.now() - timedelta(seconds=1)},
        {"scopes": [Scope.JOBS_WRITE]},
    ],
    ids=["revoked", "expired", "scope"],
)
def test_a_token_that_lost_its_right(tokens, change, django_assert_num_queries):
    ApiToken.objects.filter(pk=tokens[0].key.removeprefix("token:")).update(**change)
    with django_assert_num_queries(1):
        assert revoked_among(tokens) == {tokens[0]}


def test_a_token_that_was_deleted_or_is_of_another_organization(tokens):
    ApiToken.objects.filter(pk=tokens[0].key.removeprefix("token:")).delete()
    OrganizationFactory(slug="another")
    foreign = Credential(tokens[1].key, "", "another", counts_for_organization=True)
    assert revoked_among([*tokens, foreign]) == {tokens[0], foreign}


def test_a_stream_needs_its_own_scope(tokens):
    of_events = [replace(token, scope=Scope.ORCH_READ) for token in tokens]
    ApiToken.objects.filter(pk=tokens[0].key.removeprefix("token:")).update(scopes=[Scope.ORCH_READ])
    assert revoked_among([*tokens, *of_events]) == {tokens[0], *of_events[1:]}


def test_a_member_must_be_one_of_all_organizations(user, session):
    other = OrganizationFactory(slug="other")
    both = replace(session, further_organizations=("other",), scope=Scope.ORCH_READ)
    assert revoked_among([both]) == {both}
    Membership.objects.create(user=user, organization=other)
    assert revoked_among([both]) == set()


def test_staff_read_every_organization_as_long_as_they_are_staff(user, session):
    every = replace(session, org_slug="", scope=Scope.ORCH_READ)
    assert revoked_among([every]) == {every}
    user.is_staff = True
    user.save()
    assert revoked_among([every]) == set()


@pytest.fixture
def user(organization):
    made = get_user_model().objects.create_user("mia", password="correct horse battery")
    Membership.objects.create(user=made, organization=organization)
    return made


@pytest.fixture
def session(user):
    client = Client()
    client.force_login(user)
    return Credential(f"user:{user.pk}", client.cookies["sessionid"].value, "sandtrace", counts_for_organization=True)


def logs_out(_user):
    Session.objects.all().delete()


def expires(_user):
    Session.objects.update(expire_date=timezone.now() - timedelta(seconds=1))


def leaves(user):
    user.memberships.all().delete()


def is_locked(user):
    user.is_active = False
    user.save()


def changes_password(user):
    user.set_password("another horse battery")
    user.save()


@pytest.mark.parametrize("loss", [logs_out, expires, leaves, is_locked, changes_password])
def test_a_person_who_lost_the_right(user, session, loss):
    assert revoked_among([session]) == set()
    loss(user)
    assert revoked_among([session]) == {session}


def test_a_session_counts_for_its_own_person_and_only_where_that_is_a_member(user, session):
    other = Credential("user:0", session.session_key, "sandtrace", counts_for_organization=True)
    assert revoked_among([other]) == {other}
    stranger = Credential(session.key, session.session_key, "another", counts_for_organization=True)
    assert revoked_among([stranger]) == {stranger}
    user.is_staff = True
    user.save()
    assert revoked_among([stranger]) == set(), "staff see every tenant"
