"""The suite's PostgreSQL: the one that DATABASE_URL names, else a throw-away cluster of this run's own.

Several runs may take place at the same time. The cluster is started by the first test that needs it, and stopped and deleted
by its keeper when this process ends, whatever ends it.
"""

import atexit
import gc
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import hypothesis
import pytest
from pytest_django.plugin import blocking_manager_key

# A deadline for each example would measure the load of the machine: pytest's timeout ends a test that hangs.
hypothesis.settings.register_profile("suite", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("suite")

# Without bytecode files each test process would compile all tests, and each of 500 other processes the project.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Nothing that is imported or collected is garbage, and there is much of it: see `pytest_collection_finish`.
gc.disable()

# The product's own limits are seconds of wall-clock time: on a loaded machine a transaction of many statements takes
# longer, and whoever waits for it is answered `busy`. A test of such a limit sets one for its own session.
TIMEOUTS = {"lock_timeout": "60s", "statement_timeout": "90s", "idle_in_transaction_session_timeout": "90s"}
POOL_SECONDS = 60.0  # for a connection of the pool

# Before anything reads the settings; that is why the name of their module is here and not in pyproject.toml, from
# where pytest-django would load them before this file.
os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
GIVEN = bool(os.environ.get("DATABASE_URL") or os.environ.get("DATABASE_URL_FILE"))
STATE_DIR = Path(tempfile.mkdtemp(prefix="rto-tests-"))
os.environ["STATE_DIR"] = str(STATE_DIR)
STATE_DIR.joinpath("throwaway").touch()

import django  # noqa: E402 - after the environment it reads
import psycopg  # noqa: E402 - likewise

from config.postgres import embedded  # noqa: E402 - likewise
from tests import flushing, prepared_cluster  # noqa: E402 - likewise

pytest_plugins = ["tests.xdist_grouping"]

# Here and not later: the conftest of a folder that was named on the command line imports models.
django.setup()


def pytest_configure(config: pytest.Config) -> None:
    """Load the settings, so that pytest-django sees a Django project."""
    from django.conf import settings  # noqa: PLC0415 - after the environment

    if not hasattr(config, "workerinput"):
        prepared_cluster.open_folder()
    options = "".join(f" -c {name}={value}" for name, value in TIMEOUTS.items())
    settings.DATABASES["default"]["OPTIONS"]["options"] += options
    settings.DATABASES["default"]["OPTIONS"]["pool"]["timeout"] = POOL_SECONDS
    flushing.install()
    _share_static_files()
    _write_no_counters()


def _write_no_counters() -> None:
    """Keep the thread of the counters away from the database, which no other test expects to change."""
    from orchestrator.core import counters  # noqa: PLC0415 - after the settings

    counters.WRITE_SECONDS = 24 * 3600.0
    atexit.unregister(counters._buffer.write_and_disconnect)


def _share_static_files() -> None:
    """List the static files once: each test client has middleware of its own, which would list them all again."""
    from whitenoise.middleware import WhiteNoiseMiddleware  # noqa: PLC0415 - after the settings

    list_files = WhiteNoiseMiddleware.add_files_from_finders
    shared: dict[Any, dict[str, Any]] = {}

    def add_files_from_finders(self: WhiteNoiseMiddleware) -> None:
        key = (self.static_prefix, self.max_age, self.allow_all_origins, self.charset)
        if key not in shared:
            list_files(self)
            shared[key] = dict(self.files)
        self.files = dict(shared[key])

    WhiteNoiseMiddleware.add_files_from_finders = add_files_from_finders


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing, also when no test needed a database or the run was interrupted."""
    embedded.release(STATE_DIR)
    shutil.rmtree(STATE_DIR, ignore_errors=True)
    if not hasattr(config, "workerinput"):
        prepared_cluster.remove_folder()


# The only tests with a database of `make check`: the operations, their SQL, and the rules of models and migrations.
CORE = ("leases/", "orchestrator/services/", "runtime_jobs/", "test_")
_SERVED = pytest.StashKey[set[Path]]()  # the files, so far, of which a test gave its database to a process
DATABASE_FIXTURES = {"db", "transactional_db", "database_url"}
# Left to `make test`, too: real processes, servers, browsers and sandboxes, races, and every API with every bad input.
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark slow tests, and skip tests that need root for an ordinary user."""
    for item in items:
        file = str(item.path.relative_to(Path(__file__).parent))
        if file.startswith(SLOW) or (_needs_database(item) and not file.startswith(CORE)):
            item.add_marker(pytest.mark.slow)
        if os.geteuid() != 0 and item.get_closest_marker("root"):
            item.add_marker(pytest.mark.skip(reason="needs root: cgroups, accounts of their own"))


def _needs_database(item: pytest.Item) -> bool:
    fixtures = DATABASE_FIXTURES & set(getattr(item, "fixturenames", ()))
    return bool(fixtures) or item.get_closest_marker("django_db") is not None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Any:
    """Empty the tables again after a file whose processes use the database.

    They outlive the flush of the last test: a scheduler wrote its beat once more, and the next file had a row too many.
    """
    result = yield
    served = item.config.stash.setdefault(_SERVED, set())
    if "database_url" in getattr(item, "fixturenames", ()):
        served.add(item.path)
    if item.path in served and (nextitem is None or nextitem.path != item.path):
        served.remove(item.path)
        with item.config.stash[blocking_manager_key].unblock():
            flushing.retrying(flushing.delete_rows)
    return result


@pytest.fixture(autouse=True)
def _own_checkpoint_folder(settings, monkeypatch) -> None:
    """Each test has its own copies of checkpoints: the rows of an earlier one are gone, and the audit would object."""
    settings.CHECKPOINT_DIR = str(STATE_DIR / "checkpoints" / uuid4().hex)
    monkeypatch.setenv("CHECKPOINT_DIR", settings.CHECKPOINT_DIR)


@pytest.fixture
def admin_user(db, django_user_model) -> Any:
    """Create the superuser of `admin_client`, without a password: its hash takes a fifth of a second of a processor."""
    return django_user_model.objects.create_superuser("admin", "admin@example.com")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exclude all objects so far from garbage collection: with them each full collection takes most of a second."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)  # with Python's, collections took a tenth of the time of the tests
    gc.enable()


@pytest.fixture(scope="session")
def django_db_modify_db_settings() -> None:
    """Start the cluster: pytest-django asks for this before it creates the test database."""
    from django.db import connection  # noqa: PLC0415 - after the settings

    if not GIVEN:
        prepared_cluster.copy_to(STATE_DIR)
        embedded.ensure(STATE_DIR)
        connection.creation.create_test_db = _create_test_db  # type: ignore[method-assign]


def _create_test_db(**_: Any) -> str:
    """Copy the database that has all migrations, instead of `migrate` on an empty one."""
    from django.db import connection  # noqa: PLC0415 - after the settings

    name = f"test_{embedded.NAME}"
    with psycopg.connect(embedded.url(STATE_DIR, "postgres"), autocommit=True) as session:
        session.execute(f"CREATE DATABASE {name} TEMPLATE {embedded.NAME}")
    connection.close()
    connection.settings_dict["NAME"] = name
    return name


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> None:
    """Delete the rows that migrations create: a test that commits does so, too, and none may depend on the order."""
    from runtime_jobs.models import Plan  # noqa: PLC0415 - after the settings
    from runtime_jobs.plans import TIERS  # noqa: PLC0415 - likewise
    from tests import suite_functions  # noqa: PLC0415 - likewise
    from workers.models import Pool  # noqa: PLC0415 - likewise

    with django_db_blocker.unblock():
        suite_functions.install()
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
