"""Errors of the image registry, with the codes of the OCI distribution specification."""

from typing import Any, Final

UNKNOWN_BLOB: Final = "BLOB_UNKNOWN"
INVALID_UPLOAD: Final = "BLOB_UPLOAD_INVALID"
UNKNOWN_UPLOAD: Final = "BLOB_UPLOAD_UNKNOWN"
INVALID_DIGEST: Final = "DIGEST_INVALID"
UNKNOWN_REFERENCE: Final = "MANIFEST_BLOB_UNKNOWN"
INVALID_MANIFEST: Final = "MANIFEST_INVALID"
UNKNOWN_MANIFEST: Final = "MANIFEST_UNKNOWN"
INVALID_NAME: Final = "NAME_INVALID"
UNKNOWN_NAME: Final = "NAME_UNKNOWN"
INVALID_SIZE: Final = "SIZE_INVALID"
DENIED: Final = "DENIED"
UNSUPPORTED: Final = "UNSUPPORTED"
TOO_MANY_REQUESTS: Final = "TOOMANYREQUESTS"


class RegistryError(Exception):
    """A refusal of the registry: HTTP status, code of the specification, message for the client, headers."""

    def __init__(
        self, status: int, code: str, message: str, *, detail: Any = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.detail = status, code, message, detail
        self.headers = headers or {}
