"""Images made on the spot: layers from entries or from programs of this machine, as an engine or a registry has them."""

import functools
import gzip
import hashlib
import io
import json
import re
import subprocess
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
import zstandard

from workers.engines.oci.documents import ImageConfig
from workers.engines.oci.images import LayerFile, PulledImage

OCI = "application/vnd.oci.image"
MANIFEST, INDEX, CONFIG = f"{OCI}.manifest.v1+json", f"{OCI}.index.v1+json", f"{OCI}.config.v1+json"
PASSWD = b"root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000:app:/home/app:/bin/sh\n"
GROUP = b"root:x:0:\napp:x:1000:\nextra:x:1001:app\n"


def entry(
    name: str, data: bytes = b"", *, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o755, **more: Any
):
    """Return an entry of a layer."""
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname, info.mode = kind, len(data), link, mode
    for key, value in more.items():
        setattr(info, key, value)
    return info, data


def folder(name: str, mode: int = 0o755):
    return entry(name, kind=tarfile.DIRTYPE, mode=mode)


def symlink(name: str, target: str):
    return entry(name, kind=tarfile.SYMTYPE, link=target)


@dataclass(frozen=True)
class Layer:
    """A layer: its compressed bytes, how they are compressed, and the digest of the decompressed ones."""

    content: bytes
    compression: str
    diff_id: str

    @property
    def media_type(self) -> str:
        return f"{OCI}.layer.v1.tar" + ("" if self.compression == "none" else f"+{self.compression}")


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def compressed(raw: bytes, compression: str = "gzip") -> Layer:
    pack = {"none": bytes, "gzip": lambda data: gzip.compress(data, 1), "zstd": zstandard.compress}
    return Layer(pack[compression](raw), compression, digest_of(raw))


def archive(*entries: Any) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def layer(*entries: Any, compression: str = "gzip") -> Layer:
    return compressed(archive(*entries), compression)


@functools.cache
def base() -> Layer:
    """Return a layer with a shell and a few programs of this machine, their libraries, and two accounts."""
    names = (
        "dash",
        "cat",
        "id",
        "ls",
        "env",
        "sleep",
        "touch",
        "mkdir",
        "rm",
        "head",
        "dd",
        "stat",
        "chmod",
        "true",
        "tr",
    )
    programs = [Path("/bin" if Path("/bin", name).exists() else "/usr/bin", name).resolve() for name in names]
    found = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout
    libraries = {Path(path) for path in re.findall(r"(/\S+) \(0x", found)}
    return layer(
        *[folder(name) for name in ("bin", "etc", "tmp", "home", "srv", "lib", "lib64", "home/app")],
        *[entry(f"bin/{name}", path.read_bytes()) for name, path in zip(names, programs, strict=True)],
        symlink("bin/sh", "dash"),
        *[entry(str(path).lstrip("/"), path.resolve().read_bytes()) for path in sorted(libraries)],
        entry("etc/passwd", PASSWD, mode=0o644),
        entry("etc/group", GROUP, mode=0o644),
        entry("home/app/own", b"mine\n", mode=0o600),
    )


@dataclass
class Image:
    """An image of these layers, with its documents."""

    layers: tuple[Layer, ...]
    config: dict[str, Any] = field(default_factory=dict)
    platform: tuple[str, str] = ("linux", "amd64")
    diff_ids: list[str] | None = None

    def pull(self, place: Path) -> PulledImage:
        """Put the layers into a directory, as a pull does."""
        files = []
        for number, found in enumerate(self.layers):
            (place / f"layer-{number}").write_bytes(found.content)
            diff_id = found.diff_id if self.diff_ids is None else self.diff_ids[number]
            files.append(LayerFile(f"layer-{number}", found.compression, diff_id))
        return PulledImage(ImageConfig(user=self.config.get("User", "")), tuple(files))

    def documents(self) -> tuple[bytes, bytes]:
        """Return the configuration and the manifest."""
        system, processor = self.platform
        diff_ids = [found.diff_id for found in self.layers] if self.diff_ids is None else self.diff_ids
        config = {
            "os": system,
            "architecture": processor,
            "config": self.config,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        }
        encoded = json.dumps(config).encode()
        layers = [descriptor(found.content, found.media_type) for found in self.layers]
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor(encoded, CONFIG),
            "layers": layers,
        }
        return encoded, json.dumps(manifest).encode()


def descriptor(content: bytes, media_type: str, **more: Any) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest_of(content), "size": len(content), **more}


def push(url: str, repository: str, image: Image, *, tag: str, credentials: tuple[str, str]) -> str:
    """Push an image to a registry over HTTP, as a client of Docker does. Returns the digest of its manifest."""
    with requests.Session() as session:
        challenge = session.get(f"{url}/v2/").headers["WWW-Authenticate"]
        realm, service = (re.search(rf'{name}="([^"]*)"', challenge)[1] for name in ("realm", "service"))
        scope = f"repository:{repository}:pull,push"
        answer = session.get(realm, params={"service": service, "scope": scope}, auth=credentials)
        session.headers["Authorization"] = f"Bearer {answer.json()['token']}"
        config, manifest = image.documents()
        for content in {config, *(found.content for found in image.layers)}:
            upload = f"{url}/v2/{repository}/blobs/uploads/?digest={digest_of(content)}"
            answer = session.post(upload, data=content, headers={"Content-Type": "application/octet-stream"})
            assert answer.status_code == 201, answer.text
        answer = session.put(
            f"{url}/v2/{repository}/manifests/{tag}", data=manifest, headers={"Content-Type": MANIFEST}
        )
        assert answer.status_code == 201, answer.text
    return digest_of(manifest)
