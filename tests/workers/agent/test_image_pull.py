"""Pulls images from a registry that may send anything."""

import json
from types import SimpleNamespace

import pytest

from tests.workers.agent.scripted import Answer, hang, problem
from tests.workers.images import INDEX, MANIFEST, OCI, Image, descriptor, digest_of, entry, layer
from workers.agent import image_pull
from workers.agent.http.transport import Transport
from workers.agent.image_pull import ImagePull
from workers.agent.outcomes import JobFailed, JobReleased, JobStopped
from workers.engines.contract import StopSignal

TOKEN = "eyJ-the-pull-token"
LAYERS = (layer(entry("a", b"a" * 5000)), layer(entry("b", b"b"), compression="zstd"))
IMAGE = Image(LAYERS, {"Cmd": ["/a"], "Env": ["A=b=c"], "User": "app", "WorkingDir": "/w"})
PLATFORM = {"os": "linux", "architecture": "amd64"}


@pytest.fixture
def registry(server, monkeypatch):
    monkeypatch.setattr(image_pull, "ATTEMPT_SECONDS", 1.0)

    def put(content, media_type="application/octet-stream", *, digest=None):
        digest = digest or digest_of(content)
        server.on(digest, Answer(200, content, {"Content-Type": media_type}))
        return digest

    def put_image(image=IMAGE, change=lambda document: None):
        config, manifest = image.documents()
        document = json.loads(manifest)
        change(document)
        for content in (config, *(found.content for found in image.layers)):
            put(content)
        encoded = json.dumps(document).encode()
        put(encoded, document.get("mediaType", MANIFEST))
        return encoded

    return SimpleNamespace(server=server, put=put, put_image=put_image)


def pull(registry, digest, folder, *, max_bytes=1 << 20, stop=None, shortage=lambda: None):
    folder.mkdir()
    transport = Transport(registry.server.url, lambda: "another-token")
    try:
        stop = stop or StopSignal()
        pulled = ImagePull(transport, repository="project", token=TOKEN, stop=stop, shortage=shortage)
        return pulled.pull(digest, folder, max_bytes)
    finally:
        transport.close()


def test_an_image_is_pulled_by_its_digest(registry, tmp_path):
    manifest = registry.put_image()
    image = pull(registry, digest_of(manifest), tmp_path / "blobs")
    assert [(tmp_path / "blobs" / file.name).read_bytes() for file in image.layers] == [
        found.content for found in LAYERS
    ]
    assert [(file.compression, file.diff_id) for file in image.layers] == [
        ("gzip", LAYERS[0].diff_id),
        ("zstd", LAYERS[1].diff_id),
    ]
    assert (image.config.cmd, image.config.user, image.config.working_directory) == (("/a",), "app", "/w")
    assert image.config.environment == (("A", "b=c"),)
    assert {asked.headers["Authorization"] for asked in registry.server.asked} == {f"Bearer {TOKEN}"}
    assert {asked.path.rsplit("/", 2)[0] for asked in registry.server.asked} == {"/v2/project"}


def test_the_entry_of_this_platform_is_taken_from_an_index(registry, tmp_path):
    manifest = registry.put_image()
    attestation = descriptor(b"{}", MANIFEST, annotations={"vnd.docker.reference.type": "attestation-manifest"})
    other = descriptor(b"{}", MANIFEST, platform={"os": "linux", "architecture": "arm64"})
    entries = [attestation, other, descriptor(manifest, MANIFEST, platform=PLATFORM)]
    for depth in range(4):
        index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).encode()
        registry.put(index, INDEX)
        if depth < 2:
            assert len(pull(registry, digest_of(index), tmp_path / str(depth)).layers) == 2
        else:
            with pytest.raises(JobFailed, match="more than 2 indexes"):
                pull(registry, digest_of(index), tmp_path / str(depth))
        entries = [descriptor(index, INDEX)]


def foreign(document):
    document["layers"][0]["mediaType"] = f"{OCI}.layer.nondistributable.v1.tar+gzip"


def of_schema_1(document):
    document.clear()
    document |= {"schemaVersion": 1, "fsLayers": []}


INVALID = {
    "of another platform": (Image(LAYERS, platform=("linux", "arm64")), lambda _: None, "is for 'linux/arm64'"),
    "schema 1": (IMAGE, of_schema_1, "schema 1"),
    "a layer from elsewhere": (IMAGE, foreign, "may not be distributed"),
    "an unknown layer": (IMAGE, lambda found: found["layers"][0].update(mediaType="x\n"), "unknown type 'x\\\\n'"),
    "an artifact": (IMAGE, lambda found: found["config"].update(mediaType="x"), "is no image"),
    "another document": (IMAGE, lambda found: found.update(mediaType="x"), "is no image"),
    "128 layers": (IMAGE, lambda found: found.update(layers=found["layers"][:1] * 128), "has 128 layers"),
    "no layers": (IMAGE, lambda found: found.pop("layers"), "invalid: layers"),
    "a bad digest": (IMAGE, lambda found: found["layers"][0].update(digest="sha256:x"), "no digest"),
    "a negative size": (IMAGE, lambda found: found["layers"][0].update(size=-1), "lacks its type or size"),
    "too large": (IMAGE, lambda found: found["layers"][0].update(size=1 << 30), "at most 1,048,576 are allowed"),
    "a huge configuration": (IMAGE, lambda found: found["config"].update(size=5 << 20), "configuration has more"),
    "too few diff ids": (Image(LAYERS, diff_ids=[LAYERS[0].diff_id]), lambda _: None, "invalid: diff_ids"),
    "NUL in the command": (Image(LAYERS, {"Cmd": ["a\0b"]}), lambda _: None, "invalid: Cmd"),
    "another kind of member": (Image(LAYERS, {"Env": "A=b"}), lambda _: None, "invalid: Env"),
}


def test_images_that_are_not_run_are_refused_before_a_layer_arrives(registry, tmp_path):
    for number, (name, (image, change, words)) in enumerate(INVALID.items()):
        manifest = registry.put_image(image, change)
        with pytest.raises(JobFailed, match=words) as failure:
            pull(registry, digest_of(manifest), tmp_path / str(number))
        assert failure.value.reason == "image_invalid", name
        assert list((tmp_path / str(number)).iterdir()) == [], name
    for number, body in enumerate((b"[]", b"{", b'{"schemaVersion": 2, "manifests": {}}', b"[" * 100_000)):
        registry.put(body, INDEX)
        with pytest.raises(JobFailed) as failure:
            pull(registry, digest_of(body), tmp_path / f"index-{number}")
        assert failure.value.reason == "image_invalid", body[:40]


def test_content_that_is_not_the_announced_one_is_refused(registry, tmp_path):
    manifest = registry.put_image()
    content = LAYERS[0].content
    other = bytes([content[0] ^ 1]) + content[1:]
    wrong = {"another digest": other, "more than": content + b"x", "ended after": content[:-1]}
    for number, (words, sent) in enumerate(wrong.items()):
        registry.put(sent, digest=digest_of(content))
        with pytest.raises(JobFailed, match=words) as failure:
            pull(registry, digest_of(manifest), tmp_path / str(number))
        assert failure.value.reason == "image_pull_failed"
    registry.put(manifest + b" ", MANIFEST, digest=digest_of(manifest))
    with pytest.raises(JobFailed, match="another digest"):
        pull(registry, digest_of(manifest), tmp_path / "manifest")
    huge = b" " * (5 << 20)
    registry.put(huge, MANIFEST)
    with pytest.raises(JobFailed, match="more than 4,194,304 bytes"):
        pull(registry, digest_of(huge), tmp_path / "huge")


def test_a_refusal_is_told_in_the_words_of_the_registry(registry, tmp_path):
    digest = "sha256:" + "0" * 64
    unknown = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": f"unknown\nfor {TOKEN} and rto_worker_x"}]}
    answers = {
        "refused the image with 404: MANIFEST_UNKNOWN, unknown for … and rto_…$": Answer(404, unknown),
        "refused the image with 401$": Answer(401, b"<html>"),
        "refused the image with 302$": Answer(302, b"", {"Location": "http://elsewhere.invalid/"}),
        "could not be pulled: the registry answered 503": problem(503, "overloaded"),
    }
    for number, (words, answer) in enumerate(answers.items()):
        registry.server.on(digest, answer)
        with pytest.raises(JobFailed, match=words) as failure:
            pull(registry, digest, tmp_path / str(number))
        assert failure.value.reason == "image_pull_failed"


def test_a_pull_continues_after_an_error_and_ends_with_a_stop(registry, tmp_path, monkeypatch):
    monkeypatch.setattr(image_pull, "ATTEMPT_SECONDS", 30.0)
    manifest = registry.put_image()
    digest = digest_of(LAYERS[0].content)
    registry.server.on(digest, Answer(200, LAYERS[0].content[:-1]), Answer(200, LAYERS[0].content))
    assert len(pull(registry, digest_of(manifest), tmp_path / "first").layers) == 2
    stop = StopSignal()

    def stopped(handler, asked):
        stop.request(now=True)
        handler.answer(Answer(503))

    registry.server.on(digest, stopped, hang)
    with pytest.raises(JobStopped):
        pull(registry, digest_of(manifest), tmp_path / "second", stop=stop)


def test_a_pull_ends_when_the_disk_of_the_worker_runs_low(registry, tmp_path, monkeypatch):
    """Layers are written as root, so no limit of a job holds."""
    monkeypatch.setattr(image_pull, "_CHECKED_BYTES", 1 << 20)
    image = Image((layer(entry("a", bytes(5 << 20)), compression="none"),))
    digest = digest_of(registry.put_image(image))
    answers = [None, None, "no room"]
    with pytest.raises(JobReleased, match="no room") as release:
        pull(registry, digest, tmp_path / "blobs", max_bytes=16 << 20, shortage=lambda: answers.pop(0))
    assert (release.value.otherwise, release.value.unable) == ("worker_disk_full", True)
    (written,) = (tmp_path / "blobs").iterdir()
    assert (1 << 20) <= written.stat().st_size < (3 << 20)
