"""The tour: every page and every GET operation, for rows that the product's own processes have written.

`PROOF_TOUR` makes it longer: four rows of each kind instead of one, and two links of each kind.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth.models import Group

from tests.chaos.webhook_receiver import NETWORK, WebhookReceiver
from tests.integration.conftest import Installation, Yard
from tests.integration.tour_rows import Tour
from tests.integration.tour_visits import Visits, open_operations, open_pages
from tests.live_server import serving
from tests.orchestrator.admin.conftest import client_of, person
from tests.orchestrator.admin.pages import nouns
from tests.workers.agent.worker_process import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]

PROCESSES = ("runclock", "runhousekeeping", "rundispatcher")


@pytest.fixture
def tour(database_url, project, root: Path, commit: str, tmp_path: Path) -> Iterator[Tour]:
    """A whole installation, without a worker yet. Nothing is slow for the sake of a quiet network."""
    environment = {
        "DATABASE_URL": database_url, "SECRET_KEY": settings.SECRET_KEY, "MIRROR_DIR": str(tmp_path / "mirrors"),
        "REPOSITORY_ROOT": str(tmp_path / "origins"), "STATE_DIR": str(tmp_path / "state"), "WEBHOOK_NETWORKS": NETWORK,
        "CLOCK_PERIOD_SECONDS": "0.5", "HEARTBEAT_INTERVAL_SECONDS": "2", "PUBLIC_URL": "http://{address}",
        "BREAKER_LEAST_JOBS": "12", "BREAKER_COOL_DOWN_SECONDS": "1",
    }  # fmt: skip
    (tmp_path / "origins").mkdir()
    processes: list[subprocess.Popen[bytes]] = []
    with serving(tmp_path, **environment) as server, (tmp_path / "processes.log").open("ab") as log:
        environment = {"PATH": os.environ["PATH"]} | environment | {"PUBLIC_URL": server.url}
        yard = Yard(Installation(server.url, environment), project, root, commit)
        try:
            for command in PROCESSES:
                call = [sys.executable, "manage.py", command]
                processes.append(subprocess.Popen(call, env=environment, cwd=ROOT, stdout=log, stderr=log))
            yield Tour(yard, server, root)
        finally:
            for worker in yard.processes:
                worker.end_anyway()
            for process in processes:
                process.kill()
                process.wait()


def test_no_page_and_no_operation_is_broken_by_what_the_product_writes(
    tour: Tour, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At its first run, at commit 625ff769, 7 of 789 pages were: those of the jobs with a stored artifact."""
    with WebhookReceiver(seed=0, failed=0.0) as receiver:
        tour.make_rows(receiver, tmp_path / "origins" / "web.git")
        visits = Visits(tour.server.url)
        without = open_operations(visits, tour)
        open_pages(visits, client_of(person("olga", is_superuser=True)))
    with capsys.disabled():
        sys.stdout.write(f"\nthe tour opened {visits}\n")
    assert visits.broken == []
    assert without == set(), "operations without a row"
    assert [model for model in nouns() if model is not Group and not model.objects.exists()] == []
    logs = {"server": tour.server.log(), "processes": (tmp_path / "processes.log").read_text()}
    logs |= {worker.log_file.name: worker.log for worker in tour.yard.processes}
    assert [name for name, log in logs.items() if "Traceback" in log] == [], logs
