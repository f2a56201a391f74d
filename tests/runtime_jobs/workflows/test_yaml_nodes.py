"""YAML is read as text with lines, within bounds of depth, aliases and size."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_jobs.workflows.diagnostics import Diagnostics
from runtime_jobs.workflows.yaml_nodes import (
    MAX_ALIASES,
    MAX_BYTES,
    MAX_DEPTH,
    UnreadableYamlError,
    YamlMapping,
    YamlScalar,
    YamlSequence,
    compose,
)


def read(text, diagnostics=None):
    content = text.encode() if isinstance(text, str) else text
    return compose(content, Diagnostics() if diagnostics is None else diagnostics)


def plain(node):
    """The node as Python values, all scalars as text."""
    match node:
        case YamlScalar():
            return node.text
        case YamlSequence():
            return [plain(item) for item in node.items]
        case YamlMapping():
            return {key: plain(value) for key, (_, value) in node.entries.items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("on: push", {"on": "push"}),
        ("off: no", {"off": "no"}),
        ("version: 3.10", {"version": "3.10"}),
        ("mode: 0755", {"mode": "0755"}),
        ("at: 12:30:45", {"at": "12:30:45"}),
        ("key:", {"key": ""}),
        ('"on": [a, "b", \'c\']', {"on": ["a", "b", "c"]}),
        ("a: &x [1, 2]\nb: *x", {"a": ["1", "2"], "b": ["1", "2"]}),
        ("a: |\n  one\n  two\n", {"a": "one\ntwo\n"}),
        ("\ufeffa: b", {"a": "b"}),
        ("a: 'ü \U0001f600'", {"a": "ü \U0001f600"}),
    ],
)
def test_scalars_stay_text(text, expected):
    assert plain(read(text)) == expected


def test_nodes_have_the_lines_of_the_file():
    root = read("# comment\non: push\njobs:\n  build:\n    steps:\n      - run: x\n")
    (on_key, on), (_, jobs) = root.entries["on"], root.entries["jobs"]
    assert (on_key.line, on.line) == (2, 2)
    build_key, build = jobs.entries["build"]
    assert build_key.line == 4
    assert build.entries["steps"][1].items[0].line == 6


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("True", True), ("FALSE", False), ("yes", None), ("on", None), ('"true"', None), ("1", None)],
)
def test_a_boolean_is_one_of_yaml_1_2(text, value):
    assert read(f"a: {text}").entries["a"][1].boolean is value


@pytest.mark.parametrize(("text", "is_null"), [("", True), ("~", True), ("null", True), ("''", False), ("nil", False)])
def test_a_null_is_written_without_quotes(text, is_null):
    assert read(f"a: {text}").entries["a"][1].is_null is is_null


def test_a_key_that_occurs_twice_is_an_error_and_its_first_value_remains():
    diagnostics = Diagnostics()
    root = read("jobs:\n  a: 1\n  b:\n    c: 1\n    c: 2\n  a: 3\n", diagnostics)
    assert plain(root) == {"jobs": {"a": "1", "b": {"c": "1"}}}
    assert [(found.path, found.line) for found in diagnostics.in_order()] == [("jobs.b.c", 5), ("jobs.a", 6)]
    assert all("twice" in found.message for found in diagnostics.found)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "empty"),
        ("# only a comment", 1, "empty"),
        ("a: b\n---\nc: d", 2, "more than one"),
        ("a: [\n", 2, "not YAML"),
        ("a:\n\t- b", 2, "not YAML"),
        ("a: !!python/object/apply:os.system [id]", 1, "tag"),
        ("a: !x b", 1, "tag"),
        ("a: !!str b", 1, "tag"),
        ("a: b\n? [c]\n: d", 2, "not a text"),
        ("? {a: b}\n: c", 1, "not a text"),
        ("k: &k x\n*k : v", 2, "not a text"),
        ("a: *missing", 1, "no anchor"),
        ("a: &a [*a]", 1, "contains the alias"),
        ("a: &a {b: {c: *a}}", 1, "contains the alias"),
        ('a: "\\0"', 1, "NUL"),
        ('a: "x\\ud800"', 1, ""),
        ("a: \x07", 1, "character"),
        (b"a: b\nc: \xff", 2, "UTF-8"),
        ("a".encode("utf-16"), 1, "UTF-8"),
    ],
)
def test_what_is_no_workflow_is_refused_with_its_line(text, line, message):
    with pytest.raises(UnreadableYamlError) as caught:
        read(text)
    assert caught.value.line == line
    assert message in caught.value.message


def test_a_file_that_is_too_long_is_refused():
    assert plain(read(b"a: " + b"x" * (MAX_BYTES - 3))) == {"a": "x" * (MAX_BYTES - 3)}
    with pytest.raises(UnreadableYamlError, match=str(MAX_BYTES)):
        read(b"a: " + b"x" * (MAX_BYTES - 2))


def test_the_depth_is_limited():
    assert read("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    for opening, closing in (("[", "]"), ("{a: ", "}"), ("- ", "")):
        with pytest.raises(UnreadableYamlError, match="deep"):
            read(opening * (MAX_DEPTH + 1) + "x" + closing * (MAX_DEPTH + 1))


@pytest.mark.parametrize("text", ["[" * 5000, "[" * 5000 + "]" * 5000, "{a: " * 5000, "- " * 5000, "? " * 5000])
def test_five_thousand_levels_are_refused_in_bounded_memory(text):
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableYamlError):
            read(text)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_the_aliases_are_limited():
    assert read("a: &a x\nb: [" + "*a, " * MAX_ALIASES + "]")
    with pytest.raises(UnreadableYamlError, match="aliases"):
        read("a: &a x\nb: [" + "*a, " * (MAX_ALIASES + 1) + "]")


def bomb(levels=9, width=9):
    lines = ["a0: &a0 [" + ", ".join("x" * width) + "]"]
    lines += [f"a{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * width) + "]" for n in range(1, levels)]
    return "\n".join(lines)


def test_a_bomb_of_aliases_is_refused_before_anything_expands_it():
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableYamlError, match="too large after"):
            read(bomb())
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


def test_a_long_text_that_is_repeated_by_aliases_is_refused():
    text = "a: &a " + "x" * 60_000 + "\nb: [" + "*a, " * 99 + "]"
    with pytest.raises(UnreadableYamlError, match="too large after"):
        read(text)


def line_of_refusal(content):
    """The line of the fault, or None for a file that can be read."""
    try:
        read(content)
    except UnreadableYamlError as error:
        return error.line
    return None


@given(st.binary(max_size=400))
def test_any_bytes_give_nodes_or_a_refusal(content):
    assert line_of_refusal(content) is None or line_of_refusal(content) >= 1


@given(st.text(alphabet="abc:[]{}&*!?|>-'\"#,~ \n\t%@`\\0", max_size=200))
def test_any_text_of_syntax_gives_nodes_or_a_refusal(text):
    line = line_of_refusal(text)
    assert line is None or 1 <= line <= text.count("\n") + 2
