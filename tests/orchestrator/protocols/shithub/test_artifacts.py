"""The upload of artifacts by a runner (contract 2.6), and what a claim hands out of secrets and identity."""

from urllib.parse import urlsplit

import jwt
import pytest
from django.test import Client

from orchestrator.artifacts.storage import artifact_storage
from orchestrator.core.cause import Cause
from orchestrator.identity.tokens import key_set
from orchestrator.secrets.masks import masks_of
from orchestrator.secrets.operations import set_secret, set_variable
from orchestrator.services import worker_state
from runtime_jobs.models import Job, Plan, Repository, Secret, StorageUsage, StoredArtifact
from runtime_jobs.states import JobState
from tests.factories import ALICE
from tests.orchestrator.artifacts.conftest import FOLDER, use
from tests.orchestrator.protocols.shithub.conftest import error_of, used_tokens
from tests.orchestrator.protocols.shithub.world import actions_spec, start_run

pytestmark = pytest.mark.django_db
CONTENT = b"coverage: 97 %\n"
SIZE = len(CONTENT)


@pytest.fixture(autouse=True)
def folder(settings, tmp_path):
    use(settings, FOLDER, location=str(tmp_path / "artifacts"))
    return tmp_path / "artifacts"


@pytest.fixture
def claimed(runner, run):
    found = runner.client.claim()
    assert found.run().status_code == 200
    return found


def upload(claimed, name="report", size=SIZE):
    return claimed.call("artifacts/upload", {"name": name, "size_bytes": size})


def put(url, content=CONTENT):
    return Client().put(urlsplit(url).path, content, content_type="text/plain")


class TestUpload:
    def test_the_answer_is_that_of_the_contract_and_the_content_arrives(self, claimed):
        answer = upload(claimed)
        assert answer.status_code == 201
        body = answer.json()
        assert set(body) == {"artifact_id", "upload_url", "next_token", "next_token_expires_at"}
        row = StoredArtifact.objects.get(pk=body["artifact_id"])
        assert row.object_key.startswith(f"actions/runs/{claimed.job['run_id']}/artifacts/")
        assert (row.expires_at - row.created_at).days == 90
        assert put(body["upload_url"]).status_code == 200
        assert artifact_storage().read(row.object_key, 0, 100) == CONTENT
        assert claimed.check_cancel().status_code == 200  # the chain continues

    @pytest.mark.parametrize(
        "body",
        [
            {"name": "../x", "size_bytes": 1},
            {"name": "a/b", "size_bytes": 1},
            {"name": "", "size_bytes": 1},
            {"name": "a" * 101, "size_bytes": 1},
            {"name": "a", "size_bytes": -1},
            {"name": "a", "size_bytes": "1"},
            {"name": "a", "size_bytes": 1.5},
            {"name": "a"},
            {"size_bytes": 1},
            {"name": "a", "size_bytes": 1, "more": 1},
            [],
            b"{",
        ],
    )
    def test_a_bad_body_is_400_and_uses_the_token(self, claimed, body):
        before = used_tokens()
        error_of(claimed.call("artifacts/upload", body), 400)
        assert used_tokens() == before + 1
        assert not StoredArtifact.objects.exists()
        error_of(claimed.check_cancel(), 401)

    def test_blanks_around_the_name_do_not_count(self, claimed):
        assert upload(claimed, name=" report ").status_code == 201
        assert StoredArtifact.objects.get().name == "report"

    def test_a_name_with_a_secret_of_the_job_is_400_and_is_stored_nowhere(self, runner, run):
        organization = Repository.objects.get().project.organization
        set_secret(organization=organization, repository=None, name="A", value="Hunter2-key", cause=Cause(ALICE))
        claimed = runner.client.claim()
        assert claimed.run().status_code == 200
        assert upload(claimed, name="Hunter2").status_code == 201, "the beginning of a secret alone"
        answer = upload(claimed, name=f"log-{b'Hunter2-key'.hex()}.txt")
        assert error_of(answer, 400) == "name: It contains a secret of the job."
        assert StoredArtifact.objects.get().name == "Hunter2"

    def test_the_same_name_twice_is_409(self, claimed):
        assert upload(claimed).status_code == 201
        error_of(upload(claimed), 409)
        assert StoredArtifact.objects.count() == 1

    def test_a_full_quota_is_402_and_leaves_no_row(self, claimed):
        Plan.objects.update(max_stored_bytes=10)
        before = used_tokens()
        error_of(upload(claimed, size=11), 402)
        assert used_tokens() == before + 1
        assert not StoredArtifact.objects.exists()
        assert not StorageUsage.objects.exclude(byte_count=0).exists()

    def test_an_ended_job_announces_nothing(self, claimed):
        token = claimed.token
        worker_state.revoke(job_ulid=Job.objects.get(pk=claimed.job["id"]).job_ulid, actor=ALICE, reason="test")
        error_of(claimed.call("artifacts/upload", {"name": "a", "size_bytes": 1}, token=token), 404)
        assert not StoredArtifact.objects.exists()


class TestClaim:
    def test_secrets_variables_and_masks_are_handed_out(self, runner):
        found = start_run()
        repository = Repository.objects.get()
        organization = repository.project.organization
        scope = {"organization": organization, "cause": Cause(ALICE)}
        set_secret(name="TOKEN", value="of-organization", repository=None, **scope)
        set_secret(name="TOKEN", value="hunter2", repository=repository, **scope)
        set_variable(name="REGION", value="eu", repository=repository, **scope)
        job = runner.client.claim().job
        assert (job["secrets"], job["mask_values"], job["variables"]) == (
            {"TOKEN": "hunter2"}, ["hunter2"], {"REGION": "eu"},
        )  # fmt: skip
        assert masks_of(Job.objects.get(pk=found.job.pk)) == (b"hunter2",)

    def test_a_pull_request_gets_none(self, runner):
        start_run(event="pull_request")
        organization = Repository.objects.get().project.organization
        set_secret(organization=organization, repository=None, name="A", value="hunter2", cause=Cause(ALICE))
        job = runner.client.claim().job
        assert (job["secrets"], job["mask_values"], job["variables"]) == (None, None, None)

    def test_a_secret_that_does_not_open_is_500_and_the_job_stays_queued(self, runner, run):
        organization = Repository.objects.get().project.organization
        set_secret(organization=organization, repository=None, name="A", value="hunter2", cause=Cause(ALICE))
        sealed = bytes(Secret.objects.get().sealed)
        Secret.objects.update(sealed=sealed[:-1] + bytes([sealed[-1] ^ 1]))
        text = error_of(runner.client.heartbeat(), 500)
        assert "hunter2" not in text
        job = Job.objects.get(pk=run.job.pk)
        assert (job.state, job.fence, job.requeue_count) == (JobState.QUEUED, 0, 0)
        Secret.objects.update(sealed=sealed)
        assert runner.client.claim().job["secrets"] == {"A": "hunter2"}

    def test_a_step_of_the_unmodified_runner_fetches_an_identity_token(self, runner):
        start_run(specs=[actions_spec(permissions={"per": {"id-token": "write"}})])
        found = runner.client.claim()
        env = found.job["env"]
        token = env["ACTIONS_ID_TOKEN_REQUEST_TOKEN"]
        assert found.job["mask_values"] == [token]
        found.run()
        url = urlsplit(f"{env['ACTIONS_ID_TOKEN_REQUEST_URL']}&audience=vault")
        answer = Client().get(f"{url.path}?{url.query}", headers={"Authorization": f"Bearer {token}"})
        key = jwt.PyJWKSet.from_dict(key_set()).keys[0]
        claims = jwt.decode(answer.json()["value"], key.key, algorithms=["RS256"], audience="vault")
        assert claims["sub"] == "repo:alice/demo:ref:refs/heads/trunk"
        found.end()
        refused = Client().get(f"{url.path}?{url.query}", headers={"Authorization": f"Bearer {token}"})
        assert refused.status_code == 403

    def test_without_the_permission_there_are_no_variables(self, runner, run):
        assert "ACTIONS_ID_TOKEN_REQUEST_URL" not in runner.client.claim().job["env"]
