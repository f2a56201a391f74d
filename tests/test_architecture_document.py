"""Checks docs/architecture.md against the code: its files exist, a path is short, and each file leads to the next.

A file of a request path must be reached from a file before it: by an import, by its dotted name in a string (settings,
`include`), by the name of a template, or by the name of an SQL function.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.test_architecture import imports, strings

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "architecture.md"
MAX_FILES = 12
PATHS = (
    *("Every request", "Submit", "Claim", "Heartbeat", "Completion", "Admin action"),
    *("Fetch", "Workflow run", "Workflow job", "Upload", "Log chunk", "Long poll", "Subscription", "Webhook delivery"),
)
# The first names middleware, URLs and authentication of every request; the second binds what follows the end of a job.
NAMES_OTHERS = ("config/settings.py", "orchestrator/apps.py")

# Files that a framework finds by itself, and the reason.
FOUND_BY_FRAMEWORK = {
    "orchestrator/admin/jobs/admin.py": "Django's admin calls the class that is registered for a model",
    "orchestrator/protocols/native/artifacts/urls.py": "the end of `Every request`: native/urls.py includes it",
    "orchestrator/protocols/native/jobs/urls.py": "the end of `Every request`: native/urls.py includes it",
    "orchestrator/protocols/native/leases/urls.py": "the end of `Every request`: native/urls.py includes it",
}
_FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|sql|html|md|yaml))`")


def sections(text: str) -> dict[str, str]:
    """Return the text below each heading of the third level, up to the next heading."""
    parts = re.split(r"^(#{1,3}) (.+)$", text, flags=re.MULTILINE)[1:]
    return {name: body for level, name, body in zip(*[iter(parts)] * 3, strict=True) if level == "###"}


def files_of(section: str) -> list[str]:
    """Return the files of a section's numbered list."""
    return re.findall(r"^\d+\. `([^`]+)`", section, flags=re.MULTILINE)


def branches_of(section: str) -> list[str]:
    """Return the files of a section's table of optional parts."""
    return re.findall(r"^\|[^|]*\| `([^`]+)`", section, flags=re.MULTILINE)


@cache
def tree_of(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text())


@cache
def names_in(file: str) -> frozenset[str]:
    """Return the modules that a file imports, and the strings in it."""
    if not file.endswith(".py"):
        return frozenset()
    return frozenset({*imports(tree_of(file)), *strings(tree_of(file))})


def leads_to(earlier: str, file: str) -> bool:
    """Report whether a file imports another one, or names it."""
    names = names_in(earlier)
    if file.endswith(".py"):
        module = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        return any(name == module or name.startswith(f"{module}.") for name in names)
    if file.endswith(".sql"):
        functions = re.findall(r"^CREATE (?:OR REPLACE )?FUNCTION (\w+)", (ROOT / file).read_text(), re.MULTILINE)
        return any(function in name for function in functions for name in names)
    return file.removeprefix("templates/") in names


def faults(section: str) -> Iterator[str]:
    """Yield what is wrong with the path of a section."""
    path = files_of(section)
    if not path:
        yield "no numbered list of files"
    if len(path) > MAX_FILES:
        yield f"{len(path)} files, at most {MAX_FILES} are allowed"
    missing = [file for file in [*path, *branches_of(section)] if not (ROOT / file).is_file()]
    yield from (f"{file} does not exist" for file in missing)
    if missing:
        return
    before = [*NAMES_OTHERS]
    for number, file in enumerate(path):
        if number and file not in FOUND_BY_FRAMEWORK and not any(leads_to(earlier, file) for earlier in before):
            yield f"{file} is not reached from a file before it"
        before.append(file)
    yield from (f"{file} is not reached" for file in branches_of(section) if not any(leads_to(p, file) for p in before))


SECTIONS = sections(DOCUMENT.read_text())


def test_every_file_that_is_named_exists():
    named = set(_FILE.findall(DOCUMENT.read_text()))
    assert len(named) > 50
    assert sorted(file for file in named if not (ROOT / file).is_file()) == []


def test_the_document_has_all_paths():
    assert [name for name in SECTIONS if files_of(SECTIONS[name])] == list(PATHS)
    assert [name for name in PATHS if "```mermaid" not in SECTIONS[name]] == []


@pytest.mark.parametrize("name", PATHS)
def test_a_path_is_short_and_each_file_leads_to_the_next(name):
    assert list(faults(SECTIONS[name])) == []


def test_the_exceptions_are_used():
    files = {file for section in SECTIONS.values() for file in files_of(section)}
    assert set(FOUND_BY_FRAMEWORK) - files == set()


HEARTBEAT = """
1. `orchestrator/protocols/native/leases/urls.py`
2. `orchestrator/protocols/native/leases/views.py`
3. `orchestrator/services/heartbeat.py`
"""


@pytest.mark.parametrize(
    ("section", "fault"),
    [
        (HEARTBEAT + "4. `leases/fencing.py`\n", []),
        (HEARTBEAT + "4. `leases/fence.py`\n", ["leases/fence.py does not exist"]),
        (HEARTBEAT + "4. `runtime_jobs/states.py`\n" * 10, ["13 files, at most 12 are allowed"]),
        (HEARTBEAT + "4. `orchestrator/protocols/ingest/pages.py`\n", ["orchestrator/protocols/ingest/pages.py is not reached from a file before it"]),
        (HEARTBEAT + "4. `leases/sql/prune.sql`\n", ["leases/sql/prune.sql is not reached from a file before it"]),
        (HEARTBEAT + "4. `templates/admin/job.html`\n", ["templates/admin/job.html is not reached from a file before it"]),
        (HEARTBEAT + "| logs | `orchestrator/protocols/ingest/pages.py` |\n", ["orchestrator/protocols/ingest/pages.py is not reached"]),
        ("A text without files.", ["no numbered list of files"]),
    ],
)  # fmt: skip
def test_a_wrong_path_is_found(section, fault):
    assert list(faults(section)) == fault
