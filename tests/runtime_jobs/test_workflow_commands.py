"""Commands in the lines of a log: which lines count, what they say, and that the split of the log does not matter."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_jobs.workflow_commands import MAX_LINE_BYTES, WorkflowCommand, read_command, read_commands


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"::error::it broke", WorkflowCommand("error", "it broke")),
        (
            b"  ::notice title=T,file=a/b.py,line=3,endLine=5,col=7,endColumn=9::text\r",
            WorkflowCommand("notice", "text", "T", "a/b.py", 3, 5, 7, 9),
        ),
        (b"::warning file=a%2Cb%3Ac::50%25%0Anext %253A", WorkflowCommand("warning", "50%\nnext %3A", path="a,b:c")),
        (b"::warning line=0,col=x,endLine=99999999999::", WorkflowCommand("warning", "")),
        (b"::error::nul \x00 and \xff", WorkflowCommand("error", "nul \ufffd and \ufffd")),
        (b"::error ::a::b", WorkflowCommand("error", "a::b")),
        (b"::errors::text", None),
        (b"::error", None),
        (b"text ::error::text", None),
        (b"::debug::text", None),
        (b"::group::text", None),
        (b"::error::" + b"x" * MAX_LINE_BYTES, None),
    ],
)
def test_a_line(line, expected):
    assert read_command(line) == expected


PIECES = [
    b"::error::",
    b"::",
    b":",
    b"error",
    b" ::notice title=a::",
    b"\n",
    b"\n\n",
    b"\r\n",
    b" ",
    b"x",
    b"text",
    b"::warn",
    b"ing::",
]


@given(st.lists(st.sampled_from(PIECES), max_size=20), st.lists(st.integers(0, 100), max_size=6))
def test_the_split_does_not_matter(pieces, cuts):
    text = b"".join(pieces)
    expected = [command for line in text.split(b"\n")[:-1] if (command := read_command(line))]
    borders = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    found, open_line = [], b""
    for begin, end in itertools.pairwise(borders):
        commands, open_line = read_commands(open_line, text[begin:end])
        found += commands
    assert found == expected


def test_an_endless_line_is_not_kept():
    commands, open_line = read_commands(b"", b"::error::" + b"x" * (MAX_LINE_BYTES + 1))
    assert (commands, len(open_line)) == ([], 1)
    commands, open_line = read_commands(open_line, b"::error::y\n::error::z\n")
    assert [command.message for command in commands] == ["z"]
