"""Environment variables reach the settings with the intended values."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from config.paths import BASE_DIR

SHOW = """
import json, sys
from django.conf import settings
print(json.dumps({name: getattr(settings, name) for name in sys.argv[1:]}, default=str))
"""


def settings(tmp_path: Any, *names: str, **variables: str) -> dict[str, Any]:
    """The settings of a process that has these variables and no others of ours."""
    environment = {"PATH": os.environ["PATH"], "STATE_DIR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "config.settings"}
    command = [sys.executable, "-c", SHOW, *names]
    checked = subprocess.run(
        command, env=environment | variables, cwd=BASE_DIR, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    return json.loads(checked.stdout)


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


def test_a_database_url_may_name_several_hosts_with_their_ports(tmp_path):
    """libpq tries them in order, for example the two servers of a replicated database."""
    url = "postgres://role:p@one:5432,two:5433/name?target_session_attrs=read-write"
    found = settings(tmp_path, "DATABASES", DATABASE_URL=url)["DATABASES"]["default"]
    assert (found["HOST"], found["PORT"], found["NAME"]) == ("one,two", "5432,5433", "name")


def test_a_number_may_have_an_exponent(tmp_path):
    assert settings(tmp_path, "AGING_SECONDS", AGING_SECONDS="1e3")["AGING_SECONDS"] == 1000


@pytest.mark.parametrize("url", ["postgres://role:ses#ame@one:5432/name", "postgres://role@[::1]:5432/name"])
def test_a_database_url_may_have_an_unquoted_password_or_an_ipv6_address(tmp_path, url):
    found = settings(tmp_path, "DATABASES", DATABASE_URL=url)["DATABASES"]["default"]
    assert (found["HOST"] in {"one", "::1"}, found["PORT"], found["NAME"]) == (True, 5432, "name")


@pytest.mark.parametrize("name", ["LEASE_TTL_SECONDS", "CLOCK_PERIOD_SECONDS"])
def test_a_value_that_is_no_number_is_refused_by_name(tmp_path, name):
    with pytest.raises(AssertionError, match=name):
        settings(tmp_path, name, **{name: "soon"})


BAD_VALUES = [
    ("LEASE_TTL_SECONDS", "abc", "LEASE_TTL_SECONDS='abc': a whole number is needed"),
    ("CLOCK_PERIOD_SECONDS", "soon", "CLOCK_PERIOD_SECONDS='soon': a number is needed"),
    ("BREAKER_FAILURES", "50%", "BREAKER_FAILURES='50%': a number is needed"),
    ("AGING_SECONDS", "inf", "AGING_SECONDS='inf': a number is needed"),
    ("GIT_MIRRORS", '{"https://a/": "https://x:sesame@b/",}', "GIT_MIRRORS: JSON is needed (Expecting property name"),
    ("BEHIND_PROXY", "maybe", "BEHIND_PROXY='maybe': yes or no is needed"),
    ("LOG_LEVEL", "loud", "LOG_LEVEL='loud': one of DEBUG, INFO"),
    ("DATABASE_POOL_MAX", "0", "DATABASE_POOL_MAX=0: a number from 1"),
    ("DATABASE_ROLE", "dba", "DATABASE_ROLE='dba': one of api, clock, housekeeping, dispatcher, migrate is needed"),
    ("DATABASE_URL", "postgres://u:sesame@127.0.0.1:99999/x", "postgres://user@host:5432/name is needed"),
    ("DATABASE_URL", "postgres://u:sesame@one:5432,two:0/x", "postgres://user@host:5432/name is needed"),
    ("SECRET_KEY_FILE", "/nonexistent", "SECRET_KEY_FILE: cannot read /nonexistent"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD_VALUES)
def test_a_bad_value_is_one_line_of_the_command(tmp_path, name, value, message):
    environment = {"PATH": os.environ["PATH"], "STATE_DIR": str(tmp_path), name: value}
    command = [sys.executable, "manage.py", "check"]
    found = subprocess.run(command, env=environment, cwd=BASE_DIR, capture_output=True, text=True, check=False)
    assert (found.returncode, len(found.stderr.splitlines())) == (1, 1), found.stderr
    assert message in found.stderr
    assert "sesame" not in found.stderr


def test_settings_start_nothing(tmp_path):
    settings(tmp_path, "DATABASES")
    assert [item.name for item in tmp_path.iterdir()] == ["secret_key"]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, True),
        ({"PUBLIC_URL": "http://localhost:8000"}, True),
        ({"PUBLIC_URL": "http://[::1]:8000"}, True),
        ({"PUBLIC_URL": "https://o.example"}, False),
        ({"PUBLIC_URL": "http://192.0.2.1"}, False),
        ({"PUBLIC_URL": "https://o.example", "ANONYMOUS_RUNS": "yes"}, True),
        ({"ANONYMOUS_RUNS": "no"}, False),
    ],
)
def test_anonymous_runs_are_accepted_on_this_machine_or_if_the_operator_says_so(tmp_path, variables, expected):
    assert settings(tmp_path, "ANONYMOUS_RUNS", **variables) == {"ANONYMOUS_RUNS": expected}


HSTS = ("SECURE_HSTS_SECONDS", "SECURE_HSTS_INCLUDE_SUBDOMAINS", "SECURE_HSTS_PRELOAD")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, [0, False, False]),
        ({"HSTS_INCLUDE_SUBDOMAINS": "yes", "HSTS_PRELOAD": "yes"}, [0, False, False]),
        ({"PUBLIC_URL": "https://o.example"}, [31536000, False, False]),
        ({"PUBLIC_URL": "https://o.example", "HSTS_INCLUDE_SUBDOMAINS": "yes"}, [31536000, True, False]),
        (
            {"PUBLIC_URL": "https://o.example", "HSTS_INCLUDE_SUBDOMAINS": "yes", "HSTS_PRELOAD": "yes"},
            [31536000, True, True],
        ),
    ],
)
def test_hsts_binds_this_host_alone_unless_the_operator_says_more(tmp_path, variables, expected):
    """The domain is the operator's, and so are the other servers below it, which may have no https."""
    assert list(settings(tmp_path, *HSTS, **variables).values()) == expected


def check_deploy(tmp_path, **variables):
    command = [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"]
    environment = {"PATH": os.environ["PATH"], "STATE_DIR": str(tmp_path), "PUBLIC_URL": "https://o.example"}
    return subprocess.run(
        command, env=environment | variables, cwd=BASE_DIR, capture_output=True, text=True, check=False
    )


def test_the_check_for_deployment_takes_the_default_and_refuses_half_a_choice(tmp_path):
    checked = check_deploy(tmp_path)
    assert checked.returncode == 0, checked.stderr
    checked = check_deploy(tmp_path, HSTS_PRELOAD="yes")
    assert checked.returncode == 1
    assert "HSTS_PRELOAD has no effect without HSTS_INCLUDE_SUBDOMAINS" in checked.stderr
