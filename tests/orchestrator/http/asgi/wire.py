"""Raw HTTP for attacks: what a client sends byte by byte, and what it gets."""

import json
import re
import socket


def request(*lines, method="GET", path="/healthz"):
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n".encode() + b"".join(
        (line if isinstance(line, bytes) else line.encode()) + b"\r\n" for line in lines
    )


def read_response(line):
    """Returns status, headers and body of the next response; a status of 0 where the connection ends before one."""
    data = b""
    while b"\r\n\r\n" not in data:
        try:
            more = line.recv(65536)
        except ConnectionResetError:
            more = b""
        if not more:
            return 0, {}, data
        data += more
    top, _, body = data.partition(b"\r\n\r\n")
    headers = dict(re.findall(r"^([^:\r\n]+): ([^\r\n]*)", top.decode("latin-1").lower(), re.MULTILINE))
    while len(body) < int(headers.get("content-length", "0")):
        body += line.recv(65536)
    return int(top.split()[1]), headers, body


def problem_on(line):
    """Returns status and code of a problem document, whose members are complete."""
    status, headers, body = read_response(line)
    assert headers.get("content-type") == "application/problem+json", (status, headers, body)
    document = json.loads(body)
    assert document["status"] == status
    assert document["request_id"] == headers["x-request-id"]
    return status, document["code"]


def is_closed(line):
    """Reads to the end; says whether there was one within the socket's timeout."""
    try:
        while line.recv(65536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def pour(line, piece, pieces):
    """Sends up to so many pieces; returns how many the other side took before it closed the connection."""
    for sent in range(pieces):
        try:
            line.sendall(piece)
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            return sent
    return pieces


def connect(server, seconds=10.0):
    line = socket.create_connection(server.address, timeout=seconds)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return line
