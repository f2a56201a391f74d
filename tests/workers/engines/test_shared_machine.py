"""Two workers of one machine, as root, in containers that share some things and not others."""

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.workers.engines.conftest import FIRST_UID
from tests.workers.engines.test_death import wait_for
from workers.engines import engine_named
from workers.engines.contract import EngineUnavailable
from workers.engines.sandbox import processes

pytestmark = pytest.mark.root
ROOT = Path(__file__).parents[3]
CONTAINER = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]


@contextlib.contextmanager
def worker_in_container(bench, script):
    """Run one command by an engine with the uids of this test, in a container that shares the control groups."""
    module = ["-m", "tests.workers.engines.lone_worker", bench.engine.name, str(FIRST_UID), str(bench.place()), "full"]
    worker = subprocess.Popen(
        [*CONTAINER, sys.executable, *module, "sh", "-c", script],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with worker:
        try:
            yield worker
        finally:
            worker.kill()


def test_workers_in_containers_do_not_end_each_other_s_jobs(bench):
    """Both use the same uid, and so the same names in the hierarchy of control groups that they share."""
    with worker_in_container(bench, "echo settled; sleep 4") as first:
        wait_for(first.stdout, b"settled")
        with worker_in_container(bench, "echo settled") as second:
            wait_for(second.stdout, b"exited")
        wait_for(first.stdout, b"exited")


def test_a_worker_cleans_up_after_itself_only(bench):
    with worker_in_container(bench, "echo settled; sleep 4") as first:
        wait_for(first.stdout, b"settled")
        bench.engine.hierarchy.remove_abandoned({FIRST_UID})
        wait_for(first.stdout, b"exited")


@pytest.fixture(params=["bubblewrap", "restricted"])
def engine(request):
    """One that has run nothing yet: it is not in the mount namespace of the others."""
    return engine_named(request.param, first_uid=FIRST_UID, use_volumes=False)


@contextlib.contextmanager
def name_in_another_network(*account):
    """Hold the name that reserves FIRST_UID + 20, by a process with a network of its own and the uid of `account`."""
    script = (
        "import socket; name = socket.socket(socket.AF_UNIX)\n"
        f"name.bind('\\0runtime-orchestrator/uid/{FIRST_UID + 20}'); print('bound', flush=True); input()"
    )
    command = ["unshare", "--net", *account, sys.executable, "-c", script]
    with subprocess.Popen(command, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        try:
            wait_for(holder.stdout, b"bound")
            yield
        finally:
            holder.kill()


@pytest.mark.parametrize(
    ("container", "refusal"),
    [
        ([], f"uid {FIRST_UID + 20} is in use by another worker"),
        (["unshare", "--net"], f"uid {FIRST_UID + 20} is in use by a worker of another network namespace"),
    ],
    ids=["same network", "other network"],
)
def test_a_reserved_uid_is_refused_to_other_workers(engine, container, refusal):
    """Also while no job runs under it, as between two steps: no process shows whose it is then."""
    script = (
        "import sys; from workers.engines import engine_named\n"
        f"with engine_named({engine.name!r}, first_uid={FIRST_UID}).reserved(20): print('reserved', flush=True); input()"
    )
    other = subprocess.Popen(
        [*container, sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )  # fmt: skip
    with other:
        wait_for(other.stdout, b"reserved")
        with pytest.raises(EngineUnavailable, match=refusal):
            engine.reserved(20).__enter__()
        with engine.reserved(21):
            pass
        other.kill()
    with engine.reserved(20), engine.slots.running(20):
        pass


def test_a_worker_whose_namespace_is_hidden_is_found_among_others(engine, monkeypatch):
    """A process with more rights than ours does not show which namespaces it has.

    The test has all rights, so the names of namespaces are replaced: no process hides its own from it.
    """
    with name_in_another_network():
        monkeypatch.setattr(processes, "_network_namespace", lambda pid: processes.HIDDEN)
        with pytest.raises(EngineUnavailable, match="in use by a worker of another network namespace"):
            engine.reserved(20).__enter__()


def test_a_job_of_a_worker_in_another_network_namespace_is_left_alone(engine):
    uid = FIRST_UID + 22
    other = subprocess.Popen(["unshare", "--net", "setpriv", f"--reuid={uid}", "--clear-groups", "sleep", "60"])
    with other:
        end = time.monotonic() + 20
        while not processes.of_uid(uid):
            assert time.monotonic() < end
            time.sleep(0.01)
        with pytest.raises(EngineUnavailable, match="another network namespace"):
            engine.reserved(22).__enter__()
        engine.clean([22])
        assert other.poll() is None
        other.kill()


def test_a_name_in_the_network_of_a_job_reserves_no_uid(engine):
    """A job could keep workers from their uids otherwise."""
    with name_in_another_network("setpriv", f"--reuid={FIRST_UID + 22}", "--clear-groups"), engine.reserved(20):
        pass
