"""The meaning of calls on sockets: contacts, lookups, and sockets that listen."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from workers.engines.tracing.strace import TracedCall
from workers.engines.tracing.values import Address, address, fields, items, text
from workers.report.events import AttemptEvent, ContactEvent, ListenEvent, LookupEvent
from workers.report.processes import TracedProcess
from workers.report.syscalls.files import argument

MAX_SOCKETS = 4096  # with a known peer: queries are often sent without an address
MAX_MESSAGES = 64  # examined in one sendmmsg
_DNS = 53
_DNS_HEADER = 12
_INTERNET = ("inet", "inet6")
_USUAL = frozenset({"AF_UNIX", "AF_LOCAL", "AF_INET", "AF_INET6", "AF_NETLINK"})

SocketEvent = ContactEvent | LookupEvent | ListenEvent | AttemptEvent


class Sockets:
    """The sockets of a run, identified as strace shows them (`3<socket:[45188]>`): copies are the same socket."""

    def __init__(self) -> None:
        self._peers: OrderedDict[bytes, Address] = OrderedDict()
        self._names: OrderedDict[bytes, Address] = OrderedDict()

    def created(self, call: TracedCall, _process: TracedProcess) -> Iterator[SocketEvent]:
        domain = argument(call, 0).decode("ascii", "replace")
        if domain not in _USUAL:
            yield AttemptEvent("socket", (domain, argument(call, 1).decode("ascii", "replace")), call.errno)

    def connected(self, call: TracedCall, process: TracedProcess) -> Iterator[SocketEvent]:
        peer = address(argument(call, 1))
        if peer is not None and peer.family != "unspec":
            _remember(self._peers, _key(call, process), peer)
            yield _contact(peer, call.errno)

    def bound(self, call: TracedCall, process: TracedProcess) -> Iterator[SocketEvent]:
        name = address(argument(call, 1))
        if name is not None and call.ok:
            _remember(self._names, _key(call, process), name)
        yield from ()

    def listened(self, call: TracedCall, process: TracedProcess) -> Iterator[SocketEvent]:
        name = self._names.get(_key(call, process), Address("inet", "0.0.0.0"))  # noqa: S104  # text of a trace
        if call.ok and name.family in _INTERNET:
            yield ListenEvent(name.host, name.port)

    def sent(self, call: TracedCall, process: TracedProcess) -> Iterator[SocketEvent]:
        """Yield a contact if sendto, sendmsg or sendmmsg names an address, and a lookup if it goes to port 53."""
        known = self._peers.get(_key(call, process))
        for payload, named in _messages(call):
            peer = named or known
            if named is not None and named.family in _INTERNET:
                yield _contact(named, call.errno)
            if peer is not None and peer.family in _INTERNET and peer.port == _DNS and (name := queried_name(payload)):
                yield LookupEvent(name)


def _messages(call: TracedCall) -> Iterator[tuple[bytes, Address | None]]:
    if call.name == "sendto":
        yield text(argument(call, 1)) or b"", address(argument(call, 4))
    elif call.name == "sendmsg":
        yield _message(argument(call, 1))
    else:
        for item in items(argument(call, 1))[:MAX_MESSAGES]:
            yield _message(fields(item).get(b"msg_hdr", b""))


def _message(header: bytes) -> tuple[bytes, Address | None]:
    parts = fields(header)
    vectors = items(parts.get(b"msg_iov", b""))[:MAX_MESSAGES]
    payload = b"".join(text(fields(vector).get(b"iov_base", b"")) or b"" for vector in vectors)
    return payload, address(parts.get(b"msg_name", b""))


def _contact(peer: Address, errno: str | None) -> ContactEvent:
    family = peer.family if peer.family in (*_INTERNET, "unix") else "other"
    return ContactEvent(family, peer.host or peer.family, peer.port, errno)


def _key(call: TracedCall, process: TracedProcess) -> bytes:
    shown = argument(call, 0)
    return shown.partition(b"<")[2] or b"%d/%s" % (process.leader.pid, shown)


def _remember(table: OrderedDict[bytes, Address], key: bytes, value: Address) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > MAX_SOCKETS:
        table.popitem(last=False)


def queried_name(message: bytes) -> str | None:
    """Return the first name of a DNS query (over TCP the length may come first), in lower case, or None.

    Bytes that a host name cannot have become U+FFFD: names are also a way to send data out.
    """
    return _query_name(message) or _query_name(message[2:])


def _query_name(message: bytes) -> str | None:
    if len(message) < _DNS_HEADER + 5 or message[2] & 0x80 or message[4:6] != b"\0\1":  # an answer, or not one question
        return None
    labels: list[str] = []
    position = _DNS_HEADER
    while position < len(message) and (length := message[position]):
        if length > 63 or len(labels) > 127:
            return None
        labels.append(_dns_label(message[position + 1 : position + 1 + length]))
        position += 1 + length
    return ".".join(labels) if position < len(message) and labels else None


def _dns_label(part: bytes) -> str:
    return "".join(chr(byte) if 0x20 < byte < 0x7F and byte != 0x2E else "\ufffd" for byte in part).lower()
