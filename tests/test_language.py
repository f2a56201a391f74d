"""Checks the language of the code and its documents: words that mislead, docstrings, names of classes.

`python -m tests.test_language` counts the faults of each area; `python -m tests.test_language PATH ...` lists them.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("orchestrator", "runtime_jobs", "leases", "workers", "config", "benchmarks")
CHECKED = (
    *PACKAGES,
    "tests",
    "templates",
    "docs",
    "deploy",
    ".ci",
    "manage.py",
    "Makefile",
    "Procfile",
    "pyproject.toml",
    "*.md",
)

# Words that mislead, each with what is meant. Other words are a matter of taste, and of the reader who reviews.
BANNED = {
    r"doors?": "protocol, API, entry point",
    r"verbs?": "operation",
    r"trails?": "event history, audit log",
    r"told": "sent",
    r"clock process(es)?|the clock(?= (leads|ends|expires|deletes|forces|counts|executes|dies|runs)\b)": "scheduler process",
}
_BANNED = [(re.compile(rf"\b({words})\b", re.IGNORECASE), better) for words, better in BANNED.items()]
_CODE = re.compile(r"`[^`\n]*`")  # names, which have rules of their own
_WRONG_START = re.compile(r"(What|Who|Whose|How|It)\b")

# (file or folder, part of a banned word, or "" for all): why it may stay.
EXCEPTIONS = {
    ("tests/test_language.py", ""): "lists the banned words",
    ("docs/adr/0046-service-modules-are-nouns.md", "verb"): "in the sense of grammar",
    ("docs/adr/README.md", "verb"): "the title of that decision",
    ("docs/openapi.yaml", "told"): "names of published components",
}

# Django imports the models of an app from here; they are in the folders of their features.
MAY_FORWARD = frozenset({"orchestrator/models.py", "workers/models.py"})


def files(*paths: str) -> list[str]:
    """Returns the tracked and new files below the paths, relative to the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *paths]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
    return sorted(name for name in listed if name and (ROOT / name).is_file())


def docstrings(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """Yields the name, docstring and line of each module, class and function that has a docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text is not None:
                yield getattr(node, "name", "module"), text, node.body[0].lineno


def texts_of_python(source: str, *, messages: bool = True) -> Iterator[tuple[int, str]]:
    """Yields the lines of comments and docstrings, and of messages: string literals of several words."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    tree = ast.parse(source)
    found = [(text, line) for _, text, line in docstrings(tree)]
    if messages:
        found = [
            (node.value, node.lineno)
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"\w\s+\w", node.value)
        ]
    for text, first_line in found:
        yield from enumerate(_CODE.sub("", text).splitlines(), first_line)


def texts_of_markdown(source: str) -> Iterator[tuple[int, str]]:
    """Yields lines outside of code blocks, without `code` and link targets."""
    in_code = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code:
            yield number, re.sub(r"\]\([^)]*\)", "", _CODE.sub("", line))


def texts_of_comments(source: str, *, mark: str) -> Iterator[tuple[int, str]]:
    """Yields the comments of a file in which they begin with the mark."""
    for number, line in enumerate(source.splitlines(), 1):
        _, found, comment = line.partition(mark)
        if found:
            yield number, comment


def all_lines(source: str) -> Iterator[tuple[int, str]]:
    """Yields all lines."""
    yield from enumerate(source.splitlines(), 1)


READERS: dict[str, Callable[[str], Iterator[tuple[int, str]]]] = {
    ".py": texts_of_python,
    ".md": texts_of_markdown,
    ".sql": partial(texts_of_comments, mark="--"),
    **dict.fromkeys((".html", ".txt", ".svg", ".yaml", ".js"), all_lines),
    **dict.fromkeys(
        (".pl", ".sh", ".service", ".timer", ".example", ".toml", ""), partial(texts_of_comments, mark="#")
    ),
}


def reader(name: str) -> Callable[[str], Iterator[tuple[int, str]]] | None:
    """Returns the function that finds language in a file; of tests, only comments and docstrings."""
    path = PurePosixPath(name)
    if path.suffix == ".py" and path.parts[0] == "tests":
        return partial(texts_of_python, messages=False)
    return READERS.get(path.suffix)


def banned_words(name: str, source: str) -> Iterator[str]:
    """Yields a line for each banned word of a file."""
    read = reader(name)
    allowed = [word for place, word in EXCEPTIONS if name.startswith(place)]
    for number, text in read(source) if read else ():
        for pattern, better in _BANNED:
            for found in pattern.finditer(text):
                if not any(word in found[0].lower() for word in allowed):
                    yield f"{name}:{number}: {found[0]!r} ({better}): {text.strip()[:100]}"


def docstring_faults(name: str, source: str) -> Iterator[str]:
    """Yields a line for each docstring whose first line is not a sentence of its own."""
    for owner, text, line in docstrings(ast.parse(source)):
        first, *rest = text.strip().splitlines() or [""]
        fault = None
        if not first.endswith("."):
            fault = "does not end with a full stop"
        elif _WRONG_START.match(first):
            fault = "names no subject and active verb"
        elif rest and rest[0].strip():
            fault = "is not followed by a blank line"
        if fault:
            yield f"{name}:{line}: the first line of the docstring of {owner} {fault}: {first[:80]}"


def faults(name: str, source: str) -> list[str]:
    """Returns all faults of one file. `make check` finds missing docstrings by ruff's rules."""
    found = list(banned_words(name, source))
    if name.endswith(".py"):
        found += docstring_faults(name, source)
    return found


def area(name: str) -> str:
    """Returns the area of a file: the folders that one test checks."""
    *folders, file = PurePosixPath(name).parts
    if not folders:
        return file
    depth = 1
    if folders[0] in {"orchestrator", "workers", "tests"}:
        depth = 2
    if folders[:2] in (["orchestrator", "protocols"], ["orchestrator", "http"], ["tests", "orchestrator"]):
        depth = 3
    return "/".join(folders[:depth])


def all_faults(names: list[str]) -> list[str]:
    """Returns all faults of the files."""
    return [fault for name in names for fault in faults(name, (ROOT / name).read_text())]


AREAS: dict[str, list[str]] = defaultdict(list)
for _name in files(*CHECKED):
    if reader(_name):
        AREAS[area(_name)].append(_name)


@pytest.mark.parametrize("name", AREAS)
def test_an_area_uses_the_language_of_the_field(name):
    found = all_faults(AREAS[name])
    assert not found, f"{len(found)} faults:\n" + "\n".join(found)


def test_each_exception_exists():
    assert [place for place, _ in EXCEPTIONS if not (ROOT / place).exists()] == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("leases/planted.py", '"""Checks leases."""\n\nx = 1  # the worker is told so\n'),
        ("leases/planted.py", '"""Checks leases.\n\nThe clock expires them.\n"""\n'),
        ("pyproject.toml", "timeout = 9  # then it is told\n"),
        ("leases/planted.py", '"""Checks leases."""\n\nMESSAGE = f"{1} of the jobs has a trail"\n'),
        ("tests/planted.py", '"""Checks leases.\n\nThe verbs of a job.\n"""\n'),
        ("leases/sql/planted.sql", "SELECT 1; -- the trail\n"),
        ("docs/planted.md", "A claim that arrives\nat the door.\n"),
        ("templates/planted.html", "<p>The clock process</p>\n"),
        ("workers/engines/planted.pl", "# the door\n"),
        ("leases/planted.py", '"""What a lease is."""\n'),
        ("leases/planted.py", '"""Checks leases."""\n\n\nclass A:\n    """Whose lease it is."""\n'),
        ("leases/planted.py", '"""Checks leases"""\n'),
        ("leases/planted.py", '"""Checks leases and\n\nworkers."""\n'),
        ("leases/planted.py", '"""Checks leases.\nAnd workers.\n"""\n'),
    ],
)
def test_a_planted_fault_is_found(name, source):
    assert len(faults(name, source)) == 1


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("leases/planted.py", '"""Checks leases; `told` is a name."""\n\ntold = {"told": 1}\n'),
        ("docs/planted.md", "Set `verb`, [here](trail.md):\n\n```\ndoor\n```\n"),
        ("docs/planted.md", "Trailers, indoors and the database's clock stay. Nobody tells the worker to go on.\n"),
        ("leases/planted.py", '"""Itemizes leases.\n\nWhat follows is free.\n"""\n'),
    ],
)
def test_names_code_and_parts_of_words_are_free(name, source):
    assert faults(name, source) == []


def trees() -> Iterator[tuple[str, ast.Module]]:
    """Yields the modules of the packages but migrations."""
    for name in files(*PACKAGES):
        if name.endswith(".py") and "/migrations/" not in name:
            yield name, ast.parse((ROOT / name).read_text())


def test_a_class_name_is_used_once():
    # Django names these by their place, and never by their name alone.
    by_place = {"Command": "/management/commands/"}
    places = defaultdict(list)
    for name, tree in trees():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and by_place.get(node.name, "\0") not in name:
                places[node.name].append(name)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def only_forwards(tree: ast.Module) -> bool:
    """Returns whether a module consists of imports, a docstring and `__all__`, with at least one import."""
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    rest = [node for node in tree.body if node not in imports]
    return bool(imports) and all(
        (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
        for node in rest
    )


def test_no_module_only_forwards():
    assert only_forwards(ast.parse('"""Forwards."""\nfrom a import b\n__all__ = ["b"]\n'))
    assert not only_forwards(ast.parse('"""Does."""\nfrom a import b\nb()\n'))
    found = {name for name, tree in trees() if not name.endswith("__init__.py") and only_forwards(tree)}
    assert found == MAY_FORWARD


def test_no_package_is_empty():
    folders = defaultdict(list)
    for name in files(*PACKAGES):
        for parent in PurePosixPath(name).parents:
            folders[parent.as_posix()].append(name)
    assert [folder for folder, names in folders.items() if names == [f"{folder}/__init__.py"]] == []


if __name__ == "__main__":
    for area_name, names in AREAS.items():
        chosen = [name for name in names if not sys.argv[1:] or name.startswith(tuple(sys.argv[1:]))]
        lines = all_faults(chosen)
        if lines:
            print(f"{len(lines):5} {area_name}", *(lines if sys.argv[1:] else ()), sep="\n      ")  # noqa: T201 the command
