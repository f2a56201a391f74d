"""The bits of an identifier as UUID and back, and new UUIDs of version 7."""

import time
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_jobs.identifiers import is_id, new_id, new_uuid, public_id_of, uuid_of


@given(number=st.integers(0, 2**128 - 1))
def test_every_uuid_has_one_identifier(number):
    uuid = UUID(int=number)
    public_id = public_id_of("wrk", uuid)
    assert is_id(public_id, "wrk")
    assert uuid_of(public_id) == uuid


def test_every_identifier_has_one_uuid():
    for _ in range(1000):
        public_id = new_id("rtj")
        assert public_id_of("rtj", uuid_of(public_id)) == public_id


@pytest.mark.parametrize(
    ("public_id", "uuid"),
    [
        ("wrk_00000000000000000000000000", "00000000-0000-0000-0000-000000000000"),
        ("wrk_7zzzzzzzzzzzzzzzzzzzzzzzzz", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
        ("wrk_01arz3ndektsv4rrffq69g5fav", "01563e3a-b5d3-d676-4c61-efb99302bd5b"),
    ],
)
def test_known_ulids_have_their_bits(public_id, uuid):
    assert str(uuid_of(public_id)) == uuid
    assert public_id_of("wrk", UUID(uuid)) == public_id


def test_a_new_uuid_is_of_version_7_and_begins_with_the_time():
    before = time.time_ns() // 1_000_000
    uuids = [new_uuid() for _ in range(100)]
    after = time.time_ns() // 1_000_000
    assert {(uuid.version, uuid.variant) for uuid in uuids} == {(7, "specified in RFC 4122")}
    assert all(before <= uuid.int >> 80 <= after for uuid in uuids)
    assert len(set(uuids)) == 100
