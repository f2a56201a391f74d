"""View of `/v1/keys`."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from orchestrator.core.datetimes import format_timestamp
from orchestrator.evidence.models import SigningKey
from orchestrator.evidence.public_keys import ALGORITHM
from orchestrator.protocols.native.identity.views import PublicDocumentView
from orchestrator.protocols.native.signing_keys import openapi


class SigningKeySetView(PublicDocumentView):
    """`GET /v1/keys`. Public keys are no secret, and an auditor has no token."""

    @openapi.SIGNING_KEYS
    def get(self, _request: Request) -> Response:
        """Return the keys that verify attestations, checkpoints and audit bundles."""
        keys = SigningKey.objects.order_by("-created_at", "-pk")
        return Response({"keys": [_serialize(key) for key in keys]}, headers={"Cache-Control": "no-cache"})


def _serialize(key: SigningKey) -> dict[str, Any]:
    return {
        "key_id": key.key_id,
        "algorithm": ALGORITHM,
        "public_key": key.public_pem,
        "is_retired": key.retired_at is not None,
        "created_at": format_timestamp(key.created_at),
        "retired_at": format_timestamp(key.retired_at),
    }
