"""Debian's skopeo pushes an image under the slug of a project, and pulls it under the UUID."""

import json
import shutil
import subprocess

import pytest

from orchestrator.images.models import ImageTag
from tests.factories import personal_key
from tests.live_server import serving
from tests.orchestrator.images.world import CONFIG_TYPE, LAYER_TYPE, content, descriptor, manifest
from tests.orchestrator.protocols.bencher.runs.world import new_person, new_project

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("skopeo") is None, reason="needs skopeo (Debian package skopeo)"),
]


def layout(folder, *layers):
    """An image in a folder, as the OCI image layout has it. Returns the bytes of its manifest."""
    config = json.dumps({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}}).encode()
    body = manifest(config, *layers)
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for data, media_type in ((config, CONFIG_TYPE), (body, ""), *((layer, LAYER_TYPE) for layer in layers)):
        (blobs / descriptor(data, media_type)["digest"].removeprefix("sha256:")).write_bytes(data)
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    entry = descriptor(
        body, "application/vnd.oci.image.manifest.v1+json", annotations={"org.opencontainers.image.ref.name": "v1"}
    )
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    return body


def skopeo(*arguments, folder):
    policy = folder / "policy.json"
    policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    command = ["skopeo", "--policy", str(policy), "--tmpdir", str(folder), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_push_under_the_slug_and_pull_under_the_uuid(database_url, tmp_path):
    project = new_project("adapter")
    key = personal_key(new_person("mia", project.organization))
    stranger = personal_key(new_person("eve"))
    layers = [content(3 << 20), content(100)]
    body = layout(tmp_path / "image", *layers)
    with serving(tmp_path, DATABASE_URL=database_url, PUBLIC_URL="http://{address}") as server:
        host = f"{server.address[0]}:{server.address[1]}"
        options = ("--preserve-digests", "--dest-tls-verify=false", f"--dest-creds=mia:{key}")
        refused = skopeo(
            "copy",
            "--dest-tls-verify=false",
            f"--dest-creds=eve:{stranger}",
            f"oci:{tmp_path}/image:v1",
            f"docker://{host}/adapter:v1",
            folder=tmp_path,
        )
        assert refused.returncode != 0
        assert ImageTag.objects.count() == 0
        pushed = skopeo("copy", *options, f"oci:{tmp_path}/image:v1", f"docker://{host}/adapter:v1", folder=tmp_path)
        assert pushed.returncode == 0, pushed.stderr
        again = skopeo("copy", *options, f"oci:{tmp_path}/image:v1", f"docker://{host}/adapter:v2", folder=tmp_path)
        assert again.returncode == 0, again.stderr
        pulled = skopeo(
            "copy", "--src-tls-verify=false", f"--src-creds=mia:{key}", f"docker://{host}/{project.uuid}:v1",
            f"dir:{tmp_path}/pulled", folder=tmp_path,
        )  # fmt: skip
        assert pulled.returncode == 0, pulled.stderr
        assert (tmp_path / "pulled" / "manifest.json").read_bytes() == body
        for layer in layers:
            digest = descriptor(layer, "")["digest"].removeprefix("sha256:")
            assert (tmp_path / "pulled" / digest).read_bytes() == layer
        listed = skopeo(
            "list-tags", "--tls-verify=false", f"--creds=mia:{key}", f"docker://{host}/adapter", folder=tmp_path
        )
        assert json.loads(listed.stdout)["Tags"] == ["v1", "v2"]
        deleted = skopeo(
            "delete", "--tls-verify=false", f"--creds=mia:{key}", f"docker://{host}/adapter:v2", folder=tmp_path
        )
        assert deleted.returncode == 0, deleted.stderr
        assert key not in server.log()
        assert "eyJ" not in server.log()
