"""Programs for attacks: perl that makes any system call and prints its result, and a few bytes of machine code."""

import struct

# try NAME => sub {...}: prints the name and `done`, or the errno by name.
TRY = r"""
use strict; use warnings; $| = 1;
my %NAMES = (1, 'EPERM', 2, 'ENOENT', 3, 'ESRCH', 6, 'ENXIO', 9, 'EBADF', 11, 'EAGAIN', 12, 'ENOMEM', 13, 'EACCES',
    17, 'EEXIST', 19, 'ENODEV', 20, 'ENOTDIR', 22, 'EINVAL', 24, 'EMFILE', 25, 'ENOTTY', 27, 'EFBIG', 28, 'ENOSPC',
    30, 'EROFS', 38, 'ENOSYS', 93, 'EPROTONOSUPPORT', 97, 'EAFNOSUPPORT', 99, 'EADDRNOTAVAIL', 101, 'ENETUNREACH',
    111, 'ECONNREFUSED');
sub try { my ($name, $call) = @_; $! = 0; my $result = $call->();
    print "$name ", (defined $result && $result != -1 ? 'done' : $NAMES{$! + 0} // $! + 0), "\n" }
sub calls { my %calls = @_; for my $name (sort keys %calls) { my ($number, @arguments) = @{ $calls{$name} };
    try($name => sub { syscall $number, @arguments }) } }
"""


def results(run):
    """{name: result} of what `try` printed, of a job that ended normally."""
    assert run.kind == "exited", (run.result, run.output)
    assert run.result.exit_code == 0, run.output
    return dict(line.split(" ", 1) for line in run.output.splitlines() if " " in line)


def program_64(code: bytes) -> bytes:
    """The smallest ELF file for x86-64 that runs `code`."""
    base = 0x400000
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 62, 1, base + 120, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, 120 + len(code), 120 + len(code), 0x1000)
    return header + segment + code


# getpid by the entry point for 32-bit programs, then exit(0): a filter of numbers alone would confuse them.
INT80 = program_64(bytes.fromhex("b814000000 cd80 b83c000000 31ff 0f05"))
