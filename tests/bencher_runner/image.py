"""An image with one static program, made without a compiler and without docker, and its push to a registry.

The runner starts the program of a job without sandbox directly on the host, so it must not need any library.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import struct
import tarfile
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin

import requests
from requests.utils import parse_dict_header

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
PROGRAM = "bench"
OUTPUT_FILE = "results.json"  # which the program writes into its working directory
STDOUT = {"bench": {"latency": {"value": 7.5}}}
FILE = {"bench": {"throughput": {"value": 42}}}
ARCHITECTURES = {"x86_64": "amd64"}  # of the program below: the name of the machine, and that of an image
SECONDS = 30

_BASE = 0x400000
_ELF_HEADER, _PROGRAM_HEADER = 64, 56


def supports_machine() -> bool:
    """Return whether this machine can execute the program."""
    return platform.machine() in ARCHITECTURES


def program(stdout: bytes, file: bytes) -> bytes:
    """Return a Linux program for x86-64: `bench SECONDS EXIT_CODE`.

    It sleeps, writes `file` to OUTPUT_FILE and `stdout` to its standard output, and ends with the exit code.
    """
    path = OUTPUT_FILE.encode() + b"\0"
    code: list[tuple[str, str | None]] = [
        ("48 89 e3", None),  # mov rbx, rsp: argc, argv[0], argv[1], …
        ("48 8b 73 10", None),  # mov rsi, [rbx+16]: argv[1]
        ("e8", "number"),  # call number
        ("6a 00", None),  # push 0: nanoseconds
        ("50", None),  # push rax: seconds
        ("48 89 e7", None),  # mov rdi, rsp
        ("31 f6", None),  # xor esi, esi
        ("6a 23 58 0f 05", None),  # nanosleep(rdi, 0)
        ("48 8d 3d", "path"),  # lea rdi, [path]
        ("be 41 02 00 00", None),  # mov esi, O_WRONLY | O_CREAT | O_TRUNC
        ("ba a4 01 00 00", None),  # mov edx, 0644
        ("6a 02 58 0f 05", None),  # open(rdi, esi, edx)
        ("89 c7", None),  # mov edi, eax
        ("48 8d 35", "file"),  # lea rsi, [file]
        ("ba " + struct.pack("<I", len(file)).hex(), None),  # mov edx, length
        ("6a 01 58 0f 05", None),  # write(edi, rsi, edx)
        ("6a 01 5f", None),  # edi = 1
        ("48 8d 35", "stdout"),  # lea rsi, [stdout]
        ("ba " + struct.pack("<I", len(stdout)).hex(), None),  # mov edx, length
        ("6a 01 58 0f 05", None),  # write(1, rsi, edx)
        ("48 8b 73 18", None),  # mov rsi, [rbx+24]: argv[2]
        ("e8", "number"),  # call number
        ("89 c7", None),  # mov edi, eax
        ("6a 3c 58 0f 05", None),  # exit(edi)
    ]
    number = bytes.fromhex(
        "31 c0"  # xor eax, eax
        "0f b6 16"  # next: movzx edx, byte [rsi]
        "84 d2"  # test dl, dl
        "74 0c"  # jz done
        "6b c0 0a"  # imul eax, eax, 10
        "8d 44 10 d0"  # lea eax, [rax+rdx-48]
        "48 ff c6"  # inc rsi
        "eb ed"  # jmp next
        "c3"  # done: ret
    )
    parts = {"number": number, "path": path, "file": file, "stdout": stdout}
    return _elf(_link(code, parts))


def _link(code: list[tuple[str, str | None]], parts: dict[str, bytes]) -> bytes:
    """Return the instructions and the parts behind them. A name is a relative address of 32 bits."""
    size = sum(len(bytes.fromhex(text)) + (4 if name else 0) for text, name in code)
    places, end = {}, size
    for name, content in parts.items():
        places[name] = end
        end += len(content)
    linked = b""
    for text, target in code:
        linked += bytes.fromhex(text)
        if target:
            linked += struct.pack("<i", places[target] - len(linked) - 4)
    return linked + b"".join(parts.values())


def _elf(code: bytes) -> bytes:
    """Return an executable with one segment that contains everything."""
    start = _ELF_HEADER + _PROGRAM_HEADER
    size = start + len(code)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)  # 64 bits, little endian
    header = struct.pack(
        "<HHIQQQIHHHHHH", 2, 62, 1, _BASE + start, _ELF_HEADER, 0, 0, _ELF_HEADER, _PROGRAM_HEADER, 1, 0, 0, 0
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000)  # readable and executable
    return ident + header + segment + code


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass(frozen=True)
class Image:
    """An image: its manifest, and the blobs that the manifest names."""

    manifest: bytes
    blobs: tuple[bytes, ...]

    @property
    def digest(self) -> str:
        return digest(self.manifest)


def build_image() -> Image:
    """Return the image of the program, equal at each call."""
    binary = program(_json(STDOUT), _json(FILE))
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as files:
        entry = tarfile.TarInfo(PROGRAM)
        entry.size, entry.mode = len(binary), 0o755
        files.addfile(entry, io.BytesIO(binary))
    layer = gzip.compress(archive.getvalue(), mtime=0)
    config = _json(
        {
            "architecture": ARCHITECTURES.get(platform.machine(), "amd64"),
            "os": "linux",
            "config": {"Entrypoint": [f"/{PROGRAM}"], "Cmd": ["0", "0"]},
            "rootfs": {"type": "layers", "diff_ids": [digest(archive.getvalue())]},
        }
    )
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": _descriptor(CONFIG, config),
        "layers": [_descriptor(LAYER, layer)],
    }
    return Image(_json(manifest), (config, layer))


def _descriptor(media_type: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest(content), "size": len(content)}


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def push_image(image: Image, *, registry: str, repository: str, tag: str, user: str, key: str) -> None:
    """Push an image as docker does: token, blobs, manifest.

    Args:
        image: The image.
        registry: The URL of the registry, without `/v2/`.
        repository: The repository.
        tag: The tag.
        user: The name of the person.
        key: The password: a key that may push to the repository.
    """
    with requests.Session() as session:
        session.trust_env = False  # a proxy of this machine is for other machines
        session.headers["Authorization"] = f"Bearer {_token(session, registry, repository, user, key)}"
        base = f"{registry}/v2/{repository}"
        for blob in image.blobs:
            begun = session.post(f"{base}/blobs/uploads/", timeout=SECONDS)
            require(begun, 202)
            place = urljoin(begun.url, begun.headers["Location"])
            headers = {"Content-Type": "application/octet-stream"}
            stored = session.put(place, params={"digest": digest(blob)}, data=blob, headers=headers, timeout=SECONDS)
            require(stored, 201)
        headers = {"Content-Type": MANIFEST}
        require(session.put(f"{base}/manifests/{tag}", data=image.manifest, headers=headers, timeout=SECONDS), 201)


def _token(session: requests.Session, registry: str, repository: str, user: str, key: str) -> str:
    asked = session.get(f"{registry}/v2/", timeout=SECONDS)
    require(asked, 401)
    scheme, _, parameters = asked.headers["WWW-Authenticate"].partition(" ")
    assert scheme == "Bearer", f"{asked.url}: the challenge is of scheme {scheme}"
    challenge = parse_dict_header(parameters)
    query = {"service": challenge["service"], "scope": f"repository:{repository}:pull,push"}
    answer = session.get(challenge["realm"], params=query, auth=(user, key), timeout=SECONDS)
    require(answer, 200)
    body = answer.json()
    return str(body.get("token") or body["access_token"])


def require(answer: requests.Response, status: int) -> None:
    """Raise an AssertionError that names the request, unless the response has the status."""
    request = f"{answer.request.method} {answer.url}"
    assert answer.status_code == status, f"{request}: {answer.status_code} {answer.text[:500]}"
