"""The addresses that the command line reads before each command."""

import pytest
from django.test import Client

pytestmark = pytest.mark.django_db


def test_the_version_is_that_of_the_api_that_this_server_has():
    response = Client().get("/v0/server/version")
    assert (response.status_code, response.json()) == (200, {"version": "0.6.12"})


def test_the_console_is_this_server(settings):
    settings.PUBLIC_URL = "https://orchestrator.example"
    response = Client().get("/v0/server/config/console")
    assert (response.status_code, response.json()) == (200, {"url": "https://orchestrator.example/"})


@pytest.mark.parametrize("path", ["/v0/server/version", "/v0/server/config/console"])
def test_credentials_are_ignored(path, runner):
    for key in ("x", runner.token, "bencher_user_" + "x" * 30):
        assert Client().get(path, headers={"Authorization": f"Bearer {key}"}).status_code == 200
