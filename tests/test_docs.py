"""Checks that what the documents name exists: paths, tests, and targets of links."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))

SECTIONS = ["Context", "Decision", "Measurement", "Consequences"]  # of a decision

_CODE = re.compile(r"`([^`\n]+)`")
_SUFFIX = r"(?:py|pl|sql|html|md|svg|png|json|yaml|toml|service|txt)"
_PATH = re.compile(rf"(?:[\w.…*-]+/)*[\w.*-]+\.{_SUFFIX}")
_TEST = re.compile(r"(?:(?P<file>[\w./…]+\.py|…)?::)?(?P<test>test_\w+)(?:\[[\w,-]+\])?")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@cache
def names() -> frozenset[str]:
    """Returns the names of all files below the folders that documents describe."""
    return frozenset(
        path.relative_to(ROOT).as_posix()
        for folder in ROOT.iterdir()
        if folder.name not in {".git", ".venv", ".state"}
        for path in ([folder] if folder.is_file() else folder.rglob("*"))
        if path.is_file()
    )


@cache
def known_tests() -> frozenset[str]:
    """Returns the names of all test functions and test files without their suffix."""
    found = set()
    for name in names():
        if name.startswith("tests/") and name.endswith(".py"):
            found.add(Path(name).stem)
            tree = ast.parse((ROOT / name).read_text())
            found |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return frozenset(found)


def exists(path: str) -> bool:
    """Returns whether a path, or the end of one, names a file; `*` and `…` stand for anything."""
    pattern = re.compile(r"(?:.*/)?" + re.escape(path.lstrip("…/")).replace(r"\*", "[^/]*").replace("…", ".*"))
    return any(pattern.fullmatch(name) for name in names())


def missing(document: str, text: str) -> Iterator[str]:
    """Yields what a document names and what does not exist."""
    for code in _CODE.findall(text):
        if " " in code or code.startswith(("http", "/", "~", "$", "<", ".state/")):
            continue
        for test in _TEST.finditer(code):
            if test["test"] not in known_tests() and not test["test"].endswith("_"):
                yield f"{document}: {code}: there is no test {test['test']}"
        path = code.partition("::")[0]
        if _PATH.fullmatch(path) and not exists(path):
            yield f"{document}: {path}: there is no such file"
    for target in _LINK.findall(text):
        if not target.startswith(("http:", "https:", "mailto:")):
            found = (ROOT / document).parent / target
            if not found.exists():
                yield f"{document}: the link to {target} leads nowhere"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_a_document_names_exists(document):
    assert list(missing(document, (ROOT / document).read_text())) == []


@pytest.mark.parametrize(
    "text",
    ["`orchestrator/sweeps.py`", "`tests/test_docs.py::test_nothing`", "`…::test_nothing`", "[a](nothing.md)"],
)
def test_a_planted_name_is_found(text):
    assert len(list(missing("README.md", text))) == 1


def test_existing_names_are_accepted():
    text = "`docs/adr/README.md` `tests/test_docs.py::test_existing_names_are_accepted` `docs/adr/00*.md` [a](docs/api.md#x)"
    assert list(missing("README.md", text)) == []


def test_the_index_lists_every_decision_with_its_title():
    decisions = sorted((ROOT / "docs" / "adr").glob("0*.md"))
    rows, numbers = [], set()
    for path in decisions:
        number = int(path.name[:4])
        numbers.add(number)
        heading, title = path.read_text().partition("\n")[0].split(". ", 1)
        assert heading == f"# {number}"
        rows.append(f"| [{number}]({path.name}) | {title} |")
        assert re.findall("^## (.*)", path.read_text(), re.MULTILINE) == SECTIONS, path.name
    index = (ROOT / "docs" / "adr" / "README.md").read_text()
    assert [line for line in index.splitlines() if line.startswith("| [")] == rows
    unused = sorted(set(range(1, max(numbers) + 1)) - numbers)
    assert re.findall(r"^Numbers that are not used: (.*)\.$", index, re.MULTILINE) == (
        [", ".join(map(str, unused))] if unused else []
    )
