"""Values inside a line: what strace prints, and what a hostile program can make it print."""

import pytest

from workers.engines.tracing import values
from workers.engines.tracing.values import Address, Descriptor


def test_pieces_split_at_the_commas_of_one_level_only():
    line = b'f(1, "a, b", [2, 3], {x=4, y={z=5}}, 6</a, b>) = 0'
    found, closed = values.pieces(line, 2)
    assert found == [b"1", b'"a, b"', b"[2, 3]", b"{x=4, y={z=5}}", b"6</a, b>"]
    assert line[closed:] == b") = 0"


def test_no_string_ends_a_call_early():
    line = b'"a\\") = 3", O_RDONLY) = 4'
    found, closed = values.pieces(line)
    assert found == [b'"a\\") = 3"', b"O_RDONLY"]
    assert line[closed:] == b") = 4"


def test_a_shift_is_no_decoration():
    assert values.pieces(b"1<<3, 2>1, 4)")[0] == [b"1<<3", b"2>1", b"4"]


def test_a_line_that_ends_first_gives_what_there_was():
    assert values.pieces(b'"/bin/sh", ["sh", "-c", "aaa') == ([b'"/bin/sh"', b'["sh", "-c", "aaa'], -1)


@pytest.mark.parametrize(
    ("shown", "meant"),
    [
        (b'"plain"', b"plain"),
        (b'"a\\"b\\\\c\\n\\t"', b'a"b\\c\n\t'),
        (b'"\\0\\1\\12\\377\\0001"', b"\0\1\n\xff\x001"),
        (b'"\\x41\\x00"', b"A\0"),
        (b'"cut"...', b"cut"),
        (b'@"abstract"', b"\0abstract"),
        (b'""', b""),
        (b"NULL", None),
        (b"0x7ffe", None),
        (b"", None),
    ],
)
def test_text_undoes_every_escape(shown, meant):
    assert values.text(shown) == meant


@pytest.mark.parametrize(
    ("shown", "meant"),
    [
        (b"3</etc/hosts>", Descriptor(3, b"/etc/hosts")),
        (b"AT_FDCWD</job>", Descriptor(None, b"/job")),
        (b"AT_FDCWD", Descriptor(None, None)),
        (b"7</memfd:evil>(deleted)", Descriptor(7, b"/memfd:evil", deleted=True)),
        (b"5</job/q\\76, x>", Descriptor(5, b"/job/q>, x")),
        (b"-1", Descriptor(-1, None)),
        (b"O_RDONLY", None),
    ],
)
def test_descriptors(shown, meant):
    assert values.descriptor(shown) == meant


@pytest.mark.parametrize(
    ("shown", "meant"),
    [
        (
            b'{sa_family=AF_INET, sin_port=htons(443), sin_addr=inet_addr("203.0.113.7")}',
            Address("inet", "203.0.113.7", 443),
        ),
        (
            (
                b"{sa_family=AF_INET6, sin6_port=htons(9), sin6_flowinfo=htonl(0), "
                b'inet_pton(AF_INET6, "2001:db8::7", &sin6_addr), sin6_scope_id=0}'
            ),
            Address("inet6", "2001:db8::7", 9),
        ),
        (b'{sa_family=AF_UNIX, sun_path="/run/x, y={"}', Address("unix", "/run/x, y={")),
        (b'{sa_family=AF_UNIX, sun_path=@"abs"}', Address("unix", "@abs")),
        (b"{sa_family=AF_NETLINK, nl_pid=0, nl_groups=00000000}", Address("netlink", "")),
        (b"NULL", None),
        (b"0x7ffe", None),
    ],
)
def test_addresses(shown, meant):
    assert values.address(shown) == meant


def test_a_program_cannot_add_fields_through_a_string():
    shown = b'{sa_family=AF_UNIX, sun_path="x\\", sin_port=htons(53), sin_addr=inet_addr(\\"8.8.8.8\\")"}'
    assert values.address(shown) == Address("unix", 'x", sin_port=htons(53), sin_addr=inet_addr("8.8.8.8")')


def test_arrays_of_strings():
    assert values.strings(b'["sh", "-c", "echo \\"a, b\\""]') == [b"sh", b"-c", b'echo "a, b"']
    assert values.strings(b'["a", ...]') == [b"a"]
    assert values.strings(b"0x1") == []
