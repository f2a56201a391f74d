"""The frame of an event in a stream: one event, whatever its data contains."""

import json
from datetime import UTC, datetime

import pytest
from httpx_sse._decoders import SSEDecoder

from orchestrator.events.channels import encode_entry
from orchestrator.events.pages import Place, StoredEvent
from runtime_jobs.identifiers import new_event_id, new_job_id


def event(reason):
    job = new_job_id()
    values = {
        "place": Place(7, 0, 1), "event_id": new_event_id(), "event_type": "job.prioritized",
        "created_at": datetime(2030, 1, 1, tzinfo=UTC), "org_slug": "acme", "job_type": "scan", "correlation_id": "x",
        "actor": "client:alice", "details": {"reason": reason}, "job_id": job, "root_job_id": job, "attempt": 1,
        "seq": 2, "hash": "b" * 64,
    }  # fmt: skip
    return StoredEvent(**values)


@pytest.mark.parametrize(
    "text", ["a\n\ndata: {}\n\n", "x\r\nid: 1\r\nevent: gap\r\n\r\n", "\rretry: 0\r\r", "\u2028\u2029\x85\0"]
)
def test_data_with_line_ends_and_field_names_is_one_event(text):
    entry = encode_entry(event(text))
    assert entry.frame.count(b"\n") == 3
    assert b"\r" not in entry.frame
    decoder = SSEDecoder()
    found = [one for line in entry.frame.decode().split("\n")[:-1] if (one := decoder.decode(line)) is not None]
    (only,) = found
    assert (only.event, only.id) == ("message", entry.place_token)
    assert json.loads(only.data)["payload"]["details"]["reason"] == text
