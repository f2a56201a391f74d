"""The seccomp filters of a job, as bytes: the system calls that are killed, refused, or answered by the worker.

The lists of system calls are `CALLS` and the tables below it. Every refused call that matters for the report goes to
the worker (`tracing/seccomp_notify.py`), because strace does not see a call that a filter has already refused. The
worker only ever refuses; if it is gone, the kernel answers ENOSYS.
"""

from __future__ import annotations

import errno
import functools
import socket
import struct
import termios
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ARCHITECTURE = "x86_64"
_AUDIT_ARCH_X86_64 = 0xC000003E
_X32_NUMBERS = 0x40000000
_FIRST_UNKNOWN = 463  # newer calls are refused until their effects are known

KILL = 0x80000000
ERRNO = 0x00050000
ASK_WORKER = 0x7FC00000
ALLOW = 0x7FFF0000
PRETEND_SUCCESS = ERRNO  # errno 0: the call returns 0 and does nothing

CALLS = {
    "ioctl": 16, "socket": 41, "connect": 42, "bind": 49, "socketpair": 53, "setsockopt": 54, "clone": 56, "execve": 59,
    "execveat": 322, "clone3": 435, "sendto": 44, "sendmsg": 46, "sendmmsg": 307,
    "prctl": 157,
    # reach into other processes
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "pidfd_getfd": 438,
    "process_madvise": 440,
    # set how other processes run
    "prlimit64": 302, "sched_setaffinity": 203, "sched_setscheduler": 144, "sched_setparam": 142, "sched_setattr": 314,
    "setpriority": 141, "ioprio_set": 251,
    # change what is mounted, or leave the namespaces
    "mount": 165, "umount2": 166, "pivot_root": 155, "open_tree": 428, "move_mount": 429, "fsopen": 430,
    "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442, "unshare": 272, "setns": 308, "chroot": 161,
    "statmount": 457, "listmount": 458,  # the table of mounts by other means
    # access files and network without the tracer, or interrupt the kernel
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "userfaultfd": 323,
    "open_by_handle_at": 304, "name_to_handle_at": 303, "fanotify_init": 300,
    "memfd_secret": 447,  # strace cannot read arguments that lie in such memory; the kernel can
    # the kernel itself
    "bpf": 321, "perf_event_open": 298, "kexec_load": 246, "kexec_file_load": 320, "init_module": 175,
    "finit_module": 313, "delete_module": 176, "reboot": 169, "swapon": 167, "swapoff": 168, "acct": 163,
    "syslog": 103, "quotactl": 179, "quotactl_fd": 443, "lookup_dcookie": 212, "iopl": 172, "ioperm": 173,
    "modify_ldt": 154, "vhangup": 153,
    "keyctl": 250, "add_key": 248, "request_key": 249,
    "settimeofday": 164, "clock_settime": 227, "clock_adjtime": 305, "adjtimex": 159,
    "move_pages": 279, "mbind": 237, "set_mempolicy": 238, "migrate_pages": 256, "set_mempolicy_home_node": 450,
    # objects that outlive their processes and are visible to all
    "shmget": 29, "shmat": 30, "shmctl": 31, "semget": 64, "semop": 65, "semctl": 66, "semtimedop": 220,
    "msgget": 68, "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "mq_open": 240, "mq_unlink": 241,
}  # fmt: skip

# The index of the argument that is the process. The argument before it says whether the target is one process.
CONTROLS = {
    "prlimit64": 0, "sched_setaffinity": 0, "sched_setscheduler": 0, "sched_setparam": 0, "sched_setattr": 0,
    "setpriority": 1, "ioprio_set": 1,
}  # fmt: skip
ONE_PROCESS = {"setpriority": 0, "ioprio_set": 1}  # PRIO_PROCESS, IOPRIO_WHO_PROCESS: no group, no user
_DENIED_IN_PART = {
    "ioctl", "socket", "connect", "bind", "socketpair", "setsockopt", "clone", "execve", "execveat", "clone3",
    "sendto", "sendmsg", "sendmmsg", "prctl", *CONTROLS,
}  # fmt: skip
SHARED_OBJECTS = tuple(name for name in CALLS if name.startswith(("shm", "sem", "msg", "mq_")))
DENIED = tuple(name for name in CALLS if name not in {*_DENIED_IN_PART, *SHARED_OBJECTS})

NEW_NAMESPACES = 0x7E020000
CLONE_UNTRACED = 0x00800000  # would be invisible to strace -f
AT_EMPTY_PATH = 0x1000
AF_NETLINK = 16
FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, AF_NETLINK)
# Every other protocol (SCTP, DCCP, MPTCP, SMC, L2TP) loads a kernel module on request: rarely used code with a history
# of vulnerabilities. Of netlink, resolvers and runtimes use routing.
PROTOCOLS = (0, socket.IPPROTO_TCP, socket.IPPROTO_UDP, socket.IPPROTO_ICMP, socket.IPPROTO_ICMPV6)
NETLINK_ROUTE = 0
PR_SET_DUMPABLE = 4
TCP_ULP = 31  # puts TLS into the kernel

_TYPE = 0xF  # socket types without SOCK_CLOEXEC and SOCK_NONBLOCK
_INTERNET_TYPES = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW)
_SEND_FLAGS = {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}  # the argument that holds them

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _MASK, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16


@dataclass(frozen=True)
class ArgumentTest:
    """A condition on the low 32 bits of one argument: the kernel reads no more of the arguments tested here."""

    argument: int
    kind: str  # any_bit, among, not_among
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF


@dataclass(frozen=True)
class SeccompRule:
    """The action for one call if all tests on its arguments hold."""

    call: str
    action: int
    tests: tuple[ArgumentTest, ...] = ()


Instruction = tuple[
    int, int | str, int | str, int
]  # code, jump if true, jump if false, operand; "miss": the rule's end


def _test(test: ArgumentTest) -> list[Instruction]:
    code: list[Instruction] = [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * test.argument)]
    if test.mask != 0xFFFFFFFF:
        code.append((_MASK, 0, 0, test.mask))
    last = len(test.values) - 1
    for index, value in enumerate(test.values):
        if test.kind == "any_bit":
            code.append((_ANY_BIT, 0, "miss", value))
        elif test.kind == "not_among":
            code.append((_EQUAL, "miss", 0, value))
        else:
            code.append((_EQUAL, last - index, "miss" if index == last else 0, value))
    return code


def _rule(rule: SeccompRule) -> list[Instruction]:
    """Return the action if the number and all tests match; else continue with the number loaded again."""
    body = [step for test in rule.tests for step in _test(test)]
    code: list[Instruction] = [(_EQUAL, 0, "miss", CALLS[rule.call]), *body, (_RETURN, 0, 0, rule.action)]
    end = len(code)
    code.append((_LOAD, 0, 0, _NUMBER_AT))

    def jump(target: int | str, index: int) -> int:
        return end - index - 1 if target == "miss" else int(target)

    return [(op, jump(yes, index), jump(no, index), operand) for index, (op, yes, no, operand) in enumerate(code)]


def program(rules: Iterable[SeccompRule]) -> bytes:
    """Build a filter: the first matching rule decides. Numbers of other architectures kill the process (SIGSYS)."""
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_EQUAL, 1, 0, _AUDIT_ARCH_X86_64),
        (_RETURN, 0, 0, KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _X32_NUMBERS),
        (_RETURN, 0, 0, KILL),
        (_AT_LEAST, 0, 1, _FIRST_UNKNOWN),
        (_RETURN, 0, 0, ERRNO | errno.ENOSYS),
    ]
    for rule in rules:
        code += _rule(rule)
    code.append((_RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("HBBI", *step) for step in code)


# All calls of pid 1 once it has this filter: close its descriptors, wait for children, exit. The kernel itself uses the
# last two.
INIT_CALLS = {"wait4": 61, "close_range": 436, "exit_group": 231, "rt_sigreturn": 15, "restart_syscall": 219}


@functools.cache
def init_program() -> bytes:
    """Build the filter of a sandbox's pid 1: any call that is not in `INIT_CALLS` kills it, and so the namespace.

    It is an allow-list and no copy of the job's filter: a job that took over pid 1 could do nothing with it.
    """
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_EQUAL, 1, 0, _AUDIT_ARCH_X86_64),
        (_RETURN, 0, 0, KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    for number in INIT_CALLS.values():
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, ALLOW)]
    code.append((_RETURN, 0, 0, KILL))
    return b"".join(struct.pack("HBBI", *step) for step in code)


# The kernel makes both sockets of a pair, and loads the module of their family or protocol, before it finds that the
# family has no pairs.
_OTHER_PAIRS = SeccompRule("socketpair", ASK_WORKER, (ArgumentTest(0, "not_among", (socket.AF_UNIX,)),))


def common_rules() -> list[SeccompRule]:
    """Build the rules for every job, in every engine."""
    ask = ASK_WORKER  # refused by the worker, and recorded
    internet = ArgumentTest(0, "among", (socket.AF_INET, socket.AF_INET6))
    ulp = ArgumentTest(2, "among", (TCP_ULP,))
    return [
        # glibc falls back to clone, whose flags a filter can read.
        SeccompRule("clone3", ERRNO | errno.ENOSYS),
        SeccompRule("clone", ask, (ArgumentTest(0, "any_bit", (NEW_NAMESPACES | CLONE_UNTRACED,)),)),
        # Only 32 bits are compared: the kernel ignores the rest, which an attacker may set.
        SeccompRule("ioctl", ask, (ArgumentTest(1, "among", (termios.TIOCSTI, termios.TIOCLINUX)),)),
        SeccompRule("socket", ask, (ArgumentTest(0, "not_among", FAMILIES),)),
        SeccompRule(
            "socket", ask, (ArgumentTest(0, "among", (AF_NETLINK,)), ArgumentTest(2, "not_among", (NETLINK_ROUTE,)))
        ),
        SeccompRule("socket", ask, (internet, ArgumentTest(1, "not_among", _INTERNET_TYPES, _TYPE))),
        SeccompRule("socket", ask, (internet, ArgumentTest(2, "not_among", PROTOCOLS))),
        _OTHER_PAIRS,
        SeccompRule("setsockopt", ERRNO | errno.ENOPROTOOPT, (ArgumentTest(1, "among", (socket.IPPROTO_TCP,)), ulp)),
        # The tracer cannot read a process that is not dumpable: names would be missing in the trace.
        SeccompRule("prctl", ask, (ArgumentTest(0, "among", (PR_SET_DUMPABLE,)),)),
        # Urgent data is not needed, and on unix sockets it allowed kernel code execution (CVE-2025-38236).
        *(
            SeccompRule(name, ask, (ArgumentTest(place, "any_bit", (socket.MSG_OOB,)),))
            for name, place in _SEND_FLAGS.items()
        ),
        *(SeccompRule(name, ask) for name in DENIED),
    ]


def one_program_rules(program_fd: int) -> list[SeccompRule]:
    """Build the rules for a job that may start one program.

    Only `execveat(program_fd, "", ..., AT_EMPTY_PATH)` is allowed. The call closes the descriptor, and its number is
    beyond RLIMIT_NOFILE, so that no process can have it a second time.
    """
    itself = (ArgumentTest(0, "among", (program_fd,)), ArgumentTest(4, "any_bit", (AT_EMPTY_PATH,)))
    return [
        SeccompRule("execve", ASK_WORKER),
        SeccompRule("execveat", ALLOW, itself),
        SeccompRule("execveat", ASK_WORKER),
    ]


def no_shared_objects_rules() -> list[SeccompRule]:
    """Build the rules for jobs without an IPC namespace: the machine shares System V objects and POSIX queues."""
    return [SeccompRule(name, ASK_WORKER) for name in SHARED_OBJECTS]


def init_control_rules() -> list[SeccompRule]:
    """Build the rules for jobs in a pid namespace: the only foreign process there is pid 1."""
    return [SeccompRule(name, ASK_WORKER, (ArgumentTest(place, "among", (1,)),)) for name, place in CONTROLS.items()]


def process_control_rules() -> list[SeccompRule]:
    """Build the rules for jobs without a pid namespace: the worker answers for each process that is named.

    The kernel compares uids only. Where the worker is an ordinary user, a job could end it with a limit of zero
    seconds.
    """
    return [
        *(
            SeccompRule(name, ASK_WORKER, (ArgumentTest(0, "not_among", (value,)),))
            for name, value in ONE_PROCESS.items()
        ),
        *(SeccompRule(name, ASK_WORKER, (ArgumentTest(place, "not_among", (0,)),)) for name, place in CONTROLS.items()),
    ]


_CONNECTED_TYPES = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)
_PROTOCOL_LEVELS: Sequence[int] = (socket.IPPROTO_IP, socket.IPPROTO_IPV6, socket.IPPROTO_TCP, socket.IPPROTO_UDP)


def no_network_rules() -> list[SeccompRule]:
    """Build the rules for jobs without a network namespace: no socket but connected unix ones.

    The worker returns a fake socket for the others and answers every connect. Unix datagram sockets are refused because
    each message may name another receiver, outside the sandbox too.
    """
    return [
        SeccompRule(
            "socket",
            ALLOW,
            (ArgumentTest(0, "among", (socket.AF_UNIX,)), ArgumentTest(1, "among", _CONNECTED_TYPES, _TYPE)),
        ),
        SeccompRule("socket", ASK_WORKER),
        _OTHER_PAIRS,
        SeccompRule("socketpair", ERRNO | errno.EACCES, (ArgumentTest(1, "not_among", _CONNECTED_TYPES, _TYPE),)),
        SeccompRule("connect", ASK_WORKER),
        SeccompRule("bind", ASK_WORKER),  # a name in the abstract namespace would be the machine's
        # The resolver sets IP options before its query: on a fake socket they would fail, and no name be recorded.
        SeccompRule("setsockopt", PRETEND_SUCCESS, (ArgumentTest(1, "among", tuple(_PROTOCOL_LEVELS)),)),
    ]
