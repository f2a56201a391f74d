"""Commits of a mirror are read without a working tree: files, folders, refs, changed paths."""

import pytest

from orchestrator.repositories import contents
from orchestrator.repositories.contents import changed_paths, list_files_at, read_file_at, resolve_ref
from orchestrator.repositories.errors import (
    CommitNotFound,
    FileTooLarge,
    GitLimitExceeded,
    MirrorMissing,
    PathNotFound,
    RefNotFound,
)
from orchestrator.repositories.git import run_git
from tests.orchestrator.repositories.world import added, mirrored
from tests.workers.agent.repositories import git

pytestmark = pytest.mark.django_db

FOLDER = ".shithub/workflows"
ZEROS = "0" * 40
CONTENT = b"it\n"


def test_a_file_is_read_at_its_commit(origin):
    first = origin.commit({f"{FOLDER}/ci.yml": b"first\n"})
    second = origin.commit({f"{FOLDER}/ci.yml": b"second\n"}, parent=first)
    repository = mirrored(origin)
    assert read_file_at(repository, first, f"{FOLDER}/ci.yml", 100) == b"first\n"
    assert read_file_at(repository, second, f"{FOLDER}/ci.yml", 7) == b"second\n"
    with pytest.raises(FileTooLarge, match="at most 6"):
        read_file_at(repository, second, f"{FOLDER}/ci.yml", 6)


@pytest.mark.parametrize("name", ["-n.yml", ":(glob)x.yml", "a b\tc.yml", "ü.yml", "*.yml", '"quoted".yml', "a\nb.yml"])
def test_every_name_is_read_literally(origin, name):
    # `update-index --index-info` reads some of these names in another way.
    listed = f"100644 blob {origin.blob(CONTENT)}\t{name}\0"
    commit = origin.commit_tree(git("mktree", "-z", at=origin.path, send=listed.encode()))
    repository = mirrored(origin)
    assert read_file_at(repository, commit, name, 100) == CONTENT


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../ci.yml", "./ci.yml", "a//b", "ci.yml/", "a\0b", "x" * 1025, "no.yml"]
)
def test_a_path_that_is_none_is_not_found(origin, path):
    commit = origin.commit({"ci.yml": b"x"})
    repository = mirrored(origin)
    with pytest.raises(PathNotFound):
        read_file_at(repository, commit, path, 100)


def test_links_and_folders_and_submodules_are_no_files(origin):
    commit = origin.commit({"d/ci.yml": b"x"}, links={"d/link.yml": "/etc/passwd"}, module="5" * 40)
    repository = mirrored(origin)
    assert list_files_at(repository, commit, "d") == ["d/ci.yml"]
    for path in ("d/link.yml", "d", "module"):
        with pytest.raises(PathNotFound):
            read_file_at(repository, commit, path, 100)


def test_a_folder_lists_its_own_files_only(origin):
    names = [f"{FOLDER}/b.yml", f"{FOLDER}/a.yaml", f"{FOLDER}/sub/c.yml", ".shithub/d.yml", f"{FOLDER}x/e.yml"]
    commit = origin.commit(dict.fromkeys(names, b"x"))
    repository = mirrored(origin)
    assert list_files_at(repository, commit, FOLDER) == [f"{FOLDER}/a.yaml", f"{FOLDER}/b.yml"]
    assert list_files_at(repository, commit, "none") == []


def test_a_folder_with_too_many_files_is_refused(origin, monkeypatch):
    monkeypatch.setattr(contents, "MAX_FOLDER_FILES", 2)
    commit = origin.commit({f"d/{number}": b"x" for number in range(3)})
    with pytest.raises(FileTooLarge):
        list_files_at(mirrored(origin), commit, "d")


@pytest.mark.parametrize("commit", ["5" * 40, "HEAD", "main", "--help", "", "c0ffee"])
def test_an_unknown_commit_is_not_found(origin, commit):
    origin.commit({"a": b"1"})
    repository = mirrored(origin)
    for read in (
        lambda: read_file_at(repository, commit, "a", 10),
        lambda: list_files_at(repository, commit, "a"),
        lambda: changed_paths(repository, ZEROS, commit),
    ):
        with pytest.raises(CommitNotFound):
            read()


def test_an_object_that_is_no_commit_is_not_found(origin):
    origin.commit({"a": b"1"})
    repository = mirrored(origin)
    with pytest.raises(CommitNotFound):
        read_file_at(repository, origin.git("rev-parse", "main^{tree}"), "a", 10)


def test_refs_are_resolved_by_their_short_and_full_names(origin):
    first = origin.commit({"a": b"1"})
    second = origin.commit({"a": b"2"}, parent=first)
    origin.branch("topic", first)
    origin.tag("v1", second)
    origin.tag("topic", second)
    repository = mirrored(origin)
    assert resolve_ref(repository, "topic") == first
    assert resolve_ref(repository, "refs/tags/topic") == second
    assert resolve_ref(repository, "v1") == second
    assert resolve_ref(repository, first) == first


@pytest.mark.parametrize(
    "ref", ["none", "refs/heads/none", "refs/tags/main", "HEAD", "refs/orchestrator/x", "main^", "main~1", "@{1}", "-x"]
)
def test_other_names_are_no_refs(origin, ref):
    first = origin.commit({"a": b"1"})
    origin.commit({"a": b"2"}, parent=first)
    with pytest.raises(RefNotFound):
        resolve_ref(mirrored(origin), ref)


def test_changed_paths_are_those_of_the_difference(origin):
    first = origin.commit({"a": b"1", "b": b"1", "d/c": b"1"})
    second = origin.commit({"a": b"2", "d/c": b"1", "new": b"1"}, parent=first)
    repository = mirrored(origin)
    assert changed_paths(repository, first, second) == ("a", "b", "new")
    assert changed_paths(repository, second, second) == ()


def test_a_new_branch_is_compared_with_the_parent_and_a_first_commit_with_nothing(origin):
    first = origin.commit({"a": b"1"})
    second = origin.commit({"a": b"1", "b": b"1"}, parent=first)
    repository = mirrored(origin)
    assert changed_paths(repository, ZEROS, second) == ("b",)
    assert changed_paths(repository, ZEROS, first) == ("a",)


def test_a_pull_request_is_compared_with_the_common_ancestor(origin):
    base = origin.commit({"a": b"1"})
    topic = origin.commit({"a": b"1", "topic": b"1"}, parent=base)
    main = origin.commit({"a": b"1", "main": b"1"}, parent=base)
    origin.branch("topic", topic)
    repository = mirrored(origin)
    assert changed_paths(repository, main, topic) == ("main", "topic")
    assert changed_paths(repository, main, topic, from_merge_base=True) == ("topic",)


def test_what_cannot_be_compared_is_unknown(origin, monkeypatch):
    first = origin.commit({"a": b"1"})
    other = origin.commit({"b": b"1"})  # no common ancestor
    origin.branch("first", first)
    repository = mirrored(origin)
    assert changed_paths(repository, "5" * 40, first) is None
    assert changed_paths(repository, "HEAD", first) is None
    assert changed_paths(repository, first, other, from_merge_base=True) is None
    monkeypatch.setattr(contents, "MAX_CHANGED_PATHS", 1)
    assert changed_paths(repository, first, other) is None


@pytest.mark.parametrize("command", ["diff-tree", "merge-base"])
def test_a_comparison_that_exceeds_a_limit_of_git_is_unknown(origin, monkeypatch, command):
    first = origin.commit({"a": b"1"})
    second = origin.commit({"a": b"2"}, parent=first)
    repository = mirrored(origin)

    def limited(git_dir, *arguments, **options):
        if arguments[0] == command:
            raise GitLimitExceeded("git took longer than 30 s.")
        return run_git(git_dir, *arguments, **options)

    monkeypatch.setattr(contents, "run_git", limited)
    assert changed_paths(repository, first, second, from_merge_base=True) is None


def test_without_a_mirror_nothing_is_read(origin):
    repository = added(origin.path)
    with pytest.raises(MirrorMissing):
        read_file_at(repository, "5" * 40, "a", 10)
