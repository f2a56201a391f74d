"""Names out of DNS questions, and nothing out of anything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.report.syscalls.network import queried_name

HEADER = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"
QUESTION = HEADER + b"\x07Example\x04test\x00\x00\x01\x00\x01"


def test_a_question_has_a_name():
    assert queried_name(QUESTION) == "example.test"


def test_over_tcp_the_length_comes_first():
    assert queried_name(len(QUESTION).to_bytes(2, "big") + QUESTION) == "example.test"


@pytest.mark.parametrize(
    "message",
    [b"", HEADER, QUESTION[:20], HEADER[:2] + b"\x81\x80" + QUESTION[4:], HEADER + b"\x00\x00\x01\x00\x01", HEADER + b"\xc0\x0c\x00\x01\x00\x01",
     b"GET / HTTP/1.1\r\nHost: example.test\r\n\r\n"],
)  # fmt: skip
def test_what_is_no_question_has_none(message):
    assert queried_name(message) is None


def test_bytes_that_no_host_name_has_are_replaced():
    assert queried_name(HEADER + b"\x03\x00\x1b.\x04test\x00\x00\x01\x00\x01") == "\ufffd\ufffd\ufffd.test"


@given(st.binary(max_size=300))
def test_no_bytes_raise(message):
    name = queried_name(QUESTION[:12] + message)
    assert name is None or name
