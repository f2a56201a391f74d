"""Frames of the sockets: what is a message, what is invalid, and what the server sends (contract 3.2, 3.3 and 0.2)."""

import json
from uuid import UUID

import pytest

from orchestrator.http.asgi.sockets import DropSocket
from orchestrator.http.asgi.websocket_protocol import CutText
from orchestrator.protocols.bencher.channel import messages
from orchestrator.protocols.bencher.channel.messages import (
    CanceledFrame,
    CompletedFrame,
    FailedFrame,
    HeartbeatFrame,
    InvalidFrame,
    ReadyFrame,
    RunningFrame,
    parse_channel_frame,
    parse_job_frame,
)
from orchestrator.protocols.bencher.channel.session import ChannelSession

JOB = UUID("0190a5d4-9d3c-7bbb-8f00-000000000001")
RUNNER = {"os": "linux", "arch": "x86_64", "version": "0.6.12"}


def frame(event, **members):
    return json.dumps({"event": event, **members})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (frame("ready"), ReadyFrame(30)),
        (frame("ready", poll_timeout=None), ReadyFrame(30)),
        (frame("ready", poll_timeout=1), ReadyFrame(1)),
        (frame("ready", poll_timeout=900, runner=None), ReadyFrame(900)),
        (frame("ready", runner=RUNNER), ReadyFrame(30, "0.6.12")),
        (frame("ready", runner=RUNNER | {"channel": "canary", "checksum": "a" * 64}), ReadyFrame(30, "0.6.12")),
        (frame("ready", runner=RUNNER | {"channel": None, "unknown": [1]}), ReadyFrame(30, "0.6.12")),
        (frame("running"), RunningFrame()),
        (frame("running", job=7, anything={"nested": [None]}), RunningFrame()),
        (" \n" + frame("heartbeat") + "\t", HeartbeatFrame()),
        ('{"unknown":1,"event":"heartbeat"}', HeartbeatFrame()),
        (frame("canceled", job=str(JOB)), CanceledFrame(JOB)),
        (frame("canceled", job=JOB.hex), CanceledFrame(JOB)),
        (frame("canceled", job=f"{{{JOB}}}"), CanceledFrame(JOB)),
        (frame("canceled", job=f"urn:uuid:{str(JOB).upper()}"), CanceledFrame(JOB)),
        (frame("completed", job=str(JOB), results=[]), CompletedFrame(JOB, ())),
        (frame("failed", job=str(JOB), results=[], error=""), FailedFrame(JOB, (), "")),
    ],
)
def test_a_message_of_the_channel(text, expected):
    assert parse_channel_frame(text) == expected


def test_an_iteration_keeps_its_known_members():
    results = [
        {"exit_code": 0, "stdout": "a", "stderr": None, "output": None, "unknown": 1},
        {"exit_code": -(2**31), "stderr": "\ufffd", "output": {"\0bencher": "{}", "b/c": ""}},
        {"exit_code": 2**31 - 1, "output": {}},
    ]
    parsed = parse_channel_frame(frame("completed", job=str(JOB), results=results))
    assert parsed.iterations == (
        {"exit_code": 0, "stdout": "a"},
        {"exit_code": -(2**31), "stderr": "\ufffd", "output": {"\0bencher": "{}", "b/c": ""}},
        {"exit_code": 2**31 - 1, "output": {}},
    )


INVALID = [
    *(
        "",
        " ",
        "nothing",
        "{",
        "[]",
        "null",
        "1",
        '"ready"',
        '["ready"]',
        '{"event":"ready"} x',
        '\ufeff{"event":"ready"}',
    ),
    *('{"event":null}', '{"event":["ready"]}', '{"event":{"ready":1}}', "{}", '{"type":"ready"}'),
    *(frame("Ready"), frame("update"), frame("job"), frame("ack"), frame("")),
    # Numbers
    *(frame("ready", poll_timeout=wrong) for wrong in (0, 901, -1, 1.0, 30.5, True, "30", [30], 10**30)),
    '{"event":"ready","poll_timeout":' + "9" * 5000 + "}",
    '{"event":"ready","poll_timeout":NaN}',
    '{"event":"heartbeat","x":Infinity}',
    '{"event":"heartbeat","x":1e999}',
    # Descriptions of runners
    *(frame("ready", runner=wrong) for wrong in (1, "linux", [], {}, {"os": "linux"})),
    *(
        frame("ready", runner=RUNNER | wrong)
        for wrong in (
            *(
                {"os": "plan9"},
                {"os": None},
                {"arch": "arm"},
                {"version": None},
                {"version": 1},
                {"channel": "nightly"},
            ),
            *({"channel": ["stable"]}, {"checksum": "a" * 63}, {"checksum": "A" * 64}, {"checksum": 1}),
        )
    ),
    # Jobs
    *(
        frame("canceled", job=wrong)
        for wrong in (None, 1, "", "x", str(JOB) + "0", str(JOB)[:-1], "0190-a5d4" + JOB.hex[8:])
    ),
    *(frame("completed", results=[]), frame("failed", job=str(JOB), error="x"), frame("canceled")),
    # Results
    *(frame("completed", job=str(JOB), results=wrong) for wrong in (None, {}, "x", [1], [None], [[]], [{}])),
    *(
        frame("completed", job=str(JOB), results=[{"exit_code": 0} | wrong])
        for wrong in (
            *({"exit_code": None}, {"exit_code": 0.0}, {"exit_code": False}, {"exit_code": "0"}, {"exit_code": 2**31}),
            *({"exit_code": -(2**31) - 1}, {"stdout": 1}, {"stderr": ["x"]}, {"output": []}, {"output": {"a": 1}}),
            {"output": {"a": None}},
        )
    ),
    *(frame("failed", job=str(JOB), results=[], error=wrong) for wrong in (None, 1, ["x"])),
    frame("failed", job=str(JOB), results=[]),
    # Characters and depth
    frame("failed", job=str(JOB), results=[], error="HALF").replace("HALF", "\\ud800"),
    '{"event":"heartbeat","x":"\\uDFFF"}',
    '{"event":"heartbeat","\\ud800":1}',
    '{"event":"heartbeat","x":"a\nb"}',
    '{"event":"heartbeat","x":' + "[" * 100_000 + "]" * 100_000 + "}",
    '{"event":"heartbeat","x":' + '{"a":' * 100_000 + "1" + "}" * 100_001,
]


@pytest.mark.parametrize("text", INVALID, ids=range(len(INVALID)))
def test_an_invalid_frame_of_the_channel(text):
    with pytest.raises(InvalidFrame):
        parse_channel_frame(text)


def test_a_pair_of_surrogates_is_one_character():
    text = frame("failed", job=str(JOB), results=[], error="PAIR")
    parsed = parse_channel_frame(text.replace("PAIR", "\\ud83d\\ude00"))
    assert parsed.error == "\U0001f600"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (frame("running"), RunningFrame()),
        (frame("heartbeat"), HeartbeatFrame()),
        (frame("canceled"), CanceledFrame(None)),
        (frame("canceled", job="not a uuid"), CanceledFrame(None)),
        # Document 002: one result without a list.
        (frame("completed", exit_code=0), CompletedFrame(None, ({"exit_code": 0},), is_flat=True)),
        (
            frame("completed", exit_code=3, stdout="a", stderr="b", output={"c": "d"}),
            CompletedFrame(None, ({"exit_code": 3, "stdout": "a", "stderr": "b", "output": {"c": "d"}},), is_flat=True),
        ),
        (frame("failed", error="no image"), FailedFrame(None, (), "no image", is_flat=True)),
        (
            frame("failed", error="x", exit_code=None, stderr="b"),
            FailedFrame(None, ({"exit_code": 0, "stderr": "b"},), "x", is_flat=True),
        ),
        (frame("failed", error="x", exit_code=9), FailedFrame(None, ({"exit_code": 9},), "x", is_flat=True)),
        # Later runners: a list.
        (frame("completed", results=[{"exit_code": 1}]), CompletedFrame(None, ({"exit_code": 1},))),
        (frame("failed", results=[], error="x"), FailedFrame(None, (), "x")),
    ],
)
def test_a_message_on_the_socket_of_one_job(text, expected):
    assert parse_job_frame(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        frame("ready"),
        frame("completed"),
        frame("completed", exit_code="0"),
        frame("completed", exit_code=0, output={"a": 1}),
        frame("completed", results={}, exit_code=0),
        frame("failed"),
        frame("failed", exit_code=1),
        frame("failed", error="x", exit_code="1"),
        frame("failed", error="x", stdout=1),
    ],
)
def test_an_invalid_frame_on_the_socket_of_one_job(text):
    with pytest.raises(InvalidFrame):
        parse_job_frame(text)


def test_frames_of_the_server():
    assert json.loads(messages.NO_JOB) == {"event": "no_job"}
    assert json.loads(messages.CANCEL) == {"event": "cancel"}
    assert json.loads(messages.ACK_WITHOUT_JOB) == {"event": "ack"}
    assert json.loads(messages.render_ack(JOB)) == {"event": "ack", "job": str(JOB)}
    assert json.loads(messages.render_job({"uuid": str(JOB), "timeout": 1})) == {
        "event": "job",
        "uuid": str(JOB),
        "timeout": 1,
    }


def test_a_message_that_is_cut_anywhere_has_what_came_before():
    """Also within an escape, a surrogate pair, a number or the name of a member."""
    whole = {
        "event": "completed",
        "job": str(JOB),
        "results": [
            {"exit_code": 0, "stdout": 'a\\"\n\u00e9\U0001f600b', "output": {"/a b": "x,]}", "/c": "y"}},
            {"exit_code": -12, "stderr": ""},
        ],
    }
    text = json.dumps(whole)
    kept = 0
    for size in range(1, len(text)):
        beginning = CutText(text[:size])
        beginning.size, beginning.limit = len(text), size
        frame = parse_channel_frame(beginning)
        assert frame.error.startswith(f"The result has {len(text)} bytes, and this server accepts {size}")
        if frame.job is None:  # the message does not name its job yet
            assert (frame.iterations, size < text.index("results") + 12) == ((), True)
            continue
        assert len(frame.iterations) >= kept  # nothing that has come is lost by more of it
        kept = len(frame.iterations)
        for found, sent in zip(frame.iterations, whole["results"], strict=False):
            assert sent.get("stdout", "").startswith(found.get("stdout", ""))
            assert found["exit_code"] == sent["exit_code"]
            assert all(sent["output"][path].startswith(content) for path, content in found.get("output", {}).items())
    assert kept == 2
    for other in ("", "[1", "nonsense", "}" * 9, '{"event": "x"', "[" * 200_000, '{"event": "completed", "results": 1'):
        beginning = CutText(other)
        beginning.size = beginning.limit = 9
        found = parse_channel_frame(beginning)
        assert isinstance(found, FailedFrame)
        session = ChannelSession(silence_seconds=90, now=0.0)
        assert session.receive(found, 0.0) == [DropSocket()]  # an idle runner has no job that could fail
    beginning = CutText('{"event": "heartbeat"')
    beginning.size = beginning.limit = 9
    with pytest.raises(InvalidFrame):
        parse_channel_frame(beginning)
