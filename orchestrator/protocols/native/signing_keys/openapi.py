"""OpenAPI of `/v1/keys`."""

from orchestrator.http.api.openapi import operation_docs
from orchestrator.protocols.native.openapi import response_example
from orchestrator.protocols.native.signing_keys import serializers

_PEM = (
    "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAiojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1w=\n"
    "-----END PUBLIC KEY-----\n"
)
_KEYS = response_example(
    "one key",
    {
        "keys": [
            {
                "key_id": "79f8c6d7e9ab2d0a1d9f2d0f1d8a6ef34aa0a3d5b6f7c8d9e0f1a2b3c4d5e6f7",
                "algorithm": "ed25519",
                "public_key": _PEM,
                "is_retired": False,
                "created_at": "2026-03-17T20:00:00Z",
                "retired_at": None,
            }
        ]
    },
)

SIGNING_KEYS = operation_docs("get_signing_keys", responses=serializers.SigningKeySetOutput, examples=[_KEYS], codes=())
