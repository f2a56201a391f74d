"""A mirror stays readable whatever interrupts its update, and a hostile origin gets nothing of other repositories."""

import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from config.paths import BASE_DIR
from orchestrator.repositories import mirrors
from orchestrator.repositories.contents import has_commit, resolve_ref
from orchestrator.repositories.errors import GitFailed, GitLimitExceeded, InvalidOrigin, MirrorMissing
from orchestrator.repositories.mirrors import mirror_path, require_mirror, update_mirror, validate_origin
from runtime_jobs.models import Repository
from tests.live_server import eventually
from tests.orchestrator.repositories.world import Origin, added, mirrored
from tests.workers.agent.git_faults import DANGEROUS, HARMLESS

pytestmark = pytest.mark.django_db

# A process that updates the mirror of the repository that it is given.
UPDATER = """
import sys, django
django.setup()
from orchestrator.repositories.mirrors import update_mirror
from runtime_jobs.models import Repository
update_mirror(Repository.objects.get(pk=int(sys.argv[1])))
"""
# A git that fetches a part of a pack, reports its number, and then does not end by itself for a minute.
SLOW_GIT = """#!/bin/sh
for argument; do
    case "$argument" in
    --git-dir=*) folder="${argument#--git-dir=}" ;;
    fetch)
        mkdir -p "$folder/objects/pack" && echo part > "$folder/objects/pack/tmp_pack_x" && : > "$folder/HEAD.lock"
        echo $$ > WITNESS.new && mv WITNESS.new WITNESS
        exec sleep 60 ;;
    esac
done
exec /usr/bin/git "$@"
"""


def fsck(repository: Repository) -> str:
    """Return what git finds wrong in a mirror."""
    command = ["git", "-c", "safe.bareRepository=all", f"--git-dir={mirror_path(repository)}", "fsck", "--strict"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if found.returncode == 0 else found.stdout + found.stderr


def leftovers(repository: Repository) -> list[Path]:
    folder = mirror_path(repository).parent
    return [*folder.rglob("*.lock"), *folder.rglob("tmp_*"), *folder.glob("new.git")]


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_first", [True, False])
def test_an_update_that_is_killed_is_completed_by_the_next_one(origin, tmp_path, settings, database_url, is_first):
    """kill -9 of housekeeping in the middle of a fetch. Its git lives on and holds the lock until it ends, too."""
    first = origin.commit({"a": b"1"})
    repository = added(origin.path) if is_first else mirrored(origin)
    second = origin.commit({"a": b"2"}, parent=first)
    programs, witness = tmp_path / "programs", tmp_path / "witness"
    programs.mkdir()
    (programs / "git").write_text(SLOW_GIT.replace("WITNESS", str(witness)))
    (programs / "git").chmod(0o755)
    environment = {
        **os.environ,
        "DATABASE_URL": database_url,
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "STATE_DIR": str(tmp_path / "state"),
        "MIRROR_DIR": settings.MIRROR_DIR,
        "REPOSITORY_ROOT": settings.REPOSITORY_ROOT,
        "PATH": f"{programs}:{os.environ['PATH']}",
    }
    updater = subprocess.Popen([sys.executable, "-c", UPDATER, str(repository.pk)], cwd=BASE_DIR, env=environment)
    group = 0
    try:
        eventually(lambda: witness.exists() or updater.poll() is not None, seconds=120)
        group = os.getpgid(int(witness.read_text()))
        updater.kill()
        updater.wait()
        if is_first:
            with pytest.raises(MirrorMissing):
                require_mirror(repository)
        else:
            assert resolve_ref(repository, "main") == first
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mirrors, "LOCK_SECONDS", 0.0)
            with pytest.raises(GitLimitExceeded, match="Another process"):
                update_mirror(repository)
    finally:
        updater.kill()
        updater.wait()
        if group:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
    update_mirror(repository)
    assert resolve_ref(repository, "main") == second
    assert fsck(repository) == ""
    assert [path.name for path in leftovers(repository) if path.name != "lock"] == []


@contextmanager
def small_files(limit: int):
    """No process that starts in this block writes a file beyond so many bytes: as on a disk that is full."""
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)


def test_an_update_that_the_disk_does_not_take_leaves_the_former_mirror(origin, settings):
    first = origin.commit({"a": b"1"})
    repository = mirrored(origin)
    second = origin.commit({"a": os.urandom(1 << 20)}, parent=first)
    settings.MIRROR_LIMIT_BYTES = 1 << 16
    with pytest.raises((GitFailed, GitLimitExceeded)):
        update_mirror(repository)
    assert resolve_ref(repository, "main") == first
    assert fsck(repository) == ""
    settings.MIRROR_LIMIT_BYTES = 1 << 30
    update_mirror(repository)
    assert resolve_ref(repository, "main") == second
    assert fsck(repository) == ""


def test_a_full_disk_is_an_error_of_the_task_and_not_the_end_of_the_process(origin, monkeypatch):
    """Not only git writes: the folder, the lock and the configuration are files of this process."""
    origin.commit({"a": b"1"})
    repository = added(origin.path)
    with small_files(0):
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            with pytest.raises((OSError, GitFailed)):
                update_mirror(repository)
        finally:
            signal.signal(signal.SIGXFSZ, handler)
    update_mirror(repository)
    assert fsck(repository) == ""


# --- hostile origins --------------------------------------------------------------------------------------------------


@pytest.fixture
def secret(folders):
    """A repository that this process may read, and that is not below REPOSITORY_ROOT."""
    secret = Origin(folders / "secret.git")
    secret.tip = secret.commit({"key": b"sesame\n"})
    secret.git("repack", "-adq")
    return secret


def _alternates(origin: Origin, secret: Origin) -> None:
    (origin.path / "objects" / "info").mkdir(exist_ok=True)
    (origin.path / "objects" / "info" / "alternates").write_text(f"{secret.path}/objects\n")


def _common_folder(origin: Origin, secret: Origin) -> None:
    (origin.path / "commondir").write_text(f"{secret.path}\n")


def _linked_objects(origin: Origin, secret: Origin) -> None:
    (origin.path / "objects").rename(origin.path / "old-objects")
    (origin.path / "objects").symlink_to(secret.path / "objects")


def _linked_packs(origin: Origin, secret: Origin) -> None:
    for pack in (secret.path / "objects" / "pack").iterdir():
        (origin.path / "objects" / "pack" / pack.name).symlink_to(pack)


def _linked_refs(origin: Origin, secret: Origin) -> None:
    (origin.path / "refs" / "heads").rename(origin.path / "old-heads")
    (origin.path / "refs" / "heads").symlink_to(secret.path / "refs" / "heads")


FOREIGN_CONTENT = [_alternates, _common_folder, _linked_objects, _linked_packs, _linked_refs]


@pytest.mark.parametrize("borrow", FOREIGN_CONTENT, ids=lambda borrow: borrow.__name__.strip("_"))
def test_an_origin_does_not_lend_the_commits_of_another_repository(origin, secret, borrow):
    """A person who may write below REPOSITORY_ROOT would else read with the rights of the server."""
    origin.commit({"a": b"1"})
    repository = mirrored(origin)
    borrow(origin, secret)
    with suppress(OSError):
        (origin.path / "refs" / "heads" / "stolen").write_text(f"{secret.tip}\n")
    assert validate_origin(str(origin.path)) is not None
    with pytest.raises(InvalidOrigin):
        update_mirror(repository)
    assert not has_commit(repository, secret.tip)


def test_submodules_of_an_origin_are_not_fetched(origin, folders):
    witness = folders / "witness"
    urls = [f"ext::sh -c touch% {witness}", f"file://{folders}/secret.git", "https://127.0.0.1:1/a/b"]
    modules = "".join(f'[submodule "{n}"]\n\tpath = m{n}\n\turl = {url}\n' for n, url in enumerate(urls))
    commit = origin.commit({".gitmodules": modules.encode()}, **{f"m{n}": "5" * 40 for n in range(len(urls))})
    repository = mirrored(origin)
    assert resolve_ref(repository, "main") == commit
    assert not witness.exists()
    assert not (mirror_path(repository) / "modules").exists()


def test_a_submodule_whose_address_is_an_option_is_refused(origin):
    """Clients of the mirror might recurse into submodules with a git that does not check it."""
    origin.commit({".gitmodules": b'[submodule "x"]\n\tpath = x\n\turl = --upload-pack=true\n'}, x="5" * 40)
    with pytest.raises(GitFailed, match="disallowed submodule url"):
        update_mirror(added(origin.path))


def test_a_mirror_takes_commits_with_harmless_faults_and_refuses_those_with_dangerous_ones(folders):
    """`git fetch` with `fsckObjects` makes each of git's warnings an error, and thereby refused flask and requests."""
    errors = {}
    for number, (fault, made) in enumerate((HARMLESS | DANGEROUS).items()):
        origin = Origin(folders / "origins" / f"{number}.git")
        commit = made(origin)
        repository = added(origin.path, full_name=f"acme/fault-{number}")
        try:
            update_mirror(repository)
        except GitFailed as error:
            errors[fault] = str(error)
            with pytest.raises(MirrorMissing):
                require_mirror(repository)
        else:
            assert resolve_ref(repository, "main") == commit
    assert [errors[fault] for fault in HARMLESS if fault in errors] == []
    assert [
        (fault, errors.get(fault)) for fault in DANGEROUS if fault.partition(",")[0] not in errors.get(fault, "")
    ] == []
