"""The takeover of a sandbox's init process: the job writes code into it through `/proc/PID/mem` and wakes it."""

import struct

from workers.engines import landlock
from workers.engines.sandbox import launcher

# What the code calls in the foreign process: each of these the filter refuses to the job itself.
FORBIDDEN = {
    "io_uring_setup": (425, 1, "room"),
    "memfd_secret": (447, 0),
    "vsock": (41, 40, 1, 0),
    "userfaultfd": (323, 1),
    "add_key": (248, "key", "key", "key", 3, -3),
}
_ROOM = 1024  # bytes of the stack, past the results, that a call may read and write


def _move(register: int, value: int) -> bytes:
    """`movabs register, value`; the register by its number in the instruction set."""
    return bytes([0x49 if register > 7 else 0x48, 0xB8 + (register & 7)]) + struct.pack("<Q", value & (2**64 - 1))


_RAX, _ARGUMENTS = 0, (7, 6, 2, 10, 8, 9)  # rdi, rsi, rdx, r10, r8, r9
_SYSCALL = bytes.fromhex("0f05")


def code(path: str) -> bytes:
    """Build machine code that makes the forbidden calls, writes their results to a new file, and waits for ever."""
    text = {"path": path.encode() + b"\0", "key": b"user\0"}
    length, parts = 0, []
    for final in (False, True):  # the first pass only measures: the strings lie behind the code
        at = {name: length + sum(map(len, list(text.values())[:index])) for index, name in enumerate(text)}
        parts = [bytes.fromhex("4881ec00200000")]  # sub rsp, 0x2000
        for index, (number, *arguments) in enumerate(FORBIDDEN.values()):
            parts += [_call(number, arguments, at, parts), b"\x48\x89\x84\x24" + struct.pack("<I", 8 * index)]
        parts.append(_call(85, ("path", 0o600), at, parts))  # creat
        parts.append(bytes.fromhex("4889c7"))  # mov rdi, rax
        parts += [bytes.fromhex("4889e6"), _move(2, 8 * len(FORBIDDEN)), _move(_RAX, 1), _SYSCALL]  # write
        parts += [_move(_RAX, 34), _SYSCALL, bytes.fromhex("ebf2")]  # pause, again
        length = sum(map(len, parts))
        assert final or length
    return b"".join(parts) + b"".join(text.values())


def _call(number: int, arguments, at: dict[str, int], before: list[bytes]) -> bytes:
    found = b""
    for register, argument in zip(_ARGUMENTS, arguments, strict=False):
        if argument == "room":
            found += bytes([0x48, 0x8D, 0xBC if register == 7 else 0xB4, 0x24]) + struct.pack("<I", _ROOM)
        elif isinstance(argument, str):
            # lea register, [rip + distance]: 7 bytes
            here = sum(map(len, before)) + len(found) + 7
            prefix = 0x4C if register > 7 else 0x48
            found += bytes([prefix, 0x8D, 5 | (register & 7) << 3]) + struct.pack("<i", at[argument] - here)
        else:
            found += _move(register, argument)
    return found + _move(_RAX, number) + _SYSCALL


# Arguments: the machine code in hex, the file it makes, and the process: a number, or `parent`.
SCRIPT = r"""
use strict; use warnings; no warnings 'portable'; $| = 1;
my ($code, $file, $target) = @ARGV;
$target = getppid if $target eq 'parent';
my $failed;
open my $memory, '+<', "/proc/$target/mem" or $failed = "memory $!";
my @words;
for (1 .. 1000) {    # of a process that is not in a call the kernel says "running", and no address
    last if $failed || @words > 1;
    select undef, undef, undef, 0.01 if $_ > 1;
    open my $state, '<', "/proc/$target/syscall" or $failed = "syscall $!";
    @words = $failed ? () : split ' ', <$state> // '';
}
if (!$failed) {
    sysseek $memory, hex $words[-1], 0;
    $failed = "write $!" if !defined syswrite $memory, pack('H*', $code);
}
print defined $failed ? "refused: $failed\n" : "written\n";
if (!fork) { exit if fork; select undef, undef, undef, 0.05; exit }    # an orphan, whose death wakes pid 1
wait;
for (1 .. ($failed ? 100 : 700)) { last if -s $file; select undef, undef, undef, $failed ? 0.002 : 0.02 }
print "taken\n" if -s $file;
"""


def results(data: bytes) -> dict[str, int]:
    """Return what each forbidden call returned in the foreign process: a descriptor or key, or a negative errno."""
    return dict(zip(FORBIDDEN, struct.unpack(f"<{len(FORBIDDEN)}q", data), strict=True))


def unprotect_init(monkeypatch, *protections):
    """Take protections of pid 1 away, as a kernel that lacks them would."""
    if "dumpable" in protections:
        script = launcher.SCRIPT.replace(b'must("not dumpable"', b'0 and ("not dumpable"')
        assert script != launcher.SCRIPT
        monkeypatch.setattr(launcher, "SCRIPT", script)
    if "landlock" in protections:
        monkeypatch.setattr(landlock, "domain", lambda _: (None, []))
    if "filter" in protections:
        script = launcher.SCRIPT.replace(b'must("filter of pid 1"', b'0 and ("filter of pid 1"')
        assert script != launcher.SCRIPT
        monkeypatch.setattr(launcher, "SCRIPT", script)
