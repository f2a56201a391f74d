"""The suite's PostgreSQL: the one that DATABASE_URL names, else a throw-away cluster of this run's own.

Several runs may take place at the same time. The cluster is started by the first test that needs it, and stopped and deleted
by its keeper when this process ends, whatever ends it.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import hypothesis
import pytest

# A deadline for each example would measure the load of the machine: pytest's timeout ends a test that hangs.
hypothesis.settings.register_profile("suite", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("suite")

# The product's own limits are seconds of wall-clock time: on a loaded machine a transaction of many statements takes
# longer, and whoever waits for it is answered `busy`. A test of such a limit sets one for its own session.
TIMEOUTS = {"lock_timeout": "60s", "statement_timeout": "90s", "idle_in_transaction_session_timeout": "90s"}

# Before anything reads the settings; that is why the name of their module is here and not in pyproject.toml, from
# where pytest-django would load them before this file.
os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
GIVEN = bool(os.environ.get("DATABASE_URL") or os.environ.get("DATABASE_URL_FILE"))
STATE_DIR = Path(tempfile.mkdtemp(prefix="rto-tests-"))
os.environ["STATE_DIR"] = str(STATE_DIR)
STATE_DIR.joinpath("throwaway").touch()

import django  # noqa: E402 - after the environment it reads

from config.postgres import embedded  # noqa: E402 - likewise
from tests import flushing, xdist_grouping  # noqa: E402 - likewise

# Here and not later: the conftest of a folder that was named on the command line imports models.
django.setup()


def pytest_configure() -> None:
    """Load the settings, so that pytest-django sees a Django project."""
    from django.conf import settings  # noqa: PLC0415 - after the environment

    # Tests that commit are cleaned up by TRUNCATE, which the trigger of the event history refuses to all other code.
    parameters = {"orchestrator.maintenance": "truncate"} | TIMEOUTS
    options = "".join(f" -c {name}={value}" for name, value in parameters.items())
    settings.DATABASES["default"]["OPTIONS"]["options"] += options
    flushing.install()


def pytest_unconfigure() -> None:
    """Leave nothing, also when no test needed a database or the run was interrupted."""
    embedded.release(STATE_DIR)
    shutil.rmtree(STATE_DIR, ignore_errors=True)


# Left to `make test`: real processes, servers, browsers and sandboxes, races, and every API with every bad input.
SLOW = (
    *(
        "config/test_embedded_postgres",
        "config/test_paths",
        "config/test_settings",
        "orchestrator/devtools/",
        "workers/",
    ),
    *("orchestrator/http/", "orchestrator/admin/", "lease_model/", "orchestrator/services/test_races"),
    "orchestrator/protocols/native/test_concurrent_requests",
    *(f"orchestrator/protocols/native/{name}" for name in ("leases/test_lease_holders", "test_tenants", "test_lists")),
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Let each test process load this file before the settings, as this one did: they inherit the environment."""
    del os.environ["DJANGO_SETTINGS_MODULE"]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    return xdist_grouping.processes()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> xdist_grouping.Distribution:
    return xdist_grouping.Distribution(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark slow tests, skip tests that need root for an ordinary user, and name what several processes begin with."""
    for item in items:
        file = str(item.path.relative_to(Path(__file__).parent))
        if file.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
        if os.geteuid() != 0 and item.get_closest_marker("root"):
            item.add_marker(pytest.mark.skip(reason="needs root: cgroups, accounts of their own"))
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: xdist_grouping.place_of(item.nodeid))


@pytest.fixture(scope="session")
def django_db_modify_db_settings() -> None:
    """Start the cluster: pytest-django asks for this before it creates the test database."""
    if not GIVEN:
        embedded.ensure(STATE_DIR)


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> None:
    """Delete the rows that migrations create: a test that commits does so, too, and none may depend on the order."""
    from runtime_jobs.models import Plan  # noqa: PLC0415 - after the settings
    from runtime_jobs.plans import TIERS  # noqa: PLC0415 - likewise
    from workers.models import Pool  # noqa: PLC0415 - likewise

    with django_db_blocker.unblock():
        Plan.objects.filter(name__in=TIERS, organizations=None).delete()
        Pool.objects.filter(slug="bare-metal", workers=None).delete()


@pytest.fixture(scope="session")
def django_db_keepdb(django_db_keepdb: bool) -> bool:
    """Leave the database to the end of its cluster: DROP DATABASE fails while a thread of a test is still connected."""
    return django_db_keepdb or not GIVEN


@pytest.fixture(scope="session")
def database_url(django_db_setup: None) -> str:
    """The test database as a DATABASE_URL, for processes that a test starts. They see committed rows only."""
    from django.db import connection  # noqa: PLC0415 - after the settings

    name = connection.settings_dict["NAME"]
    if not GIVEN:
        return embedded.url(STATE_DIR, name)
    file = os.environ.get("DATABASE_URL_FILE")
    given = Path(file).read_text().strip() if file else os.environ["DATABASE_URL"]
    return urlsplit(given)._replace(path=f"/{name}").geturl()
