"""Stores objects in a bucket of S3 or of a compatible server. Clients send and receive them by signed addresses."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from boto3.exceptions import S3UploadFailedError
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from django.utils.http import content_disposition_header
from storages.backends.s3 import S3Storage

from orchestrator.artifacts.storage import OCTETS, BlockReader, age_of

PART_BYTES: Final = 8 << 20
_MISSING: Final = frozenset({"404", "NoSuchKey", "NotFound"})
# One part at a time, in this thread: several would keep as many parts in memory.
_TRANSFER: Final = TransferConfig(
    multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, use_threads=False, max_io_queue=2
)


class ArtifactS3Storage(S3Storage):
    """Objects in a bucket, by the client of django-storages. Every error of the bucket is an OSError."""

    def __init__(self, **options: Any) -> None:
        """Create the storage. `options` are those of django-storages."""
        style = "path" if options.get("endpoint_url") else "auto"  # other servers have no host name for each bucket
        config = Config(
            signature_version="s3v4",
            s3={"addressing_style": style},
            connect_timeout=5,
            read_timeout=30,
            retries={"max_attempts": 3, "mode": "standard"},
            # Else a signed address contains a checksum, which the client would have to send (contract 2.6).
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        super().__init__(**{"client_config": config} | options)

    def put(self, key: str, blocks: Iterable[bytes], *, content_type: str = OCTETS) -> int:
        reader = BlockReader(blocks)
        with _errors(key):
            self._object(key).upload_fileobj(reader, ExtraArgs={"ContentType": content_type}, Config=_TRANSFER)
        return reader.size

    def read(self, key: str, start: int, length: int) -> bytes:
        if length <= 0:
            return b""
        with _errors(key):
            try:
                return self._read(key, start, length)
            except ClientError as error:
                if _status_of(error) not in {400, 416}:
                    raise
        # A range beyond the end: S3 sends what there is, some compatible servers refuse it.
        rest = min(length, (self.size_of(key) or 0) - start)
        with _errors(key):
            return self._read(key, start, rest) if rest > 0 else b""

    def size_of(self, key: str) -> int | None:
        try:
            with _errors(key):
                return int(self._object(key).content_length)
        except FileNotFoundError:
            return None

    def remove(self, key: str) -> None:
        with _errors(key):
            self._object(key).delete()

    def objects(self, prefix: str) -> Iterator[tuple[str, float]]:
        with _errors(prefix):
            for found in self.bucket.objects.filter(Prefix=prefix):
                yield found.key, age_of(found.last_modified)

    def upload_address(self, key: str, *, seconds: int) -> str | None:
        return self._signed("put_object", {"Bucket": self.bucket_name, "Key": key}, seconds)

    def download_address(self, key: str, *, file_name: str, seconds: int) -> str | None:
        parameters = {
            "Bucket": self.bucket_name,
            "Key": key,
            "ResponseContentDisposition": content_disposition_header(as_attachment=True, filename=file_name),
            "ResponseContentType": OCTETS,
        }
        return self._signed("get_object", parameters, seconds)

    def _read(self, key: str, start: int, length: int) -> bytes:
        content: bytes = self._object(key).get(Range=f"bytes={start}-{start + length - 1}")["Body"].read()
        return content

    def _object(self, key: str) -> Any:
        return self.bucket.Object(key)

    def _signed(self, operation: str, parameters: dict[str, Any], seconds: int) -> str:
        client = self.connection.meta.client
        return str(client.generate_presigned_url(operation, Params=parameters, ExpiresIn=seconds))


@contextmanager
def _errors(key: str) -> Iterator[None]:
    """Replace the errors of the client: callers know those of files."""
    try:
        yield
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") in _MISSING or _status_of(error) == 404:
            raise FileNotFoundError(f"There is no object {key}.") from None
        raise OSError(f"The bucket refused a request for {key}: {error}") from error
    except (BotoCoreError, S3UploadFailedError) as error:
        raise OSError(f"The bucket did not answer a request for {key}: {error}") from error


def _status_of(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
