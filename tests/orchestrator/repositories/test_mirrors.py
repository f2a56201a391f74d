"""A mirror follows its origin, keeps all commits, and survives what kills git."""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from orchestrator.repositories import mirrors
from orchestrator.repositories.contents import default_ref, has_commit, resolve_ref
from orchestrator.repositories.errors import (
    CommitNotFound,
    GitFailed,
    GitLimitExceeded,
    InvalidOrigin,
    MirrorMissing,
    RefNotFound,
)
from orchestrator.repositories.git import GitLimits, git_command, readable_message, run_git
from orchestrator.repositories.mirrors import (
    delete_mirror,
    mirror_path,
    mirrored_ids,
    require_mirror,
    update_mirror,
    validate_origin,
)
from runtime_jobs.models import Repository
from tests.orchestrator.repositories.world import Origin, added, mirrored

pytestmark = pytest.mark.django_db


def mirror_git(repository: Repository, *arguments: str) -> str:
    command = ["git", "-c", "safe.bareRepository=all", f"--git-dir={mirror_path(repository)}", *arguments]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


def test_a_mirror_has_the_branches_and_tags_and_the_default_branch_of_its_origin(origin):
    first = origin.commit({"a": b"1"})
    origin.branch("release/1", first)
    origin.tag("v1", first)
    origin.git("symbolic-ref", "HEAD", "refs/heads/release/1")
    repository = mirrored(origin)
    assert resolve_ref(repository, "refs/heads/main") == first
    assert resolve_ref(repository, "v1") == first
    assert default_ref(repository) == "refs/heads/release/1"
    repository.refresh_from_db()
    assert repository.mirrored_at is not None


def test_an_update_follows_forced_pushes_and_deleted_branches_and_keeps_their_commits(origin):
    first = origin.commit({"a": b"1"})
    origin.branch("topic", first)
    repository = mirrored(origin)
    second = origin.commit({"a": b"2"})  # without a parent: a forced push
    origin.git("update-ref", "-d", "refs/heads/topic")
    update_mirror(repository)
    assert resolve_ref(repository, "main") == second
    with pytest.raises(RefNotFound):
        resolve_ref(repository, "topic")
    assert has_commit(repository, first)


def test_a_commit_of_no_branch_is_fetched_by_its_id_and_hidden_from_clients(origin):
    origin.commit({"a": b"1"})
    repository = mirrored(origin)
    tree = origin.git("rev-parse", "main^{tree}")
    fork = origin.git("commit-tree", tree, "-m", "of a fork")
    origin.git("config", "uploadpack.allowAnySHA1InWant", "true")
    update_mirror(repository)
    assert not has_commit(repository, fork)
    update_mirror(repository, commit=fork)
    assert has_commit(repository, fork)
    assert mirrors.COMMIT_REFS + fork in mirror_git(repository, "for-each-ref", "--format=%(refname)")
    update_mirror(repository)  # with --prune, which must keep the ref
    assert mirrors.COMMIT_REFS + fork in mirror_git(repository, "for-each-ref", "--format=%(refname)")


def test_a_commit_that_the_origin_does_not_have_is_not_found(origin):
    origin.commit({"a": b"1"})
    repository = mirrored(origin)
    with pytest.raises(CommitNotFound):
        update_mirror(repository, commit="5" * 40)
    with pytest.raises(CommitNotFound):
        update_mirror(repository, commit="--upload-pack=true")


def test_an_empty_origin_has_a_mirror_without_refs(origin):
    repository = mirrored(origin)
    with pytest.raises(RefNotFound):
        resolve_ref(repository, "main")
    commit = origin.commit({"a": b"1"})
    update_mirror(repository)
    assert resolve_ref(repository, "main") == commit


def test_a_repository_of_sha256_is_mirrored(folders):
    origin = Origin(folders / "origins" / "new.git", "sha256")
    commit = origin.commit({"a": b"1"})
    assert len(commit) == 64
    assert resolve_ref(mirrored(origin), "main") == commit


def test_without_a_complete_first_copy_there_is_no_mirror(origin, settings):
    origin.commit({"a": os.urandom(1 << 20)})
    repository = added(origin.path)
    settings.MIRROR_LIMIT_BYTES = 1 << 16
    with pytest.raises((GitFailed, GitLimitExceeded)):
        update_mirror(repository)
    with pytest.raises(MirrorMissing):
        require_mirror(repository)
    repository.refresh_from_db()
    assert repository.mirrored_at is None
    settings.MIRROR_LIMIT_BYTES = 1 << 30
    update_mirror(repository)
    assert require_mirror(repository).is_dir()


def test_an_update_removes_what_a_killed_git_has_left(origin):
    first = origin.commit({"a": b"1"})
    repository = mirrored(origin)
    mirror = mirror_path(repository)
    for name in ("HEAD.lock", "packed-refs.lock", "refs/heads/main.lock", "objects/pack/tmp_pack_x"):
        (mirror / name).parent.mkdir(parents=True, exist_ok=True)
        (mirror / name).touch()
    second = origin.commit({"a": b"2"}, parent=first)
    update_mirror(repository)
    assert resolve_ref(repository, "main") == second
    assert not [*mirror.rglob("*.lock"), *mirror.glob("objects/pack/tmp_*")]


def test_many_packs_are_joined_and_no_commit_is_lost(origin, monkeypatch):
    monkeypatch.setattr(mirrors, "MAX_PACKS", 3)
    repository = mirrored(origin)
    commits = []
    for number in range(6):
        commits.append(origin.commit({"a": b"%d" % number}))  # each replaces the one before
        update_mirror(repository)
    packs = list(mirror_path(repository).glob("objects/pack/*.pack"))
    assert len(packs) <= 4
    assert all(has_commit(repository, commit) for commit in commits)


@pytest.fixture
def many_packs(origin, monkeypatch):
    """A repository whose next update joins the packs of the mirror, which has random content."""
    monkeypatch.setattr(mirrors, "MAX_PACKS", 1)
    first = origin.commit({"a": os.urandom(1 << 18)})
    repository = mirrored(origin)
    origin.commit({"a": os.urandom(1 << 10)}, parent=first)
    return repository


def test_a_mirror_above_half_of_its_limit_joins_its_packs(many_packs, monkeypatch, settings):
    """Git needs the place of both packs for a short time. Here they are measured at the end of it."""
    settings.MIRROR_LIMIT_BYTES = 400 << 10
    reasons = []

    def measured(git_dir, *arguments, watch, **options):
        if arguments[0] == "repack":
            part = git_dir / "objects" / "pack" / "tmp_pack_x"
            part.write_bytes(bytes(260 << 10))
            reasons.append(watch())
            part.unlink()
            if reasons[-1] is not None:
                raise GitLimitExceeded(reasons[-1])
        return run_git(git_dir, *arguments, watch=watch, **options)

    monkeypatch.setattr(mirrors, "run_git", measured)
    update_mirror(many_packs)
    assert reasons == [None]
    assert len(list(mirror_path(many_packs).glob("objects/pack/*.pack"))) == 1


@pytest.mark.parametrize("error", [GitFailed("no space left"), GitLimitExceeded("too large")])
def test_an_update_succeeds_also_if_its_packs_cannot_be_joined(many_packs, origin, monkeypatch, caplog, error):
    mirrored_at = Repository.objects.get().mirrored_at
    tree = origin.git("rev-parse", "main^{tree}")
    fork = origin.git("commit-tree", tree, "-m", "of a fork")
    origin.git("config", "uploadpack.allowAnySHA1InWant", "true")

    def failing(git_dir, *arguments, **options):
        if arguments[0] == "repack":
            for name in ("tmp_pack_x", ".tmp-1-pack-x.pack"):
                (git_dir / "objects" / "pack" / name).touch()
            raise error
        return run_git(git_dir, *arguments, **options)

    monkeypatch.setattr(mirrors, "run_git", failing)
    update_mirror(many_packs, commit=fork)
    assert has_commit(many_packs, fork)
    assert resolve_ref(many_packs, "main") == origin.git("rev-parse", "main")
    assert Repository.objects.get().mirrored_at > mirrored_at
    assert f"were not joined: {error}" in caplog.text
    packs = mirror_path(many_packs) / "objects" / "pack"
    assert [path.name for path in packs.iterdir() if path.name.startswith(("tmp_", ".tmp-"))] == []


def test_one_process_at_a_time_updates_a_mirror(origin, monkeypatch):
    origin.commit({"a": b"1"})
    repository = mirrored(origin)
    monkeypatch.setattr(mirrors, "LOCK_SECONDS", 0.0)
    with (mirror_path(repository).parent / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(GitLimitExceeded, match="Another process"):
            update_mirror(repository)
    update_mirror(repository)


def test_a_second_update_waits_for_the_first_one(origin):
    origin.commit({"a": b"1"})
    repository = mirrored(origin)
    released = threading.Event()
    with (mirror_path(repository).parent / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = []

        def wait() -> None:
            with mirrors._locked(mirror_path(repository).parent):
                found.append(released.is_set())

        thread = threading.Thread(target=wait)
        thread.start()
        released.set()
        fcntl.flock(lock, fcntl.LOCK_UN)
        thread.join(60)
    assert found == [True]


def test_git_holds_the_lock_of_the_mirror_so_that_a_killed_process_leaves_no_second_writer(folders, settings):
    """The origin accepts the connection, and does not answer until the test ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings.GIT_MIRRORS = {"https://github.com/": f"http://127.0.0.1:{listener.getsockname()[1]}/"}
        repository = added("https://github.com/acme/web")
        settings.MIRROR_TIMEOUT_SECONDS = 300
        found = []

        def update() -> None:
            try:
                update_mirror(repository)
            except GitFailed as error:
                found.append(error)

        thread = threading.Thread(target=update)
        thread.start()
        connection, _ = listener.accept()
        lock = mirror_path(repository).parent / "lock"
        holders = [process for process in Path("/proc").glob("[0-9]*") if _has_open(process, lock)]
        connection.close()
        thread.join(60)
    assert len(holders) > 1  # this process, and those of git
    assert len(found) == 1


def _has_open(process: Path, file: Path) -> bool:
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:  # it has ended meanwhile
        return False
    return any(_leads_to(descriptor, file) for descriptor in descriptors)


def _leads_to(link: Path, target: Path) -> bool:
    try:
        return link.readlink() == target
    except OSError:
        return False


def test_git_is_killed_at_its_limit_also_without_this_process(origin):
    command = git_command(origin.path, "cat-file", "--batch", limits=GitLimits(seconds=0))
    command[2] = "1"  # instead of the time of the grace
    begun = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, cwd=origin.path)
    with begun:
        assert begun.wait(60) == -signal.SIGKILL


def test_mirrors_are_listed_and_deleted(origin, settings):
    assert mirrored_ids() == []
    origin.commit({"a": b"1"})
    repository = mirrored(origin)
    assert mirrored_ids() == [repository.pk]
    delete_mirror(repository.pk)
    assert mirrored_ids() == []
    delete_mirror(repository.pk)


# --- origins ----------------------------------------------------------------------------------------------------------

FOREIGN = [
    "http://github.com/acme/web",
    "https://github.com/acme/web/more",
    "https://user:sesame@github.com/acme/web",
    "https://github.com:8443/acme/web",
    "https://evil.example/acme/web",
    "https://github.com/../web",
    "git@github.com:acme/web.git",
    "ssh://github.com/acme/web",
    "ext::sh -c true",
    "file:///etc",
    "-oProxyCommand=true",
    "",
    "https://github.com/acme/web?x=1",
    "/etc",
    "/",
]


@pytest.mark.parametrize("origin_text", FOREIGN)
def test_other_origins_are_refused_also_if_they_are_in_the_database(origin_text):
    assert validate_origin(origin_text) is not None
    with pytest.raises(InvalidOrigin):
        update_mirror(added(origin_text))


def test_a_link_below_the_root_does_not_lead_out_of_it(folders):
    outside = Origin(folders / "outside.git")
    outside.commit({"a": b"1"})
    link = folders / "origins" / "link.git"
    link.symlink_to(outside.path)
    assert validate_origin(str(link)) is not None
    assert validate_origin(f"{folders}/origins/../outside.git") is not None


def test_a_folder_must_be_a_bare_repository_and_the_root_must_be_set(folders, origin, settings):
    (folders / "origins" / "plain").mkdir()
    assert "bare" in validate_origin(str(folders / "origins" / "plain"))
    assert validate_origin(str(origin.path)) is None
    settings.REPOSITORY_ROOT = ""
    assert "REPOSITORY_ROOT" in validate_origin(str(origin.path))


@pytest.mark.parametrize("url", ["https://github.com/acme/web", "https://github.com/acme/web.git"])
def test_a_url_of_a_permitted_host_is_accepted(url):
    assert validate_origin(url) is None


def test_an_error_is_one_line_without_the_folders_of_the_server(origin, folders):
    origin.commit({"a": b"1"})
    repository = mirrored(origin)
    (origin.path / "HEAD").write_text("broken")
    with pytest.raises(GitFailed) as raised:
        update_mirror(repository)
    text = str(raised.value)
    assert text.startswith("git ls-remote: ")
    assert len(text.splitlines()) == 1
    assert str(folders / "mirrors") not in text
    assert "file://" not in text


def test_an_error_names_the_address_of_an_origin_once(folders, settings):
    message = b"fatal: unable to access '%b/': Could not resolve host"
    settings.GIT_MIRRORS = {"https://git.example/": "http://127.0.0.1:1/mirror/"}
    for origin, sent in (
        ("https://github.com/acme/web", b"https://github.com/acme/web"),
        ("https://git.example/acme/web", b"http://127.0.0.1:1/mirror/acme/web"),
    ):
        hidden = mirrors._origin_of(added(origin, full_name=f"a/{len(sent)}"), folders).hidden
        assert (
            readable_message(message % sent, hidden) == f"fatal: unable to access '{origin}/': Could not resolve host"
        )


def test_hooks_and_configuration_of_the_origin_are_not_executed(origin, folders):
    """`uploadpack.packObjectsHook` and hooks run only from the configuration of the account, which is none."""
    origin.commit({"a": b"1"})
    witness = folders / "witness"
    hook = folders / "hook"
    hook.write_text(f'#!/bin/sh\ntouch {witness}\nexec "$@"\n')
    hook.chmod(0o755)
    origin.git("config", "uploadpack.packObjectsHook", str(hook))
    origin.git("config", "core.fsmonitor", str(hook))
    for name in ("post-checkout", "reference-transaction", "post-update"):
        (origin.path / "hooks").mkdir(exist_ok=True)
        shutil.copy(hook, origin.path / "hooks" / name)
    repository = mirrored(origin)
    assert resolve_ref(repository, "main")
    assert not witness.exists()
    assert list((mirror_path(repository) / "hooks").glob("*")) == []
