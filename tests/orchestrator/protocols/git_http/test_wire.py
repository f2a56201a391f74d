"""The terms of git's protocol."""

import pytest

from orchestrator.protocols.git_http.wire import packet_line, protocol_version, service_banner


def test_a_packet_begins_with_its_length():
    assert packet_line("hi\n") == b"0007hi\n"
    assert service_banner("git-upload-pack") == b"001e# service=git-upload-pack\n0000"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", ""),
        ("version=2", "version=2"),
        ("version=1", "version=1"),
        ("version=1:version=2", "version=2"),
        ("object-format=sha256:version=2", "version=2"),
        ("version=0", ""),
        ("version=3", ""),
        ("version=2\nx=y", ""),
        ("version=22", ""),
        ("Version=2", ""),
    ],
)
def test_only_known_versions_reach_git(header, expected):
    assert protocol_version(header) == expected
