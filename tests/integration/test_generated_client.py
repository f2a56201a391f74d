"""A client that openapi-python-client generates from docs/openapi.yaml, unchanged, against a real server and worker."""

import importlib
import pkgutil
import subprocess
import sys
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.factories import api_token
from tests.integration.conftest import Yard
from tests.workers.agent.scripted import wait_until
from tests.workers.agent.worker_process import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory):
    """Generate the package, and return it. A warning of the generator is an operation or a schema that it left out."""
    folder = tmp_path_factory.mktemp("client")
    (folder / "config.yaml").write_text("post_hooks: []\n")
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--fail-on-warning", "--meta", "none"]
    command += ["--path", str(ROOT / "docs/openapi.yaml"), "--config", str(folder / "config.yaml")]
    command += ["--output-path", str(folder / "generated_client")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module("generated_client")
    finally:
        sys.path.remove(str(folder))


def test_every_module_of_the_client_can_be_imported(generated):
    names = [module.name for module in pkgutil.walk_packages(generated.__path__, "generated_client.")]
    assert len(names) > 500
    for name in names:
        importlib.import_module(name)


def test_the_client_submits_waits_reads_the_log_cancels_and_lists(generated, yard: Yard):
    from generated_client.api.jobs import (  # noqa: PLC0415 - generated above
        cancel_job,
        get_job,
        list_jobs,
        read_job_logs,
        submit_job,
    )
    from generated_client.models import AnyJob, Problem, SubmitAnyJobRequest  # noqa: PLC0415 - likewise

    organization = yard.project.organization
    body = {
        "org_slug": organization.slug,
        "project_slug": yard.project.slug,
        "job_type": "steps",
        "spec": {"name": "unit", "steps": ["null print=hello"], "timeout_seconds": 60},
        "trigger": {"kind": "manual"},
    }

    with generated.AuthenticatedClient(yard.installation.url, token=api_token(organization)) as client:

        def submitted(key: str) -> str:
            job = submit_job.sync(client=client, body=SubmitAnyJobRequest.from_dict(body), idempotency_key=key)
            assert isinstance(job, AnyJob), job
            return job.job_id

        first = submitted("first")
        assert submitted("first") == first
        worker = yard.start(yard.enrol("one"), "--once")
        wait_until(lambda: get_job.sync(first, client=client).status in {"succeeded", "failed"}, 60)
        assert worker.end() == 0
        assert (get_job.sync(first, client=client).status, get_job.sync(first, client=client).exit_code) == (
            "succeeded",
            0,
        )
        assert "hello" in read_job_logs.sync(first, client=client)
        second = submitted("second")
        assert cancel_job.sync(second, client=client).status == "canceled"
        page = list_jobs.sync(client=client, limit=1)
        assert [job.job_id for job in page.results] == [second]
        [cursor] = parse_qs(urlsplit(page.next_).query)["cursor"]
        assert [job.job_id for job in list_jobs.sync(client=client, limit=1, cursor=cursor).results] == [first]
        missing = get_job.sync("rtj_" + "0" * 26, client=client)
        assert isinstance(missing, Problem), missing
        assert missing.code == "not_found"
