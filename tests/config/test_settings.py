"""What stands in the environment reaches the settings, as it was meant."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from config.places import BASE_DIR

SHOW = """
import json, sys
from django.conf import settings
print(json.dumps({name: getattr(settings, name) for name in sys.argv[1:]}, default=str))
"""


def settings(tmp_path: Any, *names: str, **variables: str) -> dict[str, Any]:
    """The settings of a process that has these variables and no others of ours."""
    environment = {"PATH": os.environ["PATH"], "STATE_DIR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "config.settings"}
    command = [sys.executable, "-c", SHOW, *names]
    told = subprocess.run(
        command, env=environment | variables, cwd=BASE_DIR, capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)


def test_a_secret_may_come_from_a_file_that_ends_with_a_newline(tmp_path):
    (tmp_path / "token").write_text("abc \n")
    (tmp_path / "url").write_text("postgres://role@host/name\n")
    variables = {"METRICS_TOKEN_FILE": str(tmp_path / "token"), "DATABASE_URL_FILE": str(tmp_path / "url")}
    found = settings(tmp_path, "METRICS_TOKEN", "DATABASES", **variables)
    assert found["METRICS_TOKEN"] == "abc "
    assert (found["DATABASES"]["default"]["HOST"], found["DATABASES"]["default"]["NAME"]) == ("host", "name")


def test_what_the_query_of_the_database_url_says_is_kept(tmp_path):
    url = "postgres://role@/name?host=/run/socket&sslmode=verify-full&connect_timeout=9"
    options = settings(tmp_path, "DATABASES", DATABASE_URL=url)["DATABASES"]["default"]["OPTIONS"]
    assert (options["host"], options["sslmode"], options["connect_timeout"]) == ("/run/socket", "verify-full", 9)
    assert options["pool"]


@pytest.mark.parametrize("name", ["LEASE_TTL_SECONDS", "CLOCK_PERIOD_SECONDS"])
def test_a_value_that_is_no_number_is_refused_by_name(tmp_path, name):
    with pytest.raises(AssertionError, match=name):
        settings(tmp_path, name, **{name: "soon"})


def test_settings_start_nothing(tmp_path):
    settings(tmp_path, "DATABASES")
    assert [item.name for item in tmp_path.iterdir()] == ["secret_key"]
