"""The scheduler process deletes once a day what the stores contain and no row needs."""

import os
from datetime import timedelta

import pytest
from django.utils import timezone

from orchestrator.images.collection import collect_images
from orchestrator.images.models import ImageBlob, ImageUsage, RepositoryBlob
from orchestrator.processes import background
from orchestrator.processes.background import DailyCollector, collect_outputs, collect_registry
from orchestrator.processes.scheduler import Scheduler
from orchestrator.results.outputs import encode_output, output_path, write_output
from runtime_jobs.identifiers import uuid_of
from tests.orchestrator.images.world import content, discard_parts, storages_in, stored, stored_files
from tests.orchestrator.protocols.bencher.runs.world import new_project
from tests.orchestrator.results.conftest import CONFIG_PROJECT, execution
from tests.orchestrator.results.conftest import store as store  # noqa: PLC0414 - a fixture

pytestmark = pytest.mark.django_db(transaction=True)


class Clock:
    """A monotonic clock that the test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def images(settings, tmp_path):
    settings.STORAGES = storages_in(settings, tmp_path / "images")
    yield
    discard_parts()


def test_outputs_that_no_job_names_are_deleted_once_a_day(store):
    run = execution()
    run.store(encode_output([{"exit_code": 0}]))
    run.complete()
    name = write_output(CONFIG_PROJECT, uuid_of(run.job.job_ulid), b"did not count")
    path = store / output_path(CONFIG_PROJECT, name)
    os.utime(path, (0, 0))
    clock, scheduler = Clock(), Scheduler(period=1)
    scheduler._outputs = DailyCollector("outputs", collect_outputs, monotonic=clock)
    assert scheduler.round()
    assert scheduler._outputs.wait(60)
    assert path.exists(), "not at once: a scheduler that restarts all the time would list all outputs each time"
    clock.seconds, scheduler.rounds = background.FIRST_COLLECTION_SECONDS, 0
    assert scheduler.round()
    assert scheduler._outputs.wait(60)
    assert not path.exists()
    assert scheduler._outputs.advance() is False, "not again on this day"
    clock.seconds += background.COLLECTION_SECONDS
    assert scheduler._outputs.advance() is True
    assert scheduler._outputs.wait(60)
    assert (store / output_path(CONFIG_PROJECT, run.result["output"])).exists()


@pytest.mark.usefixtures("images")
def test_blobs_that_no_manifest_names_are_deleted_once_a_day():
    project = new_project("adapter")
    stored(project, content())
    ImageUsage.objects.update_or_create(organization=project.organization, defaults={"bytes": 7})
    day_before = timezone.now() - timedelta(hours=25)
    RepositoryBlob.objects.update(used_at=day_before)
    ImageBlob.objects.update(used_at=day_before)
    clock, scheduler = Clock(), Scheduler(period=1)
    scheduler._images = DailyCollector("images", collect_registry, monotonic=clock)
    assert scheduler.round()
    assert stored_files(), "not at once"
    clock.seconds, scheduler.rounds = background.FIRST_COLLECTION_SECONDS, 0
    assert scheduler.round()
    assert scheduler._images.wait(60)
    assert (stored_files(), ImageBlob.objects.count()) == ([], 0)
    assert not ImageUsage.objects.exists(), "the next push sums up"


@pytest.mark.usefixtures("images")
def test_a_collection_of_images_ends_with_the_process():
    stored(new_project("adapter"), content())
    found = collect_images(timedelta(0), is_stopping=lambda: True)
    assert (found.repository_blobs, found.blobs, found.files) == (0, 0, 0)
    assert stored_files()


def test_a_collection_that_fails_is_tried_on_the_next_day(caplog):
    def fail(_: object) -> str:
        raise OSError("the store is away")

    clock = Clock()
    collector = DailyCollector("outputs", fail, monotonic=clock)
    clock.seconds = background.FIRST_COLLECTION_SECONDS
    assert collector.advance()
    assert collector.wait(60)
    assert "outputs failed" in caplog.text
    assert collector.stop(1)
    clock.seconds *= 1000
    assert not collector.advance(), "the process ends"
