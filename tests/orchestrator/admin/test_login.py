"""Log-in and password change: attempts are counted before hashing, and every refusal reads the same."""

import threading
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from orchestrator.http.auth import password_hashing
from orchestrator.http.auth.login import REFUSAL
from orchestrator.http.auth.login_attempts import (
    PER_NAME,
    PER_NAME_AND_NETWORK,
    PER_NETWORK,
    WINDOW_SECONDS,
    TooManyAttempts,
    counted_attempt,
)
from orchestrator.http.auth.password_hashing import BoundedArgon2, HashingBusy, HashingGate, release_connections
from orchestrator.limits.throttles import EXPIRED_ROWS_PER_WINDOW, ThrottleWindow
from runtime_jobs.db_time import database_now
from tests.orchestrator.limits.windows import expired_window

PASSWORD = "correct horse battery"
ADMIN, MEMBERS, CHANGE = "/admin/login/", "/login/", "/admin/password_change/"


@pytest.fixture(autouse=True)
def fast(settings):
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def olga(db) -> User:
    return User.objects.create_user("olga", password=PASSWORD, is_staff=True)


@pytest.fixture
def unhashed(monkeypatch):
    """From now on hashing a password fails the test."""

    def forbid():
        def hashed(*_, **__):
            raise AssertionError("the password was hashed")

        monkeypatch.setattr("django.contrib.auth.hashers.MD5PasswordHasher.encode", hashed)

    return forbid


def log_in(client, name="olga", password="wrong", address="198.51.100.1", page=ADMIN, **more):
    return client.post(page, {"username": name, "password": password}, REMOTE_ADDR=address, **more)


def change(client, old="wrong", new="another good password", address="198.51.100.1"):
    data = {"old_password": old, "new_password1": new, "new_password2": new}
    return client.post(CHANGE, data, REMOTE_ADDR=address)


def errors(answer) -> list[str]:
    return [str(error) for error in answer.context["form"].non_field_errors()]


def is_throttled(answer) -> bool:
    if answer.status_code != 429:
        return False
    assert 0 < int(answer["Retry-After"]) <= WINDOW_SECONDS
    assert b"Too many attempts" in answer.content
    return True


@pytest.mark.parametrize("page", [ADMIN, MEMBERS])
def test_the_right_password_opens(client, olga, page):
    assert log_in(client, password=PASSWORD, page=page).status_code == 302


def test_every_refusal_reads_the_same(client, olga):
    User.objects.create_user("mia", password=PASSWORD)
    User.objects.create_user("gone", password=PASSWORD, is_staff=True, is_active=False)
    for name, password in (("olga", "wrong"), ("nobody", PASSWORD), ("mia", PASSWORD), ("gone", PASSWORD)):
        answer = log_in(client, name, password)
        assert (answer.status_code, errors(answer)) == (200, [REFUSAL]), name


@pytest.mark.parametrize("page", [ADMIN, MEMBERS])
@pytest.mark.parametrize("name", ["olga", "nobody"])
def test_known_and_unknown_names_are_throttled_alike(client, olga, name, page, unhashed):
    for _ in range(PER_NAME_AND_NETWORK):
        answer = log_in(client, name, page=page)
        assert (answer.status_code, errors(answer)) == (200, [REFUSAL])
    unhashed()
    answer = log_in(client, name, PASSWORD, page=page)
    assert is_throttled(answer)
    assert errors(answer) == ["Too many attempts to log in. Try again in 5 minutes."]
    assert answer.context["form"]["username"].value() == name  # the page is the form


def test_the_limit_of_a_name_is_that_of_one_network(client, olga):
    for _ in range(PER_NAME_AND_NETWORK):
        assert log_in(client).status_code == 200
    assert is_throttled(log_in(client, password=PASSWORD))
    assert is_throttled(log_in(client, name="OLGA", password=PASSWORD))
    assert is_throttled(log_in(client, password=PASSWORD, page=MEMBERS))
    assert log_in(client, password=PASSWORD, address="198.51.100.2").status_code == 302


def test_one_network_cannot_try_one_password_on_many_names(client, olga, unhashed):
    for number in range(PER_NETWORK):
        assert log_in(client, name=f"user-{number}").status_code == 200
    unhashed()
    assert is_throttled(log_in(client, password=PASSWORD))


def test_an_attacker_with_many_networks_slows_a_user_down_and_does_not_lock_the_user_out(client, olga):
    for number in range(PER_NAME):
        assert log_in(client, address=f"198.51.{number // 250}.{number % 250}").status_code == 200
    assert log_in(client, password=PASSWORD, address="203.0.113.1").status_code == 302  # olga at home
    assert log_in(client, address="203.0.113.2").status_code == 200
    assert is_throttled(log_in(client, address="203.0.113.2"))  # a second guess from one network


def test_behind_the_proxy_addresses_are_those_that_it_saw(client, olga, settings):
    """Otherwise thirty wrong guesses of one client would lock out all others."""
    settings.BEHIND_PROXY = True
    for number in range(PER_NETWORK):
        log_in(client, name=f"user-{number}", headers={"X-Forwarded-For": "198.51.100.7"})
    assert is_throttled(log_in(client, password=PASSWORD, headers={"X-Forwarded-For": "198.51.100.7"}))
    assert log_in(client, password=PASSWORD, headers={"X-Forwarded-For": "203.0.113.1"}).status_code == 302


def test_one_caller_s_ipv6_addresses_are_one(client, olga):
    for number in range(PER_NETWORK):
        log_in(client, name=f"user-{number}", address=f"2001:db8::{number:x}")
    assert is_throttled(log_in(client, password=PASSWORD, address="2001:db8::ffff"))


def test_the_pause_ends(client, olga):
    for _ in range(PER_NAME_AND_NETWORK):
        log_in(client)
    assert is_throttled(log_in(client, password=PASSWORD))
    ThrottleWindow.objects.update(ends_at=database_now() - timedelta(seconds=1))
    assert log_in(client, password=PASSWORD).status_code == 302


def test_a_refused_attempt_makes_the_pause_no_longer(client, olga):
    for _ in range(PER_NAME_AND_NETWORK):
        log_in(client)
    kept = set(ThrottleWindow.objects.values_list("current", "ends_at"))
    for _ in range(3):
        assert is_throttled(log_in(client))
    assert set(ThrottleWindow.objects.values_list("current", "ends_at")) == kept


def test_success_is_not_counted(client, olga):
    for _ in range(PER_NAME_AND_NETWORK + 1):
        assert log_in(client, password=PASSWORD).status_code == 302
        client.logout()
    assert set(ThrottleWindow.objects.values_list("current", flat=True)) == {0}


def test_success_takes_back_no_earlier_failure(client, olga):
    """Else an account of one's own would be the way to guess another one's password without a pause."""
    User.objects.create_user("mallory", password=PASSWORD, is_staff=True)
    for _ in range(PER_NAME_AND_NETWORK):
        assert log_in(client).status_code == 200
        assert log_in(client, "mallory", PASSWORD).status_code == 302
        client.logout()
    assert is_throttled(log_in(client))


def test_an_incomplete_form_is_no_attempt(client, olga):
    for _ in range(PER_NAME_AND_NETWORK + 1):
        assert log_in(client, password="").status_code == 200
    assert not ThrottleWindow.objects.exists()


def test_names_are_not_stored(client, olga):
    log_in(client, name="my-password-in-the-wrong-field")
    keys = b"".join(bytes(row.key) for row in ThrottleWindow.objects.all())
    assert len(keys) == 3 * 32
    assert b"my-password" not in keys


def test_the_table_is_kept_small_by_the_attempts_themselves(client, olga):
    past = database_now() - timedelta(days=1)
    old = [expired_window(number, past) for number in range(100)]
    ThrottleWindow.objects.bulk_create(old)
    log_in(client)
    assert ThrottleWindow.objects.filter(ends_at=past).count() == 100 - 3 * EXPIRED_ROWS_PER_WINDOW
    for number in range(3):
        log_in(client, name=f"user-{number}")
    assert not ThrottleWindow.objects.filter(ends_at=past).exists()


def test_the_door_wants_its_own_form(olga):
    assert log_in(Client(enforce_csrf_checks=True), password=PASSWORD).status_code == 403
    assert not ThrottleWindow.objects.exists()


# --- the page that changes one's own password -------------------------------------------------------------------------


@pytest.fixture
def inside(client, olga):
    client.force_login(olga)
    return client


def test_the_own_password_can_be_changed(inside, olga):
    page = inside.get(CHANGE)
    assert b'name="old_password"' in page.content
    assert b'id="nav-sidebar' in page.content  # within the admin
    assert change(inside, PASSWORD).status_code == 302
    olga.refresh_from_db()
    assert olga.check_password("another good password")


def test_a_stolen_session_is_no_way_to_guess_the_password(inside, olga, unhashed):
    for _ in range(PER_NAME_AND_NETWORK):
        assert change(inside).status_code == 200
    unhashed()
    assert is_throttled(change(inside, PASSWORD))


def test_guesses_at_both_pages_count_together(inside, olga):
    for _ in range(PER_NAME_AND_NETWORK):
        log_in(Client())
    assert is_throttled(change(inside, PASSWORD))


def test_the_page_is_for_those_who_are_logged_in(client, db):
    answer = client.get(CHANGE)
    assert (answer.status_code, answer["Location"].partition("?")[0]) == (302, ADMIN)


# --- counted before, by all processes ---------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("counted", ["name", "network"])
def test_of_a_burst_no_more_are_hashed_than_the_limit_says(counted):
    """All are counted before the first hash ends: the barrier replaces the hashing."""
    most = PER_NAME_AND_NETWORK if counted == "name" else PER_NETWORK
    everybody = most + 5
    begun, done = threading.Barrier(everybody), threading.Barrier(everybody)
    hashed, refused = [], []

    def attempt(number):
        begun.wait(60)
        try:
            with counted_attempt(None, "olga" if counted == "name" else f"user-{number}"):
                hashed.append(number)
                release_connections()  # as the hasher does
                done.wait(60)
        except TooManyAttempts:
            refused.append(number)
            release_connections()
            done.wait(60)
        finally:
            release_connections()

    threads = [threading.Thread(target=attempt, args=[number]) for number in range(everybody)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(hashed) + len(refused) == everybody
    assert 0 < len(hashed) <= most
    assert max(ThrottleWindow.objects.values_list("current", flat=True)) == len(hashed)


def test_an_attempt_that_was_not_hashed_is_not_counted(db):
    with pytest.raises(TooManyAttempts), counted_attempt(None, "olga"):
        raise HashingBusy
    assert set(ThrottleWindow.objects.values_list("current", flat=True)) == {0}


# --- the gate in front of the hasher ----------------------------------------------------------------------------------


@pytest.fixture
def full_gate(monkeypatch):
    """A gate whose only slot is taken, and where nothing may wait."""
    gate = HashingGate(concurrent=1, waiting=0, wait_seconds=60)
    monkeypatch.setattr(password_hashing, "gate", gate)
    with gate.slot():
        yield gate


@pytest.fixture
def argon(settings):
    settings.PASSWORD_HASHERS = ["orchestrator.http.auth.password_hashing.BoundedArgon2"]


@pytest.mark.parametrize("name", ["olga", "nobody"])
def test_a_full_gate_is_answered_429_and_counts_nothing(client, olga, argon, full_gate, name):
    if name == "olga":
        olga.password = "argon2" + "$argon2id$v=19$m=102400,t=2,p=8$YWJjZGVmZ2g$" + "A" * 43
        olga.save()
    answer = log_in(client, name)
    assert is_throttled(answer)
    assert answer["Retry-After"] == str(HashingBusy.retry_after)
    assert set(ThrottleWindow.objects.values_list("current", flat=True)) == {0}


def test_a_page_without_a_count_is_readable_when_the_gate_is_full(client, argon, full_gate, db):
    chief = User.objects.create(username="chief", is_staff=True, is_superuser=True)
    client.force_login(chief)
    data = {
        "username": "new",
        "password1": "a good password",
        "password2": "a good password",
        "usable_password": "true",
    }
    answer = client.post("/admin/auth/user/add/", data)
    assert (answer.status_code, answer["Retry-After"]) == (429, "5")
    assert b"Nothing was changed" in answer.content
    assert not User.objects.filter(username="new").exists()


def test_the_gate_lets_so_many_hash_and_so_many_wait():
    gate = HashingGate(concurrent=2, waiting=3, wait_seconds=60)
    inside, refused = [], []
    arrived, leave = threading.Semaphore(0), threading.Event()

    def hashing():
        try:
            with gate.slot():
                inside.append(1)
                arrived.release()
                leave.wait(60)
                inside.pop()
        except HashingBusy:
            refused.append(1)
            arrived.release()

    threads = [threading.Thread(target=hashing) for _ in range(10)]
    for thread in threads:
        thread.start()
    for _ in range(7):  # two got in, five were refused; three wait
        assert arrived.acquire(timeout=60)
    assert (len(inside), len(refused)) == (2, 5)
    leave.set()
    for thread in threads:
        thread.join(60)
    assert (len(inside), len(refused)) == (0, 5)


def test_who_waits_too_long_is_refused_and_leaves_its_place():
    gate = HashingGate(concurrent=1, waiting=1, wait_seconds=0.01)
    with gate.slot():
        for _ in range(3):
            with pytest.raises(HashingBusy), gate.slot():
                pass
    with gate.slot():
        pass


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("method", ["encode", "verify"])
def test_no_connection_is_held_while_hashing(monkeypatch, method):
    held = []
    monkeypatch.setattr(
        f"django.contrib.auth.hashers.Argon2PasswordHasher.{method}", lambda *_: held.append(connection.connection)
    )
    ThrottleWindow.objects.count()
    assert connection.connection is not None
    getattr(BoundedArgon2(), method)("password", "some salt")
    assert held == [None]
    assert ThrottleWindow.objects.count() == 0  # a later one creates it again


def test_hashes_that_were_stored_before_still_count():
    from django.contrib.auth.hashers import Argon2PasswordHasher, check_password  # noqa: PLC0415 - only here

    stored = Argon2PasswordHasher().encode(PASSWORD, "abcdefghij")
    assert BoundedArgon2().verify(PASSWORD, stored)
    assert check_password("x", stored) is False
