"""The console's door: guessing is slow, and every refusal reads the same."""

import time

import pytest
from django.contrib.auth.models import User

from orchestrator.access.login import PER_ADDRESS, PER_NAME, PER_NAME_AND_ADDRESS, REFUSAL, WINDOW_SECONDS

PASSWORD = "correct horse battery"
DOOR = "/admin/login/"


@pytest.fixture(autouse=True)
def fast(settings):
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def olga(db) -> User:
    return User.objects.create_user("olga", password=PASSWORD, is_staff=True)


def knock(client, name="olga", password="wrong", address="198.51.100.1", **more):
    return client.post(DOOR, {"username": name, "password": password}, REMOTE_ADDR=address, **more)


def refusals(answer) -> list[str]:
    return [str(error) for error in answer.context["form"].non_field_errors()]


def test_the_right_password_opens(client, olga):
    assert knock(client, password=PASSWORD).status_code == 302


def test_every_refusal_reads_the_same(client, olga):
    User.objects.create_user("mia", password=PASSWORD)
    User.objects.create_user("gone", password=PASSWORD, is_staff=True, is_active=False)
    for name, password in (
        ("olga", "wrong"),
        ("nobody", PASSWORD),
        ("mia", PASSWORD),
        ("gone", PASSWORD),
        ("x" * 90, "y"),
    ):
        answer = knock(client, name, password)
        assert (answer.status_code, refusals(answer)) == (200, [REFUSAL]), name
    for _ in range(PER_NAME_AND_ADDRESS):
        knock(client)
    assert refusals(knock(client, password=PASSWORD)) == [REFUSAL]


def test_after_five_failures_the_right_password_waits_too(client, olga):
    for _ in range(PER_NAME_AND_ADDRESS):
        assert knock(client).status_code == 200
    assert knock(client, password=PASSWORD).status_code == 200
    assert knock(client, name="OLGA", password=PASSWORD).status_code == 200
    assert knock(client, password=PASSWORD, address="198.51.100.2").status_code == 302  # olga at home


def test_one_address_cannot_try_one_password_on_many_names(client, olga):
    for number in range(PER_ADDRESS):
        knock(client, name=f"user-{number}")
    assert knock(client, password=PASSWORD).status_code == 200


def test_many_addresses_cannot_try_many_passwords_on_one_name(client, olga):
    for number in range(PER_NAME):
        knock(client, address=f"198.51.{number // 250}.{number % 250}")
    assert knock(client, password=PASSWORD, address="203.0.113.1").status_code == 200


def test_behind_the_proxy_addresses_are_those_that_it_saw(client, olga, settings):
    """Else thirty wrong guesses of anybody would close the door to everybody."""
    settings.BEHIND_PROXY = True
    for number in range(PER_ADDRESS):
        knock(client, name=f"user-{number}", headers={"X-Forwarded-For": "198.51.100.7"})
    assert knock(client, password=PASSWORD, headers={"X-Forwarded-For": "198.51.100.7"}).status_code == 200
    assert knock(client, password=PASSWORD, headers={"X-Forwarded-For": "203.0.113.1"}).status_code == 302


def test_one_caller_s_ipv6_addresses_are_one(client, olga):
    for number in range(PER_ADDRESS):
        knock(client, name=f"user-{number}", address=f"2001:db8::{number:x}")
    assert knock(client, password=PASSWORD, address="2001:db8::ffff").status_code == 200


def test_a_full_count_costs_no_hash(client, olga, monkeypatch):
    for _ in range(PER_NAME_AND_ADDRESS):
        knock(client)

    def hashed(*_, **__):
        raise AssertionError("the password was hashed")

    monkeypatch.setattr("django.contrib.auth.forms.authenticate", hashed)
    assert refusals(knock(client)) == [REFUSAL]


def test_the_pause_ends(client, olga, monkeypatch):
    for _ in range(PER_NAME_AND_ADDRESS):
        knock(client)
    assert knock(client, password=PASSWORD).status_code == 200
    later = time.time() + WINDOW_SECONDS + 1
    monkeypatch.setattr("django.core.cache.backends.locmem.time.time", lambda: later)
    assert knock(client, password=PASSWORD).status_code == 302


def test_success_is_not_counted(client, olga):
    for _ in range(PER_NAME_AND_ADDRESS + 1):
        assert knock(client, password=PASSWORD).status_code == 302
        client.logout()


def test_the_door_wants_its_own_form(olga):
    from django.test import Client  # noqa: PLC0415 - only here

    assert knock(Client(enforce_csrf_checks=True), password=PASSWORD).status_code == 403
