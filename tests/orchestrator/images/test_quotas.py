"""The bytes of an organization: how they are counted, who waits for whom, and which limits bound the count."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import pytest
from django.core.management import call_command
from django.db import connections, transaction
from django.utils import timezone

from leases.advisory_locks import IMAGES_OF_ORGANIZATION, advisory_xact_lock
from orchestrator.images import quotas
from orchestrator.images.blobs import delete_blob, mount_blob
from orchestrator.images.errors import RegistryError
from orchestrator.images.manifest_documents import OCI_MANIFEST
from orchestrator.images.manifests import delete_manifest, push_manifest
from orchestrator.images.models import ImageUsage, RepositoryBlob
from orchestrator.images.quotas import used_bytes
from orchestrator.images.uploads import begin_upload, store_blob
from tests.orchestrator.images.world import content, discard_parts, manifest, part_of, refusal, stored
from tests.orchestrator.protocols.bencher.runs.world import new_project

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("store")]


@pytest.fixture
def other(db):
    """A project of another organization."""
    return new_project("foreign")


def push(project, *data, tag="v1"):
    """Push a manifest that names these blobs."""
    return push_manifest(project, manifest(*data), OCI_MANIFEST, digest=None, tags=[tag]).digest


@pytest.mark.django_db(transaction=True)
class TestTwoTenants:
    """Two organizations with the same content."""

    def while_the_first_is_locked(self, project, first, second):
        """Run `second` while `first` waits for the lock of its organization. Return whether `first` waited till then.

        `second` must end by itself; if it waits for `first`, the test fails after the timeout.
        """
        began = threading.Event()

        def act(action):
            try:
                began.set()
                return action()
            finally:
                connections.close_all()

        with ThreadPoolExecutor(2) as threads:
            with transaction.atomic():
                advisory_xact_lock(IMAGES_OF_ORGANIZATION, project.organization_id)
                waiting = threads.submit(act, first)
                assert began.wait(60)
                self.wait_for_a_waiter()
                threads.submit(act, second).result(timeout=30)
                assert not waiting.done()
            return waiting.result(timeout=60)

    def wait_for_a_waiter(self):
        deadline = timezone.now() + timedelta(seconds=60)
        with connections["default"].cursor() as cursor:
            while timezone.now() < deadline:
                cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
                if cursor.fetchone()[0]:
                    return
        raise AssertionError("Nobody waits for the lock of the organization.")

    def test_a_push_of_a_manifest_does_not_wait_for_that_of_another_tenant(self, project, other):
        config = content()
        stored(project, config)
        stored(other, config)
        self.while_the_first_is_locked(project, lambda: push(project, config), lambda: push(other, config))

    def test_an_upload_does_not_wait_for_the_mount_of_another_tenant(self, project, other):
        data = content()
        digest = stored(project, data)
        stored(other, data)
        sibling = type(project).objects.create(organization=project.organization, slug="sibling")
        part = part_of(data)
        mount = lambda: mount_blob(sibling, digest, [project])  # noqa: E731
        assert self.while_the_first_is_locked(project, mount, lambda: store_blob(other, part, digest))


class TestCount:
    """The count is kept as the bytes are added, and made anew before a refusal."""

    @pytest.fixture(autouse=True)
    def counted(self, settings, monkeypatch):
        """The organizations whose bytes were summed up."""
        settings.IMAGE_QUOTA_BYTES = 10_000
        monkeypatch.setattr(quotas, "monotonic", lambda: 0.0)  # no sum is slow
        found = []
        real = quotas.used_bytes
        monkeypatch.setattr(quotas, "used_bytes", lambda organization: found.append(organization) or real(organization))
        return found

    def test_the_bytes_are_summed_up_once_and_not_at_each_push(self, project, other, counted):
        config = content(100)
        for data in (config, content(1000), content(2000)):
            stored(project, data)
        push(project, config)
        assert mount_blob(other, stored(project, content(50)), [project])
        assert counted == [project.organization_id, other.organization_id]

    def test_what_was_added_since_the_sum_is_refused_above_the_limit(self, project):
        for _ in range(9):
            stored(project, content(1000))
        assert refusal(lambda: stored(project, content(1001))) == (403, "DENIED")
        discard_parts()
        stored(project, content(900))

    def test_deleted_bytes_are_free_at_once(self, project, counted):
        digests = [stored(project, content(3000)) for _ in range(3)]
        delete_blob(project, digests[0])
        stored(project, content(3500))
        assert len(counted) == 2
        assert refusal(lambda: stored(project, content(1000))) == (403, "DENIED")

    def test_a_content_that_is_pushed_again_and_again_does_not_fill_the_quota(self, project):
        data = content(4000)
        for _ in range(5):
            stored(project, data)
        assert used_bytes(project.organization_id) == 4000

    def test_bytes_that_were_added_without_a_limit_count_later(self, project, settings):
        stored(project, content(10))
        settings.IMAGE_QUOTA_BYTES = 0
        stored(project, content(9900))
        settings.IMAGE_QUOTA_BYTES = 10_000
        assert refusal(lambda: stored(project, content(200))) == (403, "DENIED")

    def test_bytes_that_were_added_without_a_count_are_found_by_the_daily_collection(self, project, capsys):
        """The former release adds such bytes during an upgrade."""
        stored(project, content(9000))
        ImageUsage.objects.update(bytes=0)
        call_command("collectimages")
        assert refusal(lambda: stored(project, content(2000))) == (403, "DENIED")

    def test_a_slow_sum_is_not_repeated_at_each_refusal(self, project, counted, monkeypatch):
        digest = stored(project, content(9000))
        clock = [1000.0]
        slow = quotas.used_bytes

        def take_six_seconds(organization):
            clock[0] += 6
            return slow(organization)

        monkeypatch.setattr(quotas, "used_bytes", take_six_seconds)
        monkeypatch.setattr(quotas, "monotonic", lambda: clock[0])
        counted.clear()
        for _ in range(5):
            assert refusal(lambda: stored(project, content(2000))) == (403, "DENIED")
            discard_parts()
        assert len(counted) == 1
        delete_blob(project, digest)
        stored(project, content(900))
        assert refusal(lambda: stored(project, content(200))) == (403, "DENIED")
        discard_parts()
        clock[0] += 61
        stored(project, content(2000))
        assert len(counted) == 2


class TestNumberOfBlobs:
    @pytest.fixture(autouse=True)
    def limit(self, monkeypatch):
        monkeypatch.setattr(quotas, "MAX_BLOBS_PER_REPOSITORY", 2)

    def test_one_more_is_denied_before_it_is_sent(self, project, other):
        for _ in range(2):
            stored(project, content(1))
        assert refusal(lambda: begin_upload(project)) == (403, "DENIED")
        assert refusal(lambda: mount_blob(project, stored(other, content(5)), [other])) == (403, "DENIED")
        assert RepositoryBlob.objects.filter(project=project).count() == 2


class TestDeletedImages:
    @pytest.fixture(autouse=True)
    def limit(self, settings, monkeypatch):
        settings.IMAGE_QUOTA_BYTES = 1_000_000
        monkeypatch.setattr(quotas, "monotonic", lambda: 0.0)  # no sum is slow

    def rest(self):
        """Let the blobs be unused for an hour."""
        RepositoryBlob.objects.update(used_at=timezone.now() - timedelta(hours=1))

    def test_the_bytes_of_a_deleted_image_are_free(self, project):
        config, layer = content(), content(900_000)
        stored(project, config)
        stored(project, layer)
        digest = push(project, config, layer)
        self.rest()
        assert refusal(lambda: stored(project, content(500_000))) == (403, "DENIED")
        discard_parts()
        delete_manifest(project, digest)
        stored(project, content(500_000))

    def test_what_another_image_names_is_kept(self, project):
        shared, own = content(), content()
        for data in (shared, own):
            stored(project, data)
        digest = push(project, shared, own)
        push(project, shared, tag="v2")
        self.rest()
        delete_manifest(project, digest)
        assert [row.blob.size for row in RepositoryBlob.objects.all()] == [100]
        assert push(project, shared, tag="v3")

    def test_what_a_push_in_progress_may_need_is_kept(self, project):
        config = content()
        stored(project, config)
        delete_manifest(project, push(project, config))
        assert push(project, config)

    @pytest.mark.django_db(transaction=True)
    def test_a_blob_that_a_push_is_about_to_name_is_kept_without_waiting(self, project):
        config = content()
        stored(project, config)
        digest = push(project, config)
        self.rest()

        def delete():
            try:
                delete_manifest(project, digest)
            finally:
                connections.close_all()

        with ThreadPoolExecutor(1) as threads, transaction.atomic():
            # As `push_manifest` of another manifest holds it until its commit.
            assert RepositoryBlob.objects.select_for_update(no_key=True).get()
            threads.submit(delete).result(timeout=60)
        assert RepositoryBlob.objects.count() == 1
        assert push(project, config, tag="v2")

    @pytest.mark.django_db(transaction=True)
    def test_a_push_and_a_deletion_at_the_same_time_leave_a_whole_image_or_refuse_it(self, project):
        for number in range(10):
            config = content()
            stored(project, config)
            digest = push(project, config)
            self.rest()
            barrier = threading.Barrier(2)

            def act(action, barrier=barrier):
                try:
                    barrier.wait(timeout=60)
                    return action()
                except RegistryError as error:
                    return error.status, error.code
                finally:
                    connections.close_all()

            document = manifest(config, annotations={"number": str(number)})
            with ThreadPoolExecutor(2) as threads:
                pushed = threads.submit(
                    act, partial(push_manifest, project, document, OCI_MANIFEST, digest=None, tags=["v2"])
                )
                threads.submit(act, partial(delete_manifest, project, digest)).result(timeout=60)
                outcome = pushed.result(timeout=60)
            if outcome != (400, "MANIFEST_BLOB_UNKNOWN"):
                assert RepositoryBlob.objects.filter(
                    project=project, manifests__manifest__digest=str(outcome.digest)
                ).exists()

    def test_a_deleted_tag_frees_nothing(self, project):
        config = content()
        stored(project, config)
        push(project, config)
        self.rest()
        delete_manifest(project, "v1")
        assert RepositoryBlob.objects.count() == 1
