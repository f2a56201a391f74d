"""Both storages of artifacts behave alike, and the S3 server refuses addresses that were altered or have expired."""

import errno
import secrets
import time
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import pytest
import requests

from orchestrator.artifacts.storage import BlockReader, ObjectPart
from tests.orchestrator.artifacts.conftest import S3, use
from tests.orchestrator.artifacts.nanio_server import ACCESS_KEY, BUCKET, REGION, SECRET_KEY


def key():
    return f"actions/runs/1/artifacts/{secrets.token_hex(8)}"


class TestBoth:
    @pytest.mark.parametrize("sizes", [[], [1], [300_000, 1, 70_000], [5 << 20, 5 << 20, 1]])
    def test_what_was_put_is_read(self, storage, sizes):
        name, blocks = key(), [secrets.token_bytes(size) for size in sizes]
        content = b"".join(blocks)
        assert storage.put(name, iter(blocks)) == len(content)
        assert storage.size_of(name) == len(content)
        assert storage.read(name, 0, len(content) + 10) == content
        assert storage.read(name, 100, 50) == content[100:150]
        assert storage.read(name, len(content), 10) == b""

    def test_an_object_is_replaced_whole(self, storage):
        name = key()
        storage.put(name, [b"first content"])
        storage.put(name, [b"second"])
        assert storage.read(name, 0, 100) == b"second"

    def test_a_put_that_fails_leaves_what_was_there(self, storage):
        name = key()
        storage.put(name, [b"first"])

        def blocks():
            yield b"x" * 100
            raise ValueError("the source failed")

        with pytest.raises(ValueError, match="the source failed"):
            storage.put(name, blocks())
        assert storage.read(name, 0, 100) == b"first"

    def test_a_missing_object_is_none_or_an_error(self, storage):
        name = key()
        assert storage.size_of(name) is None
        with pytest.raises(FileNotFoundError):
            storage.read(name, 0, 1)
        storage.remove(name)

    def test_objects_are_listed_below_a_prefix_and_removed(self, storage):
        prefix = f"jobs/{secrets.token_hex(4)}/"
        for number in range(3):
            storage.put(f"{prefix}{number}", [b"x"])
        found = dict(storage.objects(prefix))
        assert sorted(found) == [f"{prefix}{number}" for number in range(3)]
        assert all(-60 < age < 600 for age in found.values())
        storage.remove(f"{prefix}0")
        assert sorted(dict(storage.objects(prefix))) == [f"{prefix}{number}" for number in (1, 2)]


class TestFolder:
    def test_no_client_gets_an_address(self, folder):
        storage = use_folder()
        assert storage.upload_address("a", seconds=1) is None
        assert storage.download_address("a", file_name="a", seconds=1) is None

    def test_a_part_is_deleted_unless_it_is_published(self, folder):
        part = ObjectPart()
        part.write(b"abc")
        assert len(list(folder.rglob("*"))) == 2  # the folder of parts, and one
        part.discard()
        part.discard()
        assert [path for path in folder.rglob("*") if path.is_file()] == []

    def test_a_published_part_survives_its_end_and_a_repetition(self, folder):
        part = ObjectPart()
        part.write(b"abc")
        part.publish("a/b")
        part.publish("a/b")
        part.discard()
        assert (folder / "a/b").read_bytes() == b"abc"
        assert part.sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"

    def test_an_empty_object_is_a_file(self, folder):
        part = ObjectPart()
        part.publish("a/empty")
        part.discard()
        assert (folder / "a/empty").read_bytes() == b""

    def test_a_full_disk_leaves_nothing(self, folder, monkeypatch):
        storage = use_folder()

        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            storage.put("a/b", [b"x"])
        assert [path for path in folder.rglob("*") if path.is_file()] == []


def use_folder():
    from django.core.files.storage import storages  # noqa: PLC0415 the fixture has set it

    return storages["artifacts"]


def altered(url, **changes):
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query)) | changes
    return urlunsplit(parts._replace(query=urlencode(query)))


class TestAddressesOfTheBucket:
    def test_a_client_uploads_and_downloads_directly(self, bucket):
        name, content = key(), secrets.token_bytes(100_000)
        put = requests.put(bucket.upload_address(name, seconds=900), data=content, timeout=60)
        assert put.status_code == 200, put.text
        assert bucket.size_of(name) == len(content)
        url = bucket.download_address(name, file_name='a "b".txt', seconds=900)
        got = requests.get(url, timeout=60)
        assert (got.status_code, got.content) == (200, content)
        # S3 answers with these headers; this server ignores the parameters, which are signed all the same.
        query = dict(parse_qsl(urlsplit(url).query))
        assert query["response-content-disposition"] == 'attachment; filename="a \\"b\\".txt"'
        assert query["response-content-type"] == "application/octet-stream"
        assert requests.get(altered(url, **{"response-content-type": "text/html"}), timeout=60).status_code == 403

    def test_only_method_and_key_are_signed(self, bucket):
        query = dict(parse_qsl(urlsplit(bucket.upload_address(key(), seconds=900)).query))
        assert query["X-Amz-SignedHeaders"] == "host"
        assert query["X-Amz-Expires"] == "900"
        assert not [name for name in query if "checksum" in name.lower()]

    def test_an_altered_address_is_refused(self, bucket):
        name = key()
        url = bucket.upload_address(name, seconds=900)
        signature = dict(parse_qsl(urlsplit(url).query))["X-Amz-Signature"]
        wrong = [
            url.replace(name, f"{name}x"),
            altered(url, **{"X-Amz-Expires": "90000"}),
            altered(url, **{"X-Amz-Signature": ("0" if signature[0] != "0" else "1") + signature[1:]}),
        ]
        for address in wrong:
            assert requests.put(address, data=b"x", timeout=60).status_code == 403, address
        assert requests.get(url, timeout=60).status_code == 403  # signed for another method
        assert bucket.size_of(name) is None

    def test_an_expired_address_is_refused(self, bucket):
        name = key()
        url = bucket.upload_address(name, seconds=1)
        time.sleep(2.5)  # the server compares its own clock, in whole seconds
        assert requests.put(url, data=b"x", timeout=60).status_code == 403
        assert bucket.size_of(name) is None


def test_a_bucket_that_does_not_answer_is_an_error_of_files(settings):
    storage = use(
        settings, S3, bucket_name=BUCKET, endpoint_url="http://127.0.0.1:1", region_name=REGION, access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
    )  # fmt: skip
    with pytest.raises(OSError, match="did not answer"):
        storage.size_of("a")


def test_a_reader_of_blocks_returns_what_is_requested():
    reader = BlockReader([b"ab", b"", b"cdef", b"g", b""])
    assert [reader.read(1), reader.read(4), reader.read(), reader.read()] == [b"a", b"bcde", b"fg", b""]
    assert reader.size == 7
