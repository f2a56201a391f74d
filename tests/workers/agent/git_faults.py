"""Commits with the faults that git names, each made by hand as no git of today would write it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.workers.agent.repositories import Repository

PERSON: Final = "Ann <ann@example.com> 1767225600 +0000"
ZEROS: Final = "0" * 40


def _commit(repository: Repository, *, author: str = PERSON, tree: str | None = None, message: bytes = b"x\n") -> str:
    """Return a commit whose header has these lines."""
    tree = tree or _tree(repository, ("100644", "name", repository.blob(b"data")))
    header = f"tree {tree}\nauthor {author}\ncommitter {PERSON}\n\n"
    commit = repository.write_object("commit", header.encode() + message)
    repository.point_main_at(commit)
    return commit


def _tree(repository: Repository, *entries: tuple[str, str, str]) -> str:
    data = [f"{mode} {name}\0".encode() + bytes.fromhex(object_id) for mode, name, object_id in entries]
    return repository.write_object("tree", b"".join(data))


def _author(line: str) -> Callable[[Repository], str]:
    return lambda repository: _commit(repository, author=line)


def _entry(name: str, mode: str = "100644", data: bytes = b"data") -> Callable[[Repository], str]:
    return lambda repository: _commit(repository, tree=_tree(repository, (mode, name, repository.blob(data))))


def _folder(name: str, mode: str = "40000") -> Callable[[Repository], str]:
    def made(repository: Repository) -> str:
        inner = _tree(repository, ("100644", "config", repository.blob(b"data")))
        return _commit(repository, tree=_tree(repository, (mode, name, inner)))

    return made


def _files(*names: str) -> Callable[[Repository], str]:
    def made(repository: Repository) -> str:
        blob = repository.blob(b"data")
        return _commit(repository, tree=_tree(repository, *(("100644", name, blob) for name in names)))

    return made


# The faults of old but honest programs: git's name of the fault -> the function that makes a commit with it.
HARMLESS: Final[dict[str, Callable[[Repository], str]]] = {
    "zeroPaddedFilemode": _folder("sub", "040000"),  # flask, ohmyzsh
    "badTimezone": _author("Ann <ann@example.com> 1313584730 +051800"),  # requests
    "badDate": _author("Ann <ann@example.com> today +0000"),
    "badDateOverflow": _author(f"Ann <ann@example.com> {'9' * 30} +0000"),
    "zeroPaddedDate": _author("Ann <ann@example.com> 0767225600 +0000"),
    "missingSpaceBeforeDate": _author("Ann <ann@example.com>1767225600 +0000"),
    "badEmail": _author("Ann <ann@example.com 1767225600 +0000"),
    "missingEmail": _author("Ann 1767225600 +0000"),
    "missingSpaceBeforeEmail": _author("Ann<ann@example.com> 1767225600 +0000"),
    "missingNameBeforeEmail": _author("<ann@example.com> 1767225600 +0000"),
    "badName": _author("Ann> <ann@example.com> 1767225600 +0000"),
    "multipleAuthors": _author(f"{PERSON}\nauthor {PERSON}"),
    "nulInCommit": lambda repository: _commit(repository, message=b"a\0b\n"),
    "badFilemode": _entry("name", "100664"),  # git itself lets it pass
}
# The faults with which a checkout writes what the commit does not show, or where it must not: what git calls it -> …
DANGEROUS: Final[dict[str, Callable[[Repository], str]]] = {
    "gitmodulesSymlink": _entry(".gitmodules", "120000", b"../../etc/passwd"),
    "gitmodulesName": _entry(".gitmodules", data=b'[submodule "../../x"]\n\tpath = x\n\turl = https://a.example/b\n'),
    "gitmodulesUrl": _entry(".gitmodules", data=b'[submodule "x"]\n\tpath = x\n\turl = --upload-pack=true\n'),
    "gitmodulesPath": _entry(".gitmodules", data=b'[submodule "x"]\n\tpath = -x\n\turl = https://a.example/b\n'),
    "gitmodulesUpdate": _entry(
        ".gitmodules", data=b'[submodule "x"]\n\tpath = x\n\turl = https://a.example/b\n\tupdate = !touch y\n'
    ),
    "gitmodulesBlob": _folder(".gitmodules"),
    "gitattributesLineLength": _entry(".gitattributes", data=b"* " + b"a" * 4096 + b"\n"),
    "hasDotgit": _folder(".git"),
    "hasDotgit, as NTFS shortens it": _folder("git~1"),
    "hasDotgit, as HFS reads it": _folder(".g\N{ZERO WIDTH NON-JOINER}it"),
    "hasDotgit, as Windows reads it": _folder(".git. "),
    "hasDotdot": _folder(".."),
    "hasDot": _folder("."),
    "fullPathname": _entry("sub/name"),
    "nullSha1": lambda repository: _commit(repository, tree=_tree(repository, ("160000", "sub", ZEROS))),
    "duplicateEntries": _files("name", "name"),
    "treeNotSorted": _files("second", "first"),
}
