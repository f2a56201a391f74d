"""Attacks of reliability's section K, each against a real git and a real repository."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.workers.agent.git_faults import DANGEROUS, HARMLESS
from tests.workers.agent.repositories import ENVIRONMENT, Repository, git
from tests.workers.agent.scripted import Answer, ScriptedServer, hang, wait_until
from workers.agent import subprocesses
from workers.agent.checkout import Bounds, Checkout, CheckoutFailed, CheckoutStopped, Mirrors, open_directory
from workers.engines.contract import StopSignal

BOUNDS = Bounds(seconds=20)
URL = "https://github.com/acme/web.git"


class Place:
    """A workspace, and a checkout that finds its repositories in the mirror's folder."""

    def __init__(self, root: Path, owner: int | None, mirror: str | None = None) -> None:
        self.owner = owner
        self.workspace = root / "jobs" / "rtj_01jjob"
        self.workspace.mkdir(parents=True, mode=0o700)
        (root / "jobs").chmod(0o711)
        if owner is not None:
            os.chown(self.workspace, owner, owner)
        self.mirrors = Mirrors({"https://github.com/": mirror or f"{root}/mirrors/"})

    def fetch(self, commit: str, *, url: str = URL, bounds: Bounds = BOUNDS, stop: StopSignal | None = None) -> Path:
        checkout = Checkout(self.mirrors, bounds)
        self.missing = checkout.fetch(url, commit, into=self.workspace, owner=self.owner, stop=stop or StopSignal())
        return self.workspace


@pytest.fixture
def place(open_dir: Path, owner: int | None) -> Place:
    return Place(open_dir, owner)


def test_the_files_are_those_of_the_commit_and_belong_to_the_slot(repository: Repository, place: Place) -> None:
    first = repository.commit({"name": b"first"})
    repository.commit({"name": b"second"}, parent=first)
    workspace = place.fetch(first)
    assert (workspace / "name").read_bytes() == b"first"
    assert {path.stat().st_uid for path in workspace.rglob("*")} == {place.owner or os.geteuid()}
    assert [path.name for path in workspace.parent.iterdir()] == [workspace.name], "the configuration file is gone"


def test_a_repository_of_longer_hashes_is_checked_out(open_dir: Path, place: Place) -> None:
    repository = Repository(open_dir / "mirrors" / "acme" / "web.git", "sha256")
    commit = repository.commit({"name": b"long"})
    assert len(commit) == 64
    assert (place.fetch(commit) / "name").read_bytes() == b"long"


def test_a_commit_with_a_harmless_fault_is_checked_out_and_one_with_a_dangerous_fault_is_refused(
    open_dir: Path, owner: int | None
) -> None:
    """`git fetch` with `fsckObjects` makes each of git's warnings an error, and thereby refused flask and requests."""

    def refusal(case: tuple[int, Callable[[Repository], str]]) -> str | None:
        number, made = case
        repository = Repository(open_dir / str(number) / "mirrors" / "acme" / "web.git")
        try:
            Place(open_dir / str(number), owner).fetch(made(repository))
        except CheckoutFailed as error:
            return str(error)
        return None

    faults = HARMLESS | DANGEROUS
    with ThreadPoolExecutor(8) as threads:
        errors = dict(zip(faults, threads.map(refusal, enumerate(faults.values())), strict=True))
    assert [errors[fault] for fault in HARMLESS if errors[fault]] == []
    assert [(fault, errors[fault]) for fault in DANGEROUS if fault.partition(",")[0] not in (errors[fault] or "")] == []


def test_an_unknown_commit_fails_in_words(repository: Repository, place: Place) -> None:
    repository.commit({"name": b"x"})
    with pytest.raises(CheckoutFailed, match="does not have this commit"):
        place.fetch("b" * 40)


def test_a_missing_repository_fails_without_naming_the_mirror(place: Place) -> None:
    with pytest.raises(CheckoutFailed) as caught:
        place.fetch("b" * 40)
    assert "mirrors" not in str(caught.value)
    assert "https://github.com/acme/web.git" in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "--upload-pack=touch /tmp/x",
        "ext::sh -c true",
        "file:///etc",
        "/etc",
        "http://github.com/acme/web",
        "ssh://git@github.com/acme/web",
        "git@github.com:acme/web",
        "https://user:secret@github.com/acme/web",
        "https://github.com:22/acme/web",
        "https://github.com/../secret",
        "https://github.com/acme/..",
        "https://github.com/acme/web/extra",
        "https://github.com/acme/web?x=1",
        "https://github.com/acme/web\n",
        "https://-x/acme/web",
    ],
)
def test_an_address_of_another_form_never_reaches_git(url: str, place: Place) -> None:
    with pytest.raises(CheckoutFailed, match="must be https"):
        place.fetch("a" * 40, url=url)
    assert not list(place.workspace.iterdir())


@pytest.mark.parametrize("commit", ["HEAD", "main", "a" * 39, "A" * 40, "--upload-pack=x", "a" * 41, "a" * 40 + "\n"])
def test_a_commit_of_another_form_never_reaches_git(commit: str, place: Place) -> None:
    with pytest.raises(CheckoutFailed, match="hex digits"):
        place.fetch(commit)


def test_a_head_that_is_another_commit_is_found_out(
    repository: Repository, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = subprocesses.run_bound

    def lying(command: Any, **options: Any) -> subprocesses.CompletedCommand:
        done = run(command, **options)
        return subprocesses.CompletedCommand(0, "b" * 40 + "\n") if "rev-parse" in command else done

    monkeypatch.setattr(subprocesses, "run_bound", lying)
    with pytest.raises(CheckoutFailed, match="another commit"):
        place.fetch(repository.commit({"name": b"x"}))


def test_submodules_are_not_fetched(repository: Repository, place: Place, open_dir: Path) -> None:
    marker = open_dir / "submodule-ran"
    modules = f'[submodule "sub"]\n\tpath = sub\n\turl = ext::sh -c "touch {marker}"\n'.encode()
    commit = repository.commit({".gitmodules": modules, "name": b"x"}, sub="c" * 40)
    workspace = place.fetch(commit)
    assert list((workspace / "sub").iterdir()) == []
    assert place.missing == ["1 submodule is empty: sub"]
    assert not marker.exists()


def test_objects_that_git_itself_finds_unsound_are_not_taken(repository: Repository, place: Place) -> None:
    modules = b'[submodule "sub"]\n\tpath = sub\n\turl = --upload-pack=touch ran\n'
    commit = repository.commit({".gitmodules": modules}, sub="c" * 40)
    with pytest.raises(CheckoutFailed, match="gitmodules"):
        place.fetch(commit)


def test_git_sees_no_environment_and_no_configuration_but_ours(
    repository: Repository, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, str]] = []
    run = subprocesses.run_bound

    def watched(*arguments: Any, **options: Any) -> subprocesses.CompletedCommand:
        seen.append(options["environment"])
        return run(*arguments, **options)

    monkeypatch.setattr(subprocesses, "run_bound", watched)
    place.fetch(repository.commit({"name": b"x"}))
    for environment in seen:
        config = environment.pop("GIT_CONFIG_GLOBAL")
        assert config == f"{place.workspace}.gitconfig"
        assert environment == {
            "PATH": "/usr/bin:/bin",
            "HOME": "/nonexistent",
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "/bin/true",
            "GIT_ALLOW_PROTOCOL": "file",
            "GIT_PROTOCOL_FROM_USER": "0",
            "GIT_LFS_SKIP_SMUDGE": "1",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_CEILING_DIRECTORIES": str(place.workspace.parent),
        }


def test_filters_do_not_run_and_pointers_stay_pointers(repository: Repository, place: Place) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1\n"
    attributes = b"*.bin filter=lfs\n*.raw filter=lfs\n*.txt filter=evil\n"
    config = b'[filter "evil"]\n\tsmudge = touch smudged\n'
    commit = repository.commit(
        {
            ".gitattributes": attributes,
            ".gitconfig": config,
            "a.bin": pointer,
            "é .bin": pointer,
            "a.raw": b"\0",
            "a.txt": b"plain",
        }
    )
    workspace = place.fetch(commit)
    assert (workspace / "a.bin").read_bytes() == pointer
    assert (workspace / "a.txt").read_bytes() == b"plain"
    assert not list(workspace.rglob("smudged"))
    assert place.missing == ["2 files are Git LFS pointers: a.bin, é .bin"]


def test_no_hook_runs_and_none_is_there(
    repository: Repository, place: Place, open_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker, hooks = open_dir / "hook-ran", open_dir / "template" / "hooks"
    hooks.mkdir(parents=True)
    for name in ("post-checkout", "reference-transaction"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {marker}\n")
        (hooks / name).chmod(0o755)
    # The worker's own environment and home must not configure git.
    monkeypatch.setenv("GIT_TEMPLATE_DIR", str(hooks.parent))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.hooksPath")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(hooks))
    commit = repository.commit({"hooks/post-checkout": b"#!/bin/sh\ntouch hook-ran\n"})
    workspace = place.fetch(commit)
    assert not (workspace / ".git" / "hooks").exists()
    assert not marker.exists()
    assert not list(workspace.rglob("hook-ran"))


def test_a_monitor_alternates_and_a_nested_repository_are_ignored(
    repository: Repository, place: Place, open_dir: Path
) -> None:
    marker = open_dir / "monitor-ran"
    nested = {
        "bare/HEAD": b"ref: refs/heads/main\n",
        "bare/config": f"[core]\n\tbare = true\n\tfsmonitor = touch {marker}\n\tworktree = .\n".encode(),
        "bare/objects/info/alternates": b"/etc\n",
        "bare/refs/keep": b"",
    }
    workspace = place.fetch(repository.commit(nested))
    assert (workspace / "bare" / "config").exists()
    assert not marker.exists()
    assert not (workspace / ".git" / "objects" / "info" / "alternates").exists()


def test_links_stay_links(repository: Repository, place: Place) -> None:
    commit = repository.commit({"name": b"x"}, links={"out": "/etc/passwd", "up": "../../.."})
    workspace = place.fetch(commit)
    assert (workspace / "out").readlink() == Path("/etc/passwd")
    assert (workspace / "up").readlink() == Path("../../..")


def test_names_that_look_like_options_are_files(repository: Repository, place: Place) -> None:
    commit = repository.commit({"--upload-pack=touch x": b"1", "-f": b"2"})
    assert (place.fetch(commit) / "-f").read_bytes() == b"2"


@pytest.mark.parametrize(
    "name", [".git/config", ".GIT/config", "git~1/config", "a/../../b", "..", ".git/hooks/post-checkout"]
)
def test_a_tree_that_would_write_into_gits_own_directory_is_refused(
    name: str, repository: Repository, place: Place
) -> None:
    blob = repository.blob(b"[core]\n\tfsmonitor = touch x\n")
    tree = blob
    for part in reversed(name.split("/")):
        kind = b"100644 " if tree == blob else b"40000 "
        raw = kind + part.encode() + b"\0" + bytes.fromhex(tree)
        tree = git("hash-object", "-t", "tree", "-w", "--stdin", "--literally", at=repository.path, send=raw)
    with pytest.raises(CheckoutFailed):
        place.fetch(repository.commit_tree(tree))
    assert not (place.workspace.parent / "b").exists()


def test_too_many_bytes_are_refused(repository: Repository, place: Place) -> None:
    # Two files under the limit for one, and nothing that could be packed well.
    commit = repository.commit({"a": os.urandom(700_000), "b": os.urandom(700_000)})
    with pytest.raises(CheckoutFailed, match="too large: more than"):
        place.fetch(commit, bounds=Bounds(seconds=20, tree_bytes=2_000_000))


def test_a_small_pack_that_becomes_a_large_file_is_refused(repository: Repository, place: Place) -> None:
    commit = repository.commit({"bomb": bytes(50_000_000)})
    with pytest.raises(CheckoutFailed):
        place.fetch(commit, bounds=Bounds(seconds=20, tree_bytes=5_000_000))
    assert sum(path.lstat().st_size for path in place.workspace.rglob("*")) < 10_000_000


def test_too_many_files_are_refused(repository: Repository, place: Place) -> None:
    commit = repository.commit({f"{number}": b"" for number in range(300)})
    with pytest.raises(CheckoutFailed, match="too large: more than 200 files"):
        place.fetch(commit, bounds=Bounds(seconds=20, files=200))


def test_a_name_that_no_file_system_takes_fails_the_job_only(repository: Repository, place: Place) -> None:
    commit = repository.commit({"n" * 300: b"x"})
    with pytest.raises(CheckoutFailed, match="too long"):
        place.fetch(commit)


@pytest.fixture
def remote(open_dir: Path, owner: int | None, server: ScriptedServer) -> Place:
    """An HTTP mirror that a test can make misbehave."""
    return Place(open_dir, owner, f"{server.url}/")


def test_a_redirect_is_not_followed(remote: Place, server: ScriptedServer) -> None:
    server.on("refs?service=git-upload-pack", Answer(302, b"", {"Location": f"{server.url}/elsewhere"}))
    with pytest.raises(CheckoutFailed):
        remote.fetch("a" * 40)
    assert not [asked for asked in server.asked if "elsewhere" in asked.path]


def test_a_demand_for_credentials_fails_without_a_prompt(
    remote: Place, server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login ann password hunter2\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    server.on("refs?service=git-upload-pack", Answer(401, b"", {"WWW-Authenticate": 'Basic realm="x"'}))
    with pytest.raises(CheckoutFailed):
        remote.fetch("a" * 40)
    sent = {asked.headers.get("Authorization") for asked in server.asked}
    assert sent <= {None, "Basic Og=="}, "an empty name and an empty password at most"


def test_a_server_that_never_answers_costs_the_time_limit(remote: Place, server: ScriptedServer) -> None:
    server.on("refs?service=git-upload-pack", hang)
    begun = time.monotonic()
    with pytest.raises(CheckoutFailed, match="longer than 1 s"):
        remote.fetch("a" * 40, bounds=Bounds(seconds=1))
    assert time.monotonic() - begun < 15
    assert not processes_about(remote.workspace)


def test_a_stop_ends_the_checkout_and_every_process_of_it(remote: Place, server: ScriptedServer) -> None:
    server.on("refs?service=git-upload-pack", hang)
    stop = StopSignal()
    threading.Thread(target=lambda: (wait_until(lambda: server.asked), stop.request())).start()
    with pytest.raises(CheckoutStopped):
        remote.fetch("a" * 40, stop=stop)
    assert not processes_about(remote.workspace)


WORKER = """
import sys
from pathlib import Path
from typing import Any
from workers.agent import subprocesses
from workers.agent.checkout import Checkout, Mirrors
from workers.engines.contract import StopSignal
into, mirror, owner = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
Checkout(Mirrors({"https://github.com/": mirror})).fetch(
    "https://github.com/acme/web.git", "a" * 40, into=into, owner=owner if owner >= 0 else None, stop=StopSignal())
"""


def test_no_process_of_git_outlives_a_killed_worker(remote: Place, server: ScriptedServer) -> None:
    server.on("refs?service=git-upload-pack", hang)
    owner = -1 if remote.owner is None else remote.owner
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(remote.workspace), f"{server.url}/", str(owner)])
    try:
        wait_until(lambda: server.asked)
        assert len(processes_about(remote.workspace)) >= 2, "the shell, git and its helper"
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    wait_until(lambda: not processes_about(remote.workspace))


def processes_about(workspace: Path) -> list[str]:
    """The living processes whose working directory or command line is in `workspace`."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                where = (process / "cwd").readlink()
            except OSError:
                continue
            if where.is_relative_to(workspace):
                found.append(f"{process.name} {words}")
    return found


def test_only_the_longest_prefix_of_the_mirrors_counts() -> None:
    mirrors = Mirrors({"https://github.com/": "/all/", "https://github.com/acme/": "https://mirror.example/acme/"})
    assert mirrors.address("https://github.com/acme/web.git") == "https://mirror.example/acme/web.git"
    assert mirrors.address("https://github.com/other/web.git") == "file:///all/other/web.git"
    assert mirrors.address("https://gitlab.example/acme/web") == "https://gitlab.example/acme/web"


@pytest.mark.parametrize("name", [".", "", "a", "a/b", "./a/", "a//b"])
def test_a_directory_of_the_repository_is_inside(name: str, tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    with open_directory(tmp_path, name) as found:
        assert found.resolve() == (tmp_path / name).resolve()


@pytest.mark.parametrize("name", ["..", "a/../..", "/etc", "link", "link/x", "up", "file", "missing", "a\0b", "a/link"])
def test_a_working_directory_that_leaves_or_is_none_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "file").touch()
    for link, target in {"link": "/etc", "up": "..", "a/link": "../a"}.items():
        (tmp_path / link).symlink_to(target)
    with pytest.raises(CheckoutFailed, match="working directory"), open_directory(tmp_path, name):
        pass


def test_an_open_directory_is_the_same_when_its_name_has_become_a_link(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").touch()
    with open_directory(tmp_path, "a") as found:
        (tmp_path / "a").rename(tmp_path / "b")
        (tmp_path / "a").symlink_to("/etc")
        assert [path.name for path in found.iterdir()] == ["file"]
    assert not found.exists()


def test_the_worker_may_be_found_by_its_git(repository: Repository) -> None:
    """The fixture itself makes repositories that git finds sound."""
    repository.commit({"name": b"x"})
    done = subprocess.run(["git", "fsck", "--strict"], cwd=repository.path, env=ENVIRONMENT, check=False)
    assert done.returncode == 0


def test_a_git_that_prints_nothing_is_reported_in_plain_words(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = subprocesses.CompletedCommand(1, "")
    monkeypatch.setattr(subprocesses, "run_bound", lambda *_, **__: silent)
    with pytest.raises(CheckoutFailed, match=r"^git init: it ended without a message$"):
        place.fetch("0" * 40)
