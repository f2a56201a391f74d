"""A seed keeps what works, mends what does not, and never takes back what an operator has changed."""

import json
import platform
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.contrib.auth import get_user_model
from django.db import connections

from orchestrator.core.cause import Cause
from orchestrator.devtools import seed
from orchestrator.devtools.demo.repository import DemoRepository
from orchestrator.devtools.demo_image import RESULT, static_program
from orchestrator.images.models import ImageManifest
from orchestrator.images.references import parse_reference, resolve_digest
from orchestrator.protocols.bencher.authentication import authenticate_person, authenticate_runner
from orchestrator.services import credentials, personal_keys, runners, worker_state
from orchestrator.services.submission import submit
from runtime_jobs.models import ApiToken, Organization, PackVersion, PersonalKey, Project
from runtime_jobs.specs import PayloadSpec, configured_policy
from tests.factories import submission
from tests.orchestrator.images.world import storages_in
from workers.models import HardwareSpec, Worker
from workers.registry.matching import spec_labels
from workers.registry.tokens import digest_of

pytestmark = pytest.mark.django_db(transaction=True)
URL = "https://github.com/runtime-orchestrator/demo.git"


@pytest.fixture
def file(tmp_path, settings) -> Path:
    settings.STORAGES = storages_in(settings, tmp_path / "images")
    return tmp_path / "seed.json"


def plant(file: Path) -> seed.SeedData:
    return seed.seed_database(
        file=file, pool="shared-linux", repository=DemoRepository(Path("/demo.git"), "c" * 40), repo_url=URL
    )


def test_a_second_seed_is_the_first(file):
    assert plant(file) == plant(file)
    assert ApiToken.objects.count() == Organization.objects.count() == HardwareSpec.objects.count() == 1
    assert Worker.objects.count() == PersonalKey.objects.count() == 2
    assert ImageManifest.objects.count() == 1


def test_what_is_printed_counts(file):
    planted = plant(file)
    assert ApiToken.objects.get().digest == digest_of(planted.api_token)
    worker = Worker.objects.get(worker_id=planted.worker_id)
    assert worker.digest == digest_of(planted.worker_token)
    assert get_user_model().objects.get(username=planted.admin_username).check_password(planted.admin_password)


def test_a_run_of_the_planted_pack_is_admitted(file):
    planted = plant(file)
    project = Project.objects.get(organization__slug=planted.org_slug)
    payload = {"packId": planted.pack, "packVersion": planted.pack_version, "planHash": planted.plan_hash}
    spec = PayloadSpec("pack-run", payload | {"inputs": {"name": "Ann"}}, timeout_seconds=60)
    policy = configured_policy("pack-run")
    job = submit(submission(project, spec), policy=policy, default_pool="shared-linux", actor=seed.SEED).job
    assert job.spec["plan"] == PackVersion.objects.get().plan


def test_the_plain_tokens_are_for_their_owner_only(file):
    planted = plant(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(file.read_text())["api_token"] == planted.api_token


def test_a_revoked_token_is_replaced(file):
    before = plant(file)
    credentials.revoke_api_token(token_id=ApiToken.objects.get().pk, cause=Cause(seed.SEED, "leaked"))
    after = plant(file)
    assert after.api_token != before.api_token
    assert ApiToken.objects.filter(revoked_at=None, digest=digest_of(after.api_token)).exists()


def test_a_token_that_an_operator_has_rotated_is_replaced(file):
    before = plant(file)
    worker_state.rotate_worker_token(worker_id=before.worker_id, cause=Cause(seed.SEED))
    after = plant(file)
    assert after.worker_id == before.worker_id
    assert Worker.objects.get(worker_id=after.worker_id).digest == digest_of(after.worker_token)


def test_the_keys_of_the_bencher_api_count(file):
    planted = plant(file)
    assert authenticate_person(planted.admin_key).is_server_admin
    member = authenticate_person(planted.user_key)
    assert not member.is_server_admin
    assert member.can_see(Organization.objects.get().projects.get())
    runner = authenticate_runner(f"Bearer {planted.runner_key}", planted.runner)
    assert spec_labels(runner) == [f"spec:{planted.spec}"]
    assert HardwareSpec.objects.get().fallback_at is not None


def test_keys_that_do_not_count_any_more_are_replaced(file):
    before = plant(file)
    for row in PersonalKey.objects.all():
        personal_keys.revoke_personal_key(key_id=row.pk, cause=Cause(seed.SEED, "leaked"))
    runner = Worker.objects.get(slug=before.runner)
    runners.rotate_runner_key(worker_id=runner.worker_id, cause=Cause(seed.SEED))
    after = plant(file)
    assert after.admin_key != before.admin_key
    assert authenticate_person(after.user_key)
    assert authenticate_runner(f"Bearer {after.runner_key}", after.runner).pk == runner.pk
    assert (after.runner, after.spec) == (before.runner, before.spec)


@pytest.mark.parametrize("is_file_lost", [False, True])
def test_an_archived_runner_stays_archived(file, is_file_lost):
    worker_id = Worker.objects.get(slug=plant(file).runner).worker_id
    runners.change_runner(worker_id=worker_id, archived=True, cause=Cause(seed.SEED))
    if is_file_lost:
        file.unlink()
    planted = plant(file)
    assert bool(planted.runner_key) != is_file_lost
    assert Worker.objects.get(worker_id=worker_id).archived_at is not None


def test_another_fallback_stays(file):
    plant(file)
    HardwareSpec.objects.update(fallback_at=None)
    plant(file)
    assert HardwareSpec.objects.get().fallback_at is None


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


def test_the_image_is_in_the_registry(file):
    reference = parse_reference(plant(file).image)
    project = Organization.objects.get().projects.get()
    assert (reference.repository, reference.tag) == (project.public_slug, "latest")
    assert resolve_digest(project, reference) == ImageManifest.objects.get().digest


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the program is for x86-64")
def test_the_program_of_the_image_prints_a_result(tmp_path):
    program = tmp_path / "bench"
    program.write_bytes(static_program())
    program.chmod(0o755)
    found = subprocess.run([program], capture_output=True, timeout=60, check=True)
    assert (found.stdout, found.stderr) == (RESULT, b"")
    assert json.loads(found.stdout) == {"demo": {"latency": {"value": 12.5}}}
