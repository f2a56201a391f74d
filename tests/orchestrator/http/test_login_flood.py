"""Forty log-ins at once without an account do not affect the API and /readyz, under ASGI and WSGI."""

import re
import threading
from contextlib import contextmanager

import pytest
import requests

from orchestrator.core.clock_beat import ClockBeat
from orchestrator.http.auth.login_attempts import PER_NAME_AND_NETWORK
from orchestrator.http.auth.password_hashing import MAX_CONCURRENT_HASHES, MAX_WAITING_HASHES
from runtime_jobs.db_time import database_now
from tests.factories import SUBMIT_BODY, OrganizationFactory, ProjectFactory, api_token, scheduler_beat
from tests.live_server import eventually, serving

pytestmark = pytest.mark.django_db(transaction=True)
ATTEMPTS = 40


@contextmanager
def flooded(folder, database_url, kind, *, names, networks):
    """A server with so many logins under way, whose hashes do not end before the file `release` is there."""
    environment = {
        "DATABASE_URL": database_url,
        "DJANGO_SETTINGS_MODULE": "tests.orchestrator.http.held_hashing",
        "HASHING_FOLDER": str(folder),
        "BEHIND_PROXY": "true",
        "LOGIN_QUEUE": str(2 * ATTEMPTS),  # one client may fill half of it
        "SECRET_KEY": "one key for all processes of an installation",
    }
    with serving(folder, kind=kind, **environment) as server:
        answers = []

        def attempt(number):
            with requests.Session() as session:
                form = session.get(f"{server.url}/login/", timeout=90).text
                token = re.search(r'csrfmiddlewaretoken" value="(\w+)"', form).group(1)
                arrived.wait(90)
                data = {"username": names(number), "password": "guess", "csrfmiddlewaretoken": token}
                headers = {"X-Forwarded-For": networks(number)}
                answers.append(session.post(f"{server.url}/login/", data, headers=headers, timeout=90))

        arrived = threading.Barrier(ATTEMPTS + 1)
        threads = [threading.Thread(target=attempt, args=[number]) for number in range(ATTEMPTS)]
        for thread in threads:
            thread.start()
        arrived.wait(90)
        try:
            yield server, answers
        finally:
            (folder / "release").touch()
            for thread in threads:
                thread.join(90)


@pytest.fixture
def token():
    organization = OrganizationFactory(slug="sandtrace")
    ProjectFactory(organization=organization)
    scheduler_beat(database_now())
    return api_token(organization)


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_forty_logins_of_forty_networks_leave_the_api_alone(tmp_path, database_url, token, kind):
    everybody = {"names": lambda number: f"user-{number}", "networks": lambda number: f"198.51.100.{number}"}
    with flooded(tmp_path, database_url, kind, **everybody) as (server, answers):
        # As many are refused at once as find no place; the others hash, or wait for it, until `release`.
        eventually(lambda: len(answers) >= ATTEMPTS - MAX_CONCURRENT_HASHES - MAX_WAITING_HASHES, 60)
        for number in range(5):
            ClockBeat.objects.update(beat_at=database_now())
            assert requests.get(f"{server.url}/readyz", timeout=60).status_code == 200
            headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": str(number)}
            job = requests.post(f"{server.url}/v1/runtime/jobs", json=SUBMIT_BODY, headers=headers, timeout=60)
            assert job.status_code == 201
        assert len(list(tmp_path.glob("begun-*"))) == MAX_CONCURRENT_HASHES
    assert len(answers) == ATTEMPTS
    assert {answer.status_code for answer in answers} <= {200, 429}
    assert all("Retry-After" in answer.headers for answer in answers if answer.status_code == 429)


def test_all_processes_count_together(tmp_path, database_url, token):
    """Forty guesses at one name at each of two servers: the first hashes as many as the limit says, the other none."""
    folders, statuses = [tmp_path / "a", tmp_path / "b"], []
    for folder in folders:
        folder.mkdir()
        (folder / "release").touch()
        guesses = {"names": lambda _: "olga", "networks": lambda _: "198.51.100.1"}
        with flooded(folder, database_url, "asgi", **guesses) as (_, answers):
            pass
        statuses.append([answer.status_code for answer in answers])
    assert [len(list(folder.glob("begun-*"))) for folder in folders] == [PER_NAME_AND_NETWORK, 0]
    assert sorted(statuses[0]) == [200] * PER_NAME_AND_NETWORK + [429] * (ATTEMPTS - PER_NAME_AND_NETWORK)
    assert statuses[1] == [429] * ATTEMPTS
