"""The users of the admin: a superuser, an operator of jobs, and a viewer. And their browser."""

from collections.abc import Iterator

import pytest
from django.contrib.auth.models import Permission, User
from django.core.cache import cache
from django.test import Client

from tests.orchestrator.admin.chromium import Chromium, Tab
from tests.orchestrator.admin.fixtures import Scene, busy

NAME = "olga"


@pytest.fixture(autouse=True)
def empty_cache():
    """The login's counts and the theme's search live in it."""
    cache.clear()


def person(name: str, *permissions: str, **rest: object) -> User:
    user = User.objects.create(username=name, is_staff=True, **rest)
    wanted = [permission.split(".") for permission in permissions]
    for app, codename in wanted:
        user.user_permissions.add(Permission.objects.get(content_type__app_label=app, codename=codename))
    return user


def client_of(user: User, **rest: object) -> Client:
    client = Client(**rest)
    client.force_login(user)
    return client


@pytest.fixture
def olga(db) -> Client:
    """A superuser's browser."""
    return client_of(person(NAME, is_superuser=True))


@pytest.fixture
def operator(db) -> Client:
    return client_of(person("otto", "runtime_jobs.view_job", "runtime_jobs.operate_job"))


@pytest.fixture
def viewer(db) -> Client:
    return client_of(person("vera", "runtime_jobs.view_job", "workers.view_worker", "runtime_jobs.view_apitoken"))


@pytest.fixture
def scene(db) -> Scene:
    return busy()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture
def browser(chromium: Chromium, live_server) -> Iterator[Tab]:
    """A superuser's tab, logged in."""
    client = client_of(person(NAME, is_superuser=True))
    with chromium.tab() as found:
        found.show()
        found.cookie("sessionid", client.cookies["sessionid"].value, live_server.url)
        yield found
