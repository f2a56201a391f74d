"""The filter as the kernel would read it: a small interpreter runs the bytes against calls."""

import errno
import socket
import struct
from pathlib import Path

import pytest

from workers.engines import seccomp
from workers.engines.seccomp import ALLOW, ASK_WORKER, CALLS, ERRNO, KILL, common_rules, program

X86_64 = 0xC000003E
I386 = 0x40000003


def run(code, call, *arguments, arch=X86_64):
    number = CALLS.get(call, call)
    data = struct.pack(
        "=IIQ6Q", number, arch, 0, *(argument & (1 << 64) - 1 for argument in (*arguments, *[0] * 6)[:6])
    )
    steps = list(struct.iter_unpack("=HBBI", code))
    at, accumulator = 0, 0
    while True:
        op, yes, no, operand = steps[at]
        at += 1
        if op == 0x20:
            accumulator = struct.unpack_from("=I", data, operand)[0]
        elif op == 0x54:
            accumulator &= operand
        elif op == 0x06:
            return operand
        else:
            holds = {0x15: accumulator == operand, 0x35: accumulator >= operand, 0x45: bool(accumulator & operand)}[op]
            at += yes if holds else no


COMMON = program(common_rules())
ONE = program([*seccomp.one_program_rules(4095), *common_rules()])
CLOSED = program([*seccomp.no_network_rules(), *seccomp.no_shared_objects_rules(), *common_rules()])


@pytest.mark.parametrize("code", [COMMON, ONE, CLOSED])
def test_every_jump_lands_inside_and_the_kernel_takes_the_length(code):
    steps = list(struct.iter_unpack("=HBBI", code))
    assert len(steps) < 4096
    for at, (op, yes, no, _) in enumerate(steps):
        if op in {0x15, 0x35, 0x45}:
            assert at + 1 + max(yes, no) < len(steps)
    assert steps[-1] == (0x06, 0, 0, ALLOW)


@pytest.mark.parametrize("code", [COMMON, ONE, CLOSED])
def test_other_architectures_and_numbers_kill(code):
    assert run(code, 20, arch=I386) == KILL
    assert run(code, 0x40000000 + 39) == KILL
    assert run(code, 0xFFFFFFFF) == KILL


@pytest.mark.parametrize("code", [COMMON, ONE, CLOSED])
@pytest.mark.parametrize("name", seccomp.DENIED)
def test_what_is_denied_goes_to_the_worker(code, name):
    assert run(code, name) == ASK_WORKER
    assert run(code, name, *[2**64 - 1] * 6) == ASK_WORKER


@pytest.mark.parametrize("number", [463, 467, 500, 100_000])
def test_calls_that_nobody_has_read_about_do_not_exist(number):
    assert run(COMMON, number) == ERRNO | errno.ENOSYS


@pytest.mark.parametrize("number", [0, 1, 2, 3, 39, 57, 60, 202, 231, 257, 332, 334, 436, 439, 449, 462])
def test_ordinary_calls_pass(number):
    assert run(COMMON, number) == ALLOW


@pytest.mark.parametrize(
    ("flags", "verdict"),
    [
        (17, ALLOW), (0x3D0F00, ALLOW), (0x1200011, ALLOW), (0x4111, ALLOW), (0x800011, ASK_WORKER),
        *((1 << bit | 17, ASK_WORKER) for bit in (17, 25, 26, 27, 28, 29, 30)),
        (1 << 32 | 17, ALLOW), (1 << 32 | 0x10000011, ASK_WORKER),
    ],
)  # fmt: skip
def test_clone_is_judged_by_its_flags(flags, verdict):
    assert run(COMMON, "clone", flags) == verdict
    assert run(COMMON, "clone3", flags) == ERRNO | errno.ENOSYS


@pytest.mark.parametrize("high", [0, 1 << 32, 0xFFFFFFFF << 32])
def test_only_the_bits_that_the_kernel_reads_are_compared(high):
    assert run(COMMON, "ioctl", 0, high | 0x5412) == ASK_WORKER
    assert run(COMMON, "ioctl", 0, high | 0x541C) == ASK_WORKER
    assert run(COMMON, "ioctl", 0, high | 0x5413) == ALLOW
    assert run(COMMON, "socket", high | 40) == ASK_WORKER
    assert run(COMMON, "socket", high | 2, high | 1) == ALLOW
    assert run(COMMON, "socket", high | 2, high | 1, high | 132) == ASK_WORKER


@pytest.mark.parametrize("family", [1, 2, 10, 16])
def test_families_that_a_network_namespace_holds_pass(family):
    assert run(COMMON, "socket", family, 1) == ALLOW


@pytest.mark.parametrize("code", [COMMON, ONE, CLOSED])
@pytest.mark.parametrize("high", [0, 1 << 32])
def test_pairs_of_sockets_are_of_the_unix_family_only(code, high):
    assert run(code, "socketpair", high | 1, 1) == ALLOW
    for family in (0, 2, 10, 16, 21, 30, 38, 40, 0xFFFFFFFF):
        for kind in (1, 2, 3, 5):
            assert run(code, "socketpair", high | family, kind) == ASK_WORKER


def test_only_the_pinned_descriptor_is_executed():
    assert run(ONE, "execve", 1, 2, 3) == ASK_WORKER
    assert run(ONE, "execveat", 4095, 0, 0, 0, 0x1000) == ALLOW
    assert run(ONE, "execveat", 4095 | 7 << 32, 0, 0, 0, 0x1100) == ALLOW  # an int: the same descriptor
    for arguments in ((4095, 0, 0, 0, 0), (4094, 0, 0, 0, 0x1000), (-100, 0, 0, 0, 0x1000), (4095, 0, 0, 0, 0x100)):
        assert run(ONE, "execveat", *arguments) == ASK_WORKER
    assert run(COMMON, "execve", 1, 2, 3) == ALLOW


@pytest.mark.parametrize(
    "flags", [0, socket.SOCK_CLOEXEC, socket.SOCK_NONBLOCK, socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK]
)
def test_without_a_network_namespace_only_connected_unix_sockets_pass(flags):
    assert run(CLOSED, "socket", 1, 1 | flags) == ALLOW
    assert run(CLOSED, "socket", 1, 5 | flags) == ALLOW
    for family, kind in ((1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (10, 1), (10, 2), (16, 3), (40, 1), (17, 3)):
        assert run(CLOSED, "socket", family, kind | flags) == ASK_WORKER
    assert run(CLOSED, "socketpair", 1, 1 | flags) == ALLOW
    assert run(CLOSED, "socketpair", 1, 2 | flags) == ERRNO | errno.EACCES
    assert run(CLOSED, "connect", 3) == ASK_WORKER
    assert run(CLOSED, "bind", 3) == ASK_WORKER


def test_options_of_protocols_seem_to_be_set():
    assert run(CLOSED, "setsockopt", 3, socket.IPPROTO_IP) == ERRNO
    assert run(CLOSED, "setsockopt", 3, socket.IPPROTO_TCP) == ERRNO
    assert run(CLOSED, "setsockopt", 3, socket.SOL_SOCKET) == ALLOW


@pytest.mark.parametrize("name", seccomp.SHARED_OBJECTS)
def test_shared_objects_are_closed_without_an_ipc_namespace(name):
    assert run(CLOSED, name) == ASK_WORKER
    assert run(COMMON, name) == ALLOW


def test_the_numbers_are_those_of_this_machine_s_headers():
    """Where the headers are installed; the kernel's numbers never change."""
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        return
    numbers = dict(line.split()[1:3] for line in header.read_text().splitlines() if line.startswith("#define __NR_"))
    known = {name: int(numbers[f"__NR_{name}"]) for name in CALLS if f"__NR_{name}" in numbers}
    assert known == {name: number for name, number in CALLS.items() if name in known}
