"""Signed addresses of stored objects: whoever has one may upload or download this one object until it expires.

An address of the server is a JSON Web Token in the path. Log lines replace such tokens by their fingerprint. With a
bucket the address is signed by the key of the bucket, and the server receives no byte.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import jwt
from django.conf import settings

from orchestrator.artifacts.operations import UPLOAD_TIME
from orchestrator.artifacts.storage import artifact_storage
from orchestrator.core.sealing import derived_keys
from runtime_jobs.models import CacheEntry, StoredArtifact
from runtime_jobs.models.artifacts import StoredObject

PREFIX: Final = "/v1/objects/"
DOWNLOAD_TIME: Final = timedelta(minutes=15)
MAX_TOKEN_LENGTH: Final = 2048
MAX_FILE_NAME_LENGTH: Final = 200
ARTIFACT: Final = "artifact"
CACHE: Final = "cache"
MODELS: Final[dict[str, type[StoredObject]]] = {ARTIFACT: StoredArtifact, CACHE: CacheEntry}
_LABEL: Final = "object-address-v1"
_ALGORITHM: Final = "HS256"
_METHODS: Final = {"PUT": "PUT", "GET": "GET", "HEAD": "GET"}  # of the request and of the address


class InvalidAddress(Exception):
    """The address was altered, has expired, or is for another method."""


@dataclass(frozen=True)
class ObjectAddress:
    """The content of a valid address.

    Attributes:
        kind: The table: a key of `MODELS`.
        row_id: The key of the row.
        object_key: The key in the storage.
        byte_count: The size of the object.
        organization: The key of the organization, as text.
        file_name: The name that a download suggests.
    """

    kind: str
    row_id: int
    object_key: str
    byte_count: int
    organization: str
    file_name: str


def upload_url(row: StoredObject) -> str:
    """Return the address to which a client may PUT the object of a row, until the row's `upload_until`."""
    seconds = int(UPLOAD_TIME.total_seconds())
    direct = artifact_storage().upload_address(row.object_key, seconds=seconds)
    return direct or _own_url(row, "PUT", row.upload_until, "")


def download_url(row: StoredObject, *, file_name: str, now: datetime) -> str:
    """Return the address from which a client may GET the object of a row for 15 minutes.

    Args:
        row: The row.
        file_name: The name under which a browser saves the file.
        now: The present time.
    """
    seconds = int(DOWNLOAD_TIME.total_seconds())
    file_name = file_name[-MAX_FILE_NAME_LENGTH:]
    direct = artifact_storage().download_address(row.object_key, file_name=file_name, seconds=seconds)
    return direct or _own_url(row, "GET", now + DOWNLOAD_TIME, file_name)


def read_address(token: str, *, method: str, now: datetime) -> ObjectAddress:
    """Return the content of an address of the server.

    Args:
        token: The part of the path after the prefix.
        method: The method of the request.
        now: The time of the request.

    Raises:
        InvalidAddress: The address is not valid for this request.
    """
    claims = _verified(token)
    try:
        permitted, expires_at = claims["method"], float(claims["exp"])
        address = ObjectAddress(
            str(claims["kind"]),
            int(claims["row"]),
            str(claims["key"]),
            int(claims["size"]),
            str(claims["org"]),
            str(claims["name"]),
        )
    except (KeyError, TypeError, ValueError):
        raise InvalidAddress from None
    if permitted != _METHODS.get(method) or now.timestamp() >= expires_at or address.kind not in MODELS:
        raise InvalidAddress
    return address


def _own_url(row: StoredObject, method: str, expires_at: datetime, file_name: str) -> str:
    claims = {
        "method": method,
        "kind": next(kind for kind, model in MODELS.items() if isinstance(row, model)),
        "row": row.pk,
        "key": row.object_key,
        "size": row.byte_count,
        "org": str(row.organization_id),
        "name": file_name,
        "exp": int(expires_at.timestamp()),
    }
    token = jwt.encode(claims, derived_keys(_LABEL)[0], algorithm=_ALGORITHM)
    return f"{settings.PUBLIC_URL}{PREFIX}{token}"


def _verified(token: str) -> dict[str, Any]:
    if len(token) > MAX_TOKEN_LENGTH:
        raise InvalidAddress
    for key in derived_keys(_LABEL):
        try:
            # The caller compares the expiry: the body of an upload may arrive for longer than the address is valid.
            claims: dict[str, Any] = jwt.decode(token, key, algorithms=[_ALGORITHM], options={"verify_exp": False})
        except jwt.InvalidSignatureError:
            continue
        except jwt.InvalidTokenError:
            break
        return claims
    raise InvalidAddress
