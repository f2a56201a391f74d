"""Git clones and fetches from the real server: every version, any commit, any size, and no push."""

import gzip
import os
import shutil
import signal
import socket
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import requests

from orchestrator.core.sealing import SealedValueError
from orchestrator.repositories.contents import resolve_ref
from orchestrator.repositories.errors import GitFailed
from orchestrator.repositories.mirrors import mirror_path, seal_credential, update_mirror
from orchestrator.services import job_end
from runtime_jobs.states import FailureReason
from tests.factories import api_token
from tests.live_server import eventually, serving
from tests.orchestrator.protocols.git_http.world import ROOT_KEY, basic, run_git, running_job
from tests.orchestrator.repositories.world import Origin, added, mirrored

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
VERSIONS = pytest.mark.parametrize("version", ["0", "1", "2"])
ADVERTISEMENT = "application/x-git-upload-pack-advertisement"
REQUEST = {"Content-Type": "application/x-git-upload-pack-request"}


# A git that answers, and then ignores what a process can ignore. `timeout` ends it after all, if the server does not.
DEAF_GIT = """#!/bin/sh
trap '' TERM PIPE HUP INT
printf '0008NAK\\n'
exec sleep 300
"""


@pytest.fixture(autouse=True)
def no_process_remains(mirrors):
    """After each test and its server, no git is left, whatever has ended it. One that is left is killed."""
    yield
    try:
        eventually(lambda: not processes_below(mirrors))
    finally:
        for pid in processes_below(mirrors):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def processes_below(folder: Path) -> list[int]:
    """The processes that name a folder in their command line, or are in the group of one: all of a fetch."""
    found, groups = {}, set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, _parent, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if state != "Z":
                found[int(entry.name)] = int(group)
            if b"upload-pack" in (line := (entry / "cmdline").read_bytes()) and os.fsencode(folder) in line:
                groups.add(int(group))
    return [pid for pid, group in found.items() if group in groups]


@pytest.fixture
def repository(origin):
    return mirrored(origin, is_private=True)


@pytest.fixture(scope="module")
def mirrors_of_module(tmp_path_factory):
    return tmp_path_factory.mktemp("mirrors")


@pytest.fixture(autouse=True)
def mirrors(folders, mirrors_of_module, settings):
    """The folder of the mirrors of all servers here, which is empty at the beginning of each test."""
    settings.MIRROR_DIR = str(mirrors_of_module)
    for path in mirrors_of_module.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return mirrors_of_module


@contextmanager
def git_server(folder, database_url, mirrors, queue_seconds, stall_seconds=5):
    with serving(
        folder,
        DATABASE_URL=database_url,
        MIRROR_DIR=str(mirrors),
        ACTIONS_ROOT_KEY=ROOT_KEY,
        STREAM_STALL_SECONDS=str(stall_seconds),
        BODY_SECONDS="5",
        GIT_PROCESSES="4",
        GIT_QUEUE_SECONDS=str(queue_seconds),
    ) as server:
        yield server


@pytest.fixture(scope="module")
def server(database_url, tmp_path_factory, mirrors_of_module):
    folder = tmp_path_factory.mktemp("server")
    with git_server(folder, database_url, mirrors_of_module, queue_seconds=60) as server:  # no test waits for it
        yield server


@pytest.fixture
def own_server(database_url, tmp_path, mirrors):
    """A server for a test that ends it, or that reads its log."""
    with git_server(tmp_path, database_url, mirrors, queue_seconds=1) as server:
        yield server


def lines(result) -> str:
    return f"{result.args}\n{result.stdout}{result.stderr}"


def processes_of(server) -> list[int]:
    """The processes of git that the server has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == server.process.pid and b"upload-pack" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


@VERSIONS
def test_a_runner_fetches_the_commit_of_its_job_as_the_contract_says(server, repository, origin, tmp_path, version):
    """Contract 3.6: init, a remote, a fetch of one commit by its id, a detached checkout."""
    commit = origin.commits[0]  # not the tip of any branch
    running = running_job(repository, commit)
    work = tmp_path / "work"
    work.mkdir()
    run_git("init", "-q", at=work)
    run_git("remote", "add", "origin", f"{server.url}/acme/web.git", at=work)
    options = ("-c", f"protocol.version={version}")
    fetched = run_git(*options, "fetch", "--no-tags", "--depth=1", "origin", commit, at=work, secret=running.token())
    assert fetched.returncode == 0, lines(fetched) + server.log()
    run_git("checkout", "-q", "--detach", commit, at=work)
    assert run_git("rev-parse", "HEAD", at=work).stdout.strip() == commit
    assert (work / "README").read_text() == "1\n"
    assert running.token() not in server.log()


@pytest.mark.parametrize("version", ["0", "2"])
def test_a_checkout_token_clones_while_the_job_runs_and_nothing_after_its_end(
    server, repository, origin, tmp_path, version
):
    """One job from its claim to its end: the clone, an older commit by its id, no push, no other repository, then 401."""
    other = Origin(tmp_path / "origins" / "other.git")
    other.commit({"README": b"other\n"})
    mirrored(other, full_name="acme/other", is_private=True, project=repository.project)
    running = running_job(repository, origin.commits[-1])
    token, options, copy = running.token(), ("-c", f"protocol.version={version}"), tmp_path / "copy"
    url, headers = f"{server.url}/acme/web.git", {"Authorization": basic(running.token())}

    cloned = run_git(*options, "clone", "-q", url, "copy", at=tmp_path, secret=token)
    assert cloned.returncode == 0, lines(cloned) + server.log()
    assert run_git("rev-parse", "HEAD", at=copy).stdout.strip() == origin.commits[-1]
    shallow = tmp_path / "shallow"
    run_git("init", "-q", "shallow", at=tmp_path)
    fetched = run_git(*options, "fetch", "-q", "--depth=1", url, origin.commits[0], at=shallow, secret=token)
    assert fetched.returncode == 0, lines(fetched) + server.log()
    assert run_git("rev-parse", "FETCH_HEAD", at=shallow).stdout.strip() == origin.commits[0]

    pushed = run_git(*options, "push", "origin", "HEAD:refs/heads/mine", at=copy, secret=token)
    assert (pushed.returncode != 0, "403" in pushed.stderr) == (True, True), lines(pushed)
    refusal = requests.get(f"{url}/info/refs?service=git-receive-pack", headers=headers, timeout=60)
    assert (refusal.status_code, "read-only" in refusal.text) == (403, True)
    foreign = run_git(*options, "clone", f"{server.url}/acme/other.git", at=tmp_path, secret=token)
    assert foreign.returncode != 0
    address = f"{server.url}/acme/other.git/info/refs?service=git-upload-pack"
    assert requests.get(address, headers=headers, timeout=60).status_code == 404

    assert requests.get(f"{url}/info/refs?service=git-upload-pack", headers=headers, timeout=60).status_code == 200
    job_end.fail(lease_ulid=running.lease.lease_ulid, worker=running.worker, reason=FailureReason.WORKER_ERROR)
    ended = requests.get(f"{url}/info/refs?service=git-upload-pack", headers=headers, timeout=60)
    assert (ended.status_code, ended.headers["WWW-Authenticate"]) == (401, 'Basic realm="shithub"')
    assert requests.get(address, headers=headers, timeout=60).status_code == 401
    refused = run_git(*options, "fetch", "-q", at=copy, secret=token)
    assert refused.returncode != 0


@VERSIONS
def test_a_clone_has_all_branches_and_the_default_one(server, repository, origin, tmp_path, version):
    token = api_token(repository.project.organization)
    options = ("-c", f"protocol.version={version}")
    cloned = run_git(*options, "clone", "-q", f"{server.url}/acme/web.git", "copy", at=tmp_path, secret=token)
    assert cloned.returncode == 0, lines(cloned) + server.log()
    assert run_git("rev-parse", "HEAD", at=tmp_path / "copy").stdout.strip() == origin.commits[-1]
    assert run_git("branch", "-r", at=tmp_path / "copy").stdout.split()[0] == "origin/HEAD"
    pulled = origin.commit({"README": b"4\n"}, parent=origin.commits[-1])
    update_mirror(repository)
    fetched = run_git(*options, "fetch", "-q", at=tmp_path / "copy", secret=token)
    assert fetched.returncode == 0, lines(fetched)
    assert run_git("rev-parse", "origin/main", at=tmp_path / "copy").stdout.strip() == pulled


@VERSIONS
def test_a_commit_that_a_force_push_has_removed_is_fetched_by_its_id(server, repository, origin, tmp_path, version):
    lost = origin.commits[-1]
    origin.commit({"README": b"new\n"})
    update_mirror(repository)
    run_git("init", "-q", "copy", at=tmp_path)
    token = api_token(repository.project.organization)
    options = ("-c", f"protocol.version={version}")
    fetched = run_git(*options, "fetch", "-q", f"{server.url}/acme/web.git", lost, at=tmp_path / "copy", secret=token)
    assert fetched.returncode == 0, lines(fetched) + server.log()


def test_an_unknown_commit_is_an_error_that_git_displays(server, repository, tmp_path):
    run_git("init", "-q", "copy", at=tmp_path)
    token = api_token(repository.project.organization)
    fetched = run_git("fetch", "-q", f"{server.url}/acme/web.git", "5" * 40, at=tmp_path / "copy", secret=token)
    assert fetched.returncode != 0
    assert "not our ref" in fetched.stderr


def test_a_large_request_of_a_client_with_many_commits_is_compressed_and_continued(
    server, repository, origin, tmp_path
):
    """A POST above `http.postBuffer` is chunked, after a probe; a smaller one is compressed above 1 KiB."""
    token = api_token(repository.project.organization)
    copy = tmp_path / "copy"
    run_git("clone", "-q", f"{server.url}/acme/web.git", "copy", at=tmp_path, secret=token)
    for number in range(300):
        run_git("update-ref", f"refs/heads/own-{number}", _own_commit(copy, number), at=copy)
    origin.commit({"README": b"4\n"}, parent=origin.commits[-1])
    update_mirror(repository)
    for size in ("65536", "1048576"):
        fetched = run_git(
            "-c", f"http.postBuffer={size}", "-c", "protocol.version=0", "fetch", "-v", at=copy, secret=token
        )
        assert fetched.returncode == 0, lines(fetched) + server.log()


def _own_commit(copy, number: int) -> str:
    identity = {
        "GIT_AUTHOR_NAME": "A",
        "GIT_AUTHOR_EMAIL": "a@x",
        "GIT_COMMITTER_NAME": "A",
        "GIT_COMMITTER_EMAIL": "a@x",
    }
    return run_git("commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", str(number), at=copy, **identity).stdout.strip()


def test_a_push_is_refused_in_words(server, repository, origin, tmp_path):
    running = running_job(repository)
    run_git("clone", "-q", f"{server.url}/acme/web.git", "copy", at=tmp_path, secret=running.token())
    pushed = run_git("push", "origin", "HEAD:refs/heads/mine", at=tmp_path / "copy", secret=running.token())
    assert pushed.returncode != 0
    assert "403" in pushed.stderr
    headers = {"Authorization": basic(running.token())}
    for method, path in (("GET", "info/refs?service=git-receive-pack"), ("POST", "git-receive-pack")):
        response = requests.request(method, f"{server.url}/acme/web.git/{path}", headers=headers, timeout=60)
        assert response.status_code == 403
        assert "read-only" in response.text
        assert response.headers["Content-Type"].startswith("text/plain")


def test_git_sends_the_credentials_after_the_challenge_and_without_them_fails(server, repository, tmp_path):
    refused = run_git("ls-remote", f"{server.url}/acme/web.git", at=tmp_path)
    assert refused.returncode != 0
    response = requests.get(f"{server.url}/acme/web.git/info/refs?service=git-upload-pack", timeout=60)
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"] == 'Basic realm="shithub"'


def test_the_advertisement_has_the_banner_and_headers_of_the_contract(server, repository):
    headers = {"Authorization": basic(api_token(repository.project.organization))}
    url = f"{server.url}/acme/web.git/info/refs?service=git-upload-pack"
    first = requests.get(url, headers=headers, timeout=60)
    assert first.status_code == 200
    assert first.content.startswith(b"001e# service=git-upload-pack\n0000")
    assert first.content.endswith(b"0000")
    assert first.headers["Content-Type"] == ADVERTISEMENT
    assert "no-cache" in first.headers["Cache-Control"]
    second = requests.get(url, headers={**headers, "Git-Protocol": "version=2"}, timeout=60)
    assert second.content.startswith(b"000eversion 2\n")


BAD_REQUESTS = [
    ("GET", "info/refs", {}, 400),
    ("GET", "info/refs?service=git-upload-archive", {}, 400),
    ("POST", "info/refs?service=git-upload-pack", {}, 405),
    ("HEAD", "info/refs?service=git-upload-pack", {}, 405),
    ("GET", "git-upload-pack", {}, 405),
    ("PUT", "git-upload-pack", {}, 405),
    ("GET", "git-receive-pack", {}, 405),
    ("POST", "git-upload-pack", {"Content-Type": "application/json"}, 415),
    ("POST", "git-upload-pack", REQUEST | {"Content-Encoding": "br"}, 415),
    ("POST", "git-upload-pack", REQUEST | {"Content-Encoding": "gzip"}, 400),
]


@pytest.mark.parametrize(("method", "path", "headers", "status"), BAD_REQUESTS)
def test_a_bad_request_is_refused_in_plain_text_and_without_a_redirect(
    server, repository, method, path, headers, status
):
    headers = headers | {"Authorization": basic(api_token(repository.project.organization))}
    url = f"{server.url}/acme/web.git/{path}"
    response = requests.request(method, url, headers=headers, data=b"0000", allow_redirects=False, timeout=60)
    assert response.status_code == status, response.text
    assert response.headers["Content-Type"].startswith("text/plain")
    assert "Location" not in response.headers


WANT = f"0032want {'f' * 40}\n"
# The version of the protocol, the body of a fetch, and a part of git's own message.
WRONG_FETCHES = [
    ("2", "0017command=bundle-uri\n0000", "invalid command 'bundle-uri'"),
    ("2", "0014command=unknown\n0000", "invalid command 'unknown'"),
    ("2", "0012command=fetch\n00010015filter blob:none\n0000", "unexpected line: 'filter blob:none'"),
    ("2", "0014command=ls-refs\n0001000bbadarg\n0000", "unexpected line: 'badarg'"),
    ("2", "0014command=ls-refs\n001aobject-format=sha256\n0000", "object format"),
    ("2", "zzzz", "bad line length character: zzzz"),
    ("2", "0003", "bad line length 3"),
    ("2", "0012command=\x1b[31m\n0000", "invalid command '?[31m'"),
    ("0", "0032want", "hung up"),
    ("0", "0009hello", "expected to get object ID, not 'hello'"),
    ("0", "0032want COMMIT\n0016deepen everything\n0000", "Invalid deepen"),
    ("0", "", "hung up"),
]


def test_a_fetch_that_git_does_not_understand_is_400_with_the_message_of_git(server, repository):
    headers = REQUEST | {"Authorization": basic(api_token(repository.project.organization))}
    found = []
    for version, body, message in WRONG_FETCHES:
        protocol = headers | {"Git-Protocol": f"version={version}"}
        url = f"{server.url}/acme/web.git/git-upload-pack"
        sent = body.replace("COMMIT", resolve_ref(repository, "main")).encode()
        answer = requests.post(url, headers=protocol, data=sent, timeout=60)
        found.append((body, message, answer.status_code, answer.text))
    assert [one for one in found if one[2] != 400] == []
    assert [one for one in found if one[1] not in one[3] or not one[3].strip().isprintable()] == []
    assert [one for one in found if "mirror" in one[3]] == []
    # Where git sends an error in its protocol, the client receives it there.
    answer = requests.post(url, headers=headers, data=f"{WANT}00000009done\n".encode(), timeout=60)
    assert (answer.status_code, answer.text) == (200, f"0049ERR upload-pack: not our ref {'f' * 40}")


def test_a_fetch_from_a_mirror_that_cannot_be_read_is_500_however_wrong_it_is(server, repository):
    (mirror_path(repository) / "HEAD").unlink()
    headers = REQUEST | {"Authorization": basic(api_token(repository.project.organization))}
    answer = requests.post(f"{server.url}/acme/web.git/git-upload-pack", headers=headers, data=b"zzzz", timeout=60)
    assert answer.status_code == 500


@pytest.mark.parametrize("path", ["HEAD", "objects/info/packs", "config", "info/refs/", "git-upload-pack/"])
def test_other_paths_of_a_repository_do_not_exist(server, repository, path):
    assert requests.get(f"{server.url}/acme/web.git/{path}", timeout=60).status_code == 404


def test_a_bomb_is_413_before_a_process_starts(server, repository):
    headers = REQUEST | {
        "Authorization": basic(api_token(repository.project.organization)), "Content-Encoding": "gzip"
    }  # fmt: skip
    bomb = gzip.compress(b"\0" * (64 << 20))
    response = requests.post(f"{server.url}/acme/web.git/git-upload-pack", headers=headers, data=bomb, timeout=60)
    assert response.status_code == 413
    assert processes_of(server) == []


def test_a_client_that_waits_for_100_continue_gets_it_only_with_valid_credentials(server, repository):
    for secret, expected in (("wrong", b"HTTP/1.1 401"), (api_token(repository.project.organization), b"HTTP/1.1 100")):
        with server.connect() as client:
            head = [
                "POST /acme/web.git/git-upload-pack HTTP/1.1",
                f"Host: 127.0.0.1:{server.address[1]}",
                f"Authorization: {basic(secret)}",
                f"Content-Type: {REQUEST['Content-Type']}",
                "Content-Length: 4",
                "Expect: 100-continue",
            ]
            client.sendall("\r\n".join([*head, "", ""]).encode())
            answer = client.recv(4096)
            assert answer.startswith(expected), answer
            if expected.endswith(b"401"):
                assert b"connection: close" in answer.lower()
            else:
                client.sendall(b"0000")
                assert b"HTTP/1.1 200" in client.recv(4096)


# --- many and slow clients --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large_blobs(tmp_path_factory):
    """A bare repository with a pack of 16 MB: all buffers between git and a client take some 5 MB.

    Git tries to compress them for seconds. Once is enough for all tests here.
    """
    found = Origin(tmp_path_factory.mktemp("large") / "blobs.git")
    found.commit({f"{number}.bin": os.urandom(4 << 20) for number in range(4)})
    found.git("repack", "-a", "-d", "-q")
    return found


@pytest.fixture
def large(origin, large_blobs):
    """A repository that has the large blobs."""
    for pack in (large_blobs.path / "objects" / "pack").iterdir():
        shutil.copy(pack, origin.path / "objects" / "pack")
    origin.commit_tree(large_blobs.git("rev-parse", "main^{tree}"), parent=origin.commits[-1])
    return mirrored(origin)


def begin_clone(server, commit: str) -> socket.socket:
    """A client that requests everything and reads nothing."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(60)
    client.connect(server.address)
    want = f"want {commit} side-band-64k ofs-delta\n"
    body = f"{len(want) + 4:04x}{want}00000009done\n".encode()
    head = (
        f"POST /acme/web.git/git-upload-pack HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: {REQUEST['Content-Type']}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    client.sendall(head.encode() + body)
    return client


@pytest.fixture
def deaf_server(database_url, tmp_path, settings):
    """A server whose git never ends by itself, and ignores every signal that can be ignored."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "git").write_text(DEAF_GIT)
    (programs / "git").chmod(0o755)
    with serving(
        tmp_path,
        DATABASE_URL=database_url,
        MIRROR_DIR=settings.MIRROR_DIR,
        PATH=f"{programs}:{os.environ['PATH']}",
        GIT_TRANSFER_SECONDS="120",
        GIT_PROCESSES="6",
    ) as server:
        yield server


def test_a_client_that_disconnects_ends_the_whole_process_group(deaf_server, large, origin, mirrors):
    with begin_clone(deaf_server, origin.git("rev-parse", "main")) as client:
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        assert len(processes_below(mirrors)) == 2  # `timeout`, and git under it
    eventually(lambda: not processes_below(mirrors))
    assert requests.get(f"{deaf_server.url}/healthz", timeout=60).status_code == 200


def test_a_server_that_is_stopped_ends_the_fetches_that_do_not_end_in_time(deaf_server, large, origin, mirrors):
    """At its end the server cancels each request twice: the second one must not interrupt the end of its process."""
    commit = origin.git("rev-parse", "main")
    with begin_clone(deaf_server, commit), begin_clone(deaf_server, commit), begin_clone(deaf_server, commit):
        eventually(lambda: len(processes_below(mirrors)) == 6)
        deaf_server.process.send_signal(signal.SIGTERM)
        deaf_server.process.wait(120)
        eventually(lambda: not processes_below(mirrors))


@pytest.fixture
def patient_server(database_url, tmp_path, mirrors):
    """A server that disconnects clients so late that a request between is refused before, also under load."""
    with git_server(tmp_path, database_url, mirrors, queue_seconds=1, stall_seconds=20) as server:
        yield server


def test_a_client_that_reads_nothing_is_disconnected_and_the_others_are_served(patient_server, large, origin, tmp_path):
    commit, server = origin.git("rev-parse", "main"), patient_server
    with begin_clone(server, commit), begin_clone(server, commit):
        eventually(lambda: len(processes_of(server)) == 2)
        # One network has half of the slots: the next request of it waits, then gets 503.
        busy = requests.get(f"{server.url}/acme/web.git/info/refs?service=git-upload-pack", timeout=60)
        token = api_token(large.project.organization)
        cloned = run_git("clone", "-q", f"{server.url}/acme/web.git", "copy", at=tmp_path,
                         GIT_CONFIG_COUNT="1", GIT_CONFIG_KEY_0="http.extraHeader",
                         GIT_CONFIG_VALUE_0=f"Authorization: {basic(token)}")  # fmt: skip
        assert cloned.returncode == 0, lines(cloned)
        assert (busy.status_code, "Retry-After" in busy.headers) == (503, True)
        eventually(lambda: not processes_of(server))
    eventually(lambda: "the client does not read" in server.log())


def test_fetches_take_neither_threads_nor_connections(large, origin, database_url, tmp_path, settings):
    """With one thread and one connection, requests are answered while three clients read nothing."""
    with serving(
        tmp_path,
        DATABASE_URL=database_url,
        MIRROR_DIR=settings.MIRROR_DIR,
        REQUEST_THREADS="1",
        DATABASE_POOL_MAX="1",
        GIT_PROCESSES="6",
    ) as server:
        commit = origin.git("rev-parse", "main")
        with begin_clone(server, commit), begin_clone(server, commit), begin_clone(server, commit):
            eventually(lambda: len(processes_of(server)) == 3)
            for _ in range(3):
                assert requests.get(f"{server.url}/readyz", timeout=60).status_code in {200, 503}
                assert requests.get(f"{server.url}/v1/jobs", timeout=60).status_code == 401
        eventually(lambda: not processes_of(server))


def test_clients_fetch_at_the_same_time(server, repository, origin, tmp_path):
    """More than one client may have slots: those that wait are served in turn."""
    token, results = api_token(repository.project.organization), {}

    def clone(number: int) -> None:
        results[number] = run_git(
            "clone", "-q", f"{server.url}/acme/web.git", f"copy-{number}", at=tmp_path, secret=token
        )

    threads = [threading.Thread(target=clone, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [lines(result) for result in results.values() if result.returncode] == []


def test_the_log_and_the_metrics_have_the_route_and_no_names(own_server, repository):
    headers = {"Authorization": basic(api_token(repository.project.organization))}
    requests.get(f"{own_server.url}/acme/web.git/info/refs?service=git-upload-pack", headers=headers, timeout=60)
    eventually(lambda: "GET /{owner}/{repository}.git/info/refs 200" in own_server.log())
    assert "acme" not in own_server.log()
    text = requests.get(f"{own_server.url}/metrics", timeout=60).text
    assert 'route="/{owner}/{repository}.git/info/refs"' in text


def test_a_mirror_that_cannot_be_read_is_500_and_its_reason_is_in_the_log(own_server, repository):
    (mirror_path(repository) / "HEAD").unlink()
    headers = {"Authorization": basic(api_token(repository.project.organization))}
    url = f"{own_server.url}/acme/web.git/info/refs?service=git-upload-pack"
    assert requests.get(url, headers=headers, timeout=60).status_code == 500
    eventually(lambda: "git upload-pack ended with code" in own_server.log())


@VERSIONS
def test_refs_of_the_server_are_hidden_from_clients(server, repository, origin, tmp_path, version):
    """A commit of a fork was fetched by its id, and a ref keeps it."""
    tree = origin.git("rev-parse", "main^{tree}")
    fork = origin.git("commit-tree", tree, "-m", "of a fork")
    origin.git("config", "uploadpack.allowAnySHA1InWant", "true")
    update_mirror(repository, commit=fork)
    token = api_token(repository.project.organization)
    options = ("-c", f"protocol.version={version}")
    listed = run_git(*options, "ls-remote", f"{server.url}/acme/web.git", at=tmp_path, secret=token)
    assert listed.returncode == 0, lines(listed)
    assert sorted(line.split("\t")[1] for line in listed.stdout.splitlines()) == ["HEAD", "refs/heads/main"]


# --- processes that die -----------------------------------------------------------------------------------------------


def test_a_response_whose_process_was_killed_is_not_complete(patient_server, large, origin):
    with begin_clone(patient_server, origin.git("rev-parse", "main")) as client:
        (pid,) = eventually(lambda: processes_of(patient_server))
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        os.killpg(pid, signal.SIGKILL)
        received = b""
        with suppress(ConnectionResetError):
            while block := client.recv(1 << 20):
                received = (received + block)[-100:]
    assert not received.endswith(b"0\r\n\r\n")
    eventually(lambda: "git was killed" in patient_server.log())


def test_no_git_outlives_a_killed_server(own_server, large, origin, mirrors):
    with begin_clone(own_server, origin.git("rev-parse", "main")):
        eventually(lambda: processes_below(mirrors))
        own_server.process.kill()
        own_server.process.wait()
        eventually(lambda: not processes_below(mirrors))


# --- the server as the origin of another mirror -----------------------------------------------------------------------


@pytest.fixture
def copy(server, repository, settings):
    """A repository whose origin is the private repository of the real server, in the place of github.com."""
    settings.GIT_MIRRORS = {"https://github.com/": f"{server.url}/"}
    return added("https://github.com/acme/web.git", full_name="acme/copy")


def test_an_origin_that_asks_for_credentials_is_mirrored_with_the_sealed_one(copy, repository, origin):
    token = api_token(repository.project.organization)
    for credential in (token, f"anyone:{token}"):
        copy.sealed_credential = seal_credential("acme/copy", credential)
        update_mirror(copy)
        assert resolve_ref(copy, "main") == origin.commits[-1]


@pytest.mark.parametrize("credential", [None, "user:sesame"])
def test_without_a_valid_credential_there_is_no_mirror_and_no_secret_in_the_error(copy, credential):
    copy.sealed_credential = seal_credential("acme/copy", credential) if credential else None
    with pytest.raises(GitFailed) as raised:
        update_mirror(copy)
    assert "sesame" not in str(raised.value)
    assert "127.0.0.1" not in str(raised.value)


def test_a_credential_of_another_repository_does_not_open(copy, repository):
    copy.sealed_credential = seal_credential("acme/other", f"x:{api_token(repository.project.organization)}")
    with pytest.raises(SealedValueError):
        update_mirror(copy)
