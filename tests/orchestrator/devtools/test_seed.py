"""A seed keeps what works, mends what does not, and never takes back what an operator has changed."""

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.contrib.auth import get_user_model
from django.db import connections

from orchestrator import services
from orchestrator.devtools import seed
from orchestrator.devtools.demo.repository import DemoRepository
from runtime_jobs.models import ApiToken, Organization
from workers.models import Worker
from workers.registry.tokens import digest_of

pytestmark = pytest.mark.django_db(transaction=True)
URL = "https://github.com/runtime-orchestrator/demo.git"


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "seed.json"


def plant(file: Path) -> seed.SeedData:
    return seed.seed_database(
        file=file, pool="shared-linux", repository=DemoRepository(Path("/demo.git"), "c" * 40), repo_url=URL
    )


def test_a_second_seed_is_the_first(file):
    assert plant(file) == plant(file)
    assert ApiToken.objects.count() == Worker.objects.count() == Organization.objects.count() == 1


def test_what_is_printed_counts(file):
    planted = plant(file)
    assert ApiToken.objects.get().digest == digest_of(planted.api_token)
    worker = Worker.objects.get(worker_id=planted.worker_id)
    assert worker.digest == digest_of(planted.worker_token)
    assert get_user_model().objects.get(username=planted.admin_username).check_password(planted.admin_password)


def test_the_plain_tokens_are_for_their_owner_only(file):
    planted = plant(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(file.read_text())["api_token"] == planted.api_token


def test_a_revoked_token_is_replaced(file):
    before = plant(file)
    services.revoke_api_token(token_id=ApiToken.objects.get().pk, actor=seed.SEED, reason="leaked")
    after = plant(file)
    assert after.api_token != before.api_token
    assert ApiToken.objects.filter(revoked_at=None, digest=digest_of(after.api_token)).exists()


def test_a_token_that_an_operator_has_rotated_is_replaced(file):
    before = plant(file)
    services.rotate_worker_token(worker_id=before.worker_id, actor=seed.SEED)
    after = plant(file)
    assert after.worker_id == before.worker_id
    assert Worker.objects.get().digest == digest_of(after.worker_token)


def test_a_password_that_was_changed_stays_changed(file):
    planted = plant(file)
    user = get_user_model().objects.get(username=planted.admin_username)
    user.set_password("chosen by hand")
    user.save()
    assert plant(file).admin_password is None
    user.refresh_from_db()
    assert user.check_password("chosen by hand")


def test_a_lost_file_does_not_reset_the_login(file):
    planted = plant(file)
    file.unlink()
    again = plant(file)
    assert again.admin_password is None
    assert again.api_token != planted.api_token


def test_a_broken_file_is_written_anew(file):
    file.write_text("{")
    planted = plant(file)
    assert json.loads(file.read_text())["worker_token"] == planted.worker_token


def test_what_an_operator_has_switched_off_stays_off(file):
    plant(file)
    Organization.objects.update(hosted_runtime_analysis=False)
    plant(file)
    assert not Organization.objects.get().hosted_runtime_analysis


def test_two_seeds_at_once_agree(file):
    def one(_number: int) -> seed.SeedData:
        try:
            return plant(file)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(3) as pool:
        planted = list(pool.map(one, range(3)))
    assert planted[0] == planted[1] == planted[2]
