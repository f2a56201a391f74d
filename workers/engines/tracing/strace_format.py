"""Formats the calls that the worker answered as strace does, so that one parser reads all lines."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
import time
from pathlib import Path

from workers.engines.tracing.seccomp_notify import SyscallRequest, SyscallResponse

_FAMILIES = {
    1: "AF_UNIX", 2: "AF_INET", 10: "AF_INET6", 16: "AF_NETLINK", 17: "AF_PACKET", 31: "AF_BLUETOOTH", 38: "AF_ALG",
    40: "AF_VSOCK",
}  # fmt: skip
_TYPES = {1: "SOCK_STREAM", 2: "SOCK_DGRAM", 3: "SOCK_RAW", 5: "SOCK_SEQPACKET"}
_PATH_ARGUMENTS = {
    "mount": (0, 1, 2), "umount2": (0,), "pivot_root": (0, 1), "chroot": (0,), "open_tree": (1,), "acct": (0,),
    "swapon": (0,), "swapoff": (0,), "name_to_handle_at": (1,), "mq_open": (0,), "mq_unlink": (0,),
}  # fmt: skip
_LONGEST_STRING, _MOST_WORDS = 1024, 32


def format_denied_call(request: SyscallRequest, response: SyscallResponse) -> bytes:
    """Return the line of the trace for a call and its answer."""
    head = f"{request.pid:<5} {time.time():.6f} {request.call}"
    return f"{head}({_arguments(request)}) = {_result(response)}".encode("latin-1")


def _result(response: SyscallResponse) -> str:
    if not response.error:
        return str(response.value)
    return f"-1 {errno.errorcode.get(response.error, response.error)} ({os.strerror(response.error)})"


def _arguments(request: SyscallRequest) -> str:
    values = request.arguments
    if request.call == "execve":
        return f"{_string(request, values[0])}, {_words(request, values[1])}, {values[2]:#x}"
    if request.call == "execveat":
        path, words = _string(request, values[1]), _words(request, values[2])
        return f"{_descriptor(request, 0)}, {path}, {words}, {values[3]:#x}, {values[4]:#x}"
    if request.call == "socket":
        return _socket(request)
    if request.call == "socketpair":
        return f"{_socket(request)}, {values[3]:#x}"
    if request.call in ("connect", "bind"):
        return f"{_descriptor(request, 0)}, {_address(request)}, {request.word(2)}"
    paths = _PATH_ARGUMENTS.get(request.call, ())
    return ", ".join(_string(request, value) if index in paths else f"{value:#x}" for index, value in enumerate(values))


def escaped(data: bytes) -> str:
    """Quote bytes; all but plain ASCII text become octal escapes, so that no line can be forged."""
    plain = {0x22: '\\"', 0x5C: "\\\\", 0x0A: "\\n", 0x09: "\\t", 0x0D: "\\r"}
    return '"' + "".join(plain.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}") for byte in data) + '"'


def _string(request: SyscallRequest, address: int) -> str:
    if not address:
        return "NULL"
    data = request.text(address)
    return escaped(data[:_LONGEST_STRING]) + ("..." if len(data) > _LONGEST_STRING else "")


def _words(request: SyscallRequest, address: int) -> str:
    if not address:
        return "NULL"
    found: list[str] = []
    table = request.memory(address, 8 * (_MOST_WORDS + 1))
    for (pointer,) in struct.iter_unpack("=Q", table[: len(table) // 8 * 8]):
        if not pointer:
            break
        found.append("..." if len(found) == _MOST_WORDS else _string(request, pointer))
    return "[" + ", ".join(found) + "]"


def _descriptor(request: SyscallRequest, index: int) -> str:
    number = request.word(index)
    if number == -100:
        return "AT_FDCWD"
    try:
        target = Path(f"/proc/{request.pid}/fd/{number}").readlink()
    except OSError:
        return str(number)
    shown = escaped(os.fsencode(target))[1:-1].replace("<", "\\74").replace(">", "\\76")
    return f"{number}<{shown}>"


def _socket(request: SyscallRequest) -> str:
    return f"{_family(request.word(0))}, {_socket_type(request.word(1))}, {request.word(2)}"


def _family(number: int) -> str:
    return _FAMILIES.get(number, f"{number:#x} /* AF_??? */")


def _socket_type(number: int) -> str:
    flags = [
        name
        for name, bit in (("SOCK_CLOEXEC", socket.SOCK_CLOEXEC), ("SOCK_NONBLOCK", socket.SOCK_NONBLOCK))
        if number & bit
    ]
    return "|".join([_TYPES.get(number & 0xF, f"{number & 0xF:#x} /* SOCK_??? */"), *flags])


def _address(request: SyscallRequest) -> str:
    raw = request.memory(request.arguments[1], min(request.arguments[2] & 0xFFFFFFFF, 128))
    if len(raw) < 2:
        return f"{request.arguments[1]:#x}"
    family = struct.unpack_from("=H", raw)[0]
    if family == socket.AF_INET and len(raw) >= 8:
        port, address = struct.unpack_from("!H4s", raw, 2)
        return f'{{sa_family=AF_INET, sin_port=htons({port}), sin_addr=inet_addr("{ipaddress.IPv4Address(address)}")}}'
    if family == socket.AF_INET6 and len(raw) >= 24:
        port, flow, address = struct.unpack_from("!HI16s", raw, 2)
        shown = f'inet_pton(AF_INET6, "{ipaddress.IPv6Address(address)}", &sin6_addr), sin6_scope_id=0'
        return f"{{sa_family=AF_INET6, sin6_port=htons({port}), sin6_flowinfo=htonl({flow}), {shown}}}"
    if family == socket.AF_UNIX:
        path = "@" + escaped(raw[3:]) if raw[2:3] == b"\0" else escaped(raw[2:].split(b"\0", 1)[0])
        return f"{{sa_family=AF_UNIX, sun_path={path}}}"
    return f"{{sa_family={_family(family)}, sa_data={escaped(raw[2:])}}}"


def destination(request: SyscallRequest) -> tuple[int, int, str] | None:
    """Return family, port and address that a connect names, as the record shows it."""
    raw = request.memory(request.arguments[1], min(request.arguments[2] & 0xFFFFFFFF, 28))
    if len(raw) >= 8 and struct.unpack_from("=H", raw)[0] == socket.AF_INET:
        port, address = struct.unpack_from("!H4s", raw, 2)
        return socket.AF_INET, port, str(ipaddress.IPv4Address(address))
    if len(raw) >= 24 and struct.unpack_from("=H", raw)[0] == socket.AF_INET6:
        port, _flow, six = struct.unpack_from("!HI16s", raw, 2)
        return socket.AF_INET6, port, str(ipaddress.IPv6Address(six))
    return None
