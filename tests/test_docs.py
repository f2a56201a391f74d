"""Checks that what the documents name exists: paths, tests, targets of links, alerts, and the question of each page."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from tests.test_architecture import AGENT, LEVELS
from tests.test_language import PACKAGES, files, texts_of_python

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))

SECTIONS = ["Context", "Decision", "Measurement", "Consequences"]  # of a decision

_CODE = re.compile(r"`([^`\n]+)`")
_SUFFIX = r"(?:py|pl|sql|html|md|svg|png|json|yaml|toml|service|txt)"
_PATH = re.compile(rf"(?:[\w.…*-]+/)*[\w.*-]+\.{_SUFFIX}")
_TEST = re.compile(r"(?:(?P<file>[\w./…]+\.py|…)?::)?(?P<test>test_\w+)(?:\[[\w,-]+\])?")
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


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


@cache
def anchors(page: Path) -> frozenset[str]:
    """Returns the anchors of a page's headings, as GitHub names them."""
    outside_code = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", outside_code, re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


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
    for target, anchor in _LINK.findall(text):
        if not target.startswith(("http:", "https:", "mailto:")):
            found = (ROOT / document).parent / target if target else ROOT / document
            if not found.exists():
                yield f"{document}: the link to {target} leads nowhere"
            elif anchor and found.suffix == ".md" and anchor not in anchors(found):
                yield f"{document}: {target} has no heading #{anchor}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_a_document_names_exists(document):
    assert list(missing(document, (ROOT / document).read_text())) == []


_CITED = re.compile(r"(?<![\w/.])((?:docs|tests)/[\w./-]*\w)")


def missing_in_comments(name: str, source: str) -> list[str]:
    """Returns the paths below docs/ and tests/ that comments and docstrings name and with which no path begins."""
    if not _CITED.search(source):
        return []
    cited = [path for _, line in texts_of_python(source, messages=False) for path in _CITED.findall(line)]
    return [f"{name}: {path}" for path in cited if not any(known.startswith(path) for known in names())]


def test_the_documents_and_tests_that_comments_name_exist():
    sources = [name for name in files(*PACKAGES, "tests") if name.endswith(".py")]
    assert [fault for name in sources for fault in missing_in_comments(name, (ROOT / name).read_text())] == []
    assert missing_in_comments("planted.py", "x = 1  # see tests/access\n") == ["planted.py: tests/access"]


@pytest.mark.parametrize(
    "text",
    [
        "`orchestrator/sweeps.py`",
        "`tests/test_docs.py::test_nothing`",
        "`…::test_nothing`",
        "[a](nothing.md)",
        "[a](docs/api.md#nothing)",
    ],
)
def test_a_planted_name_is_found(text):
    assert len(list(missing("README.md", text))) == 1


def test_existing_names_are_accepted():
    text = "`docs/adr/README.md` `tests/test_docs.py::test_existing_names_are_accepted` `docs/adr/00*.md` [a](docs/api.md#limits)"
    assert list(missing("README.md", text)) == []


PAGES = [name for name in DOCUMENTS if name != "README.md" and not name.startswith("docs/adr/0")]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_opens_with_the_question_that_it_answers(page):
    title, _, opening, *_ = (ROOT / page).read_text().splitlines()
    assert title.startswith("# ")
    assert opening.endswith("?"), opening


def test_each_alert_has_a_section_in_the_runbooks():
    rules = [
        rule["alert"]
        for path in sorted((ROOT / "deploy" / "prometheus").glob("*.yml"))
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    ]
    _, _, below = (ROOT / "docs" / "runbooks.md").read_text().partition("\n## Alerts\n")
    sections = re.findall(r"^### (.*)$", below.partition("\n## ")[0], re.MULTILINE)
    assert sorted(sections) == sorted(rules)


# Words of the README that have a particular meaning here.
OWN_WORDS = ("fence", "lanes", "lease", "pool", "worker", "claim", "run", "Delta CI", "Bencher", "shithub")


def glossary_rows() -> set[str]:
    """Return the words in the first column of the glossary's tables."""
    text = (ROOT / "docs" / "glossary.md").read_text()
    return set(re.findall(r"^\| \*?\*?([^*|]+?)\*?\*? \|", text, re.MULTILINE))


@pytest.mark.parametrize("word", OWN_WORDS)
def test_the_readme_introduces_each_word_of_its_own(word):
    """In italics, or by an entry of the glossary, to which it links."""
    readme = (ROOT / "README.md").read_text()
    in_italics = re.search(rf"(?<!\*)\*{word}\*(?!\*)", readme, re.IGNORECASE)
    assert in_italics or (word in glossary_rows() and "(docs/glossary.md)" in readme)


def test_the_documents_that_the_readme_names_are_in_the_glossary():
    named = set(re.findall(r"[Dd]ocuments? (00\d)", (ROOT / "README.md").read_text()))
    assert named <= glossary_rows()
    assert {"000", "001", "002", "003", "004"} <= glossary_rows()


def section(heading: str, page: str = "README.md") -> str:
    """Return a section of a page, without its heading."""
    _, found, rest = (ROOT / page).read_text().partition(f"\n{heading}\n")
    assert found, heading
    return rest.partition("\n##")[0]


def test_the_readme_states_platforms_sizes_and_times():
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", section("## Requirements"), re.MULTILINE))
    assert "Debian 12" in rows["platform"]
    assert "Debian 13" in rows["platform"]
    assert re.search(r"\d+ MB", rows["disk"])
    assert all(name in rows["time"] for name in ("set-up", "`make demo`", "`make up`", "`make test`"))


def test_the_readme_is_read_aloud_in_four_minutes():
    """Without its examples, at 170 words a minute."""
    text = re.sub(
        r"^```.*?^```|\]\(.*?\)|[|*`-]", " ", (ROOT / "README.md").read_text(), flags=re.DOTALL | re.MULTILINE
    )
    assert len(text.split()) <= 4 * 170


def test_each_folder_has_a_row():
    rows = re.findall(r"^\| (`.*?`) \|", section("## Folders", "CONTRIBUTING.md"), re.MULTILINE)
    named = {name.rstrip("/").replace("/", ".") for row in rows for name in re.findall(r"`([^`]+)`", row)}
    folders = {name for name in (*LEVELS, *AGENT) if (ROOT / name.replace(".", "/")).is_dir()}
    assert folders == named


def test_the_recipe_of_a_failure_reason_lists_its_files():
    """All files that name one such reason, as an example."""
    steps = section("### Add a failure reason", "CONTRIBUTING.md")
    reason = re.compile(r"\btoo_many_processes\b", re.IGNORECASE)
    found = {
        name
        for name in names()
        if name.endswith(".py") and name.startswith(("orchestrator/", "runtime_jobs/", "leases/", "workers/"))
        if "/migrations/" not in name and reason.search((ROOT / name).read_text())
    }
    assert {name for name in found if name not in steps} == set()


def test_the_settings_of_automatic_retries_are_named():
    rows = section("## Where do I change …", "CONTRIBUTING.md")
    (row,) = re.findall(r"^\| retry twice instead of once \|.*$", rows, re.MULTILINE)
    names_in_code = re.findall(r'"(AUTOMATIC_RETRIES_\w+)"', (ROOT / "config" / "settings.py").read_text())
    assert names_in_code
    assert {name for name in names_in_code if name not in row} == set()


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
