"""Error codes: HTTP status and meaning of each. Data only.

`docs/api.md` contains this table, the OpenAPI document the codes. Tests compare both with it, and every code in the
source.
"""

from typing import NamedTuple


class ErrorCode(NamedTuple):
    """HTTP status and meaning of an error code."""

    status: int
    when: str


CODES: dict[str, ErrorCode] = {
    "malformed_json": ErrorCode(
        400, "The body is not one JSON object in UTF-8, is nested too deeply, or repeats a key."
    ),
    "unknown_field": ErrorCode(400, "The body has a field that does not exist; `errors` names it."),
    "invalid": ErrorCode(400, "A value is missing, of the wrong type or out of bounds; `errors` names each field."),
    "invalid_query": ErrorCode(
        400, "A query parameter is unknown, repeated, empty or invalid; `errors` names it and what is allowed."
    ),
    "timeout_above_plan": ErrorCode(400, "The time limit of the job exceeds that of the plan, `max_timeout_seconds`."),
    "invalid_artifact_name": ErrorCode(
        400, "The name of the artifact is no relative path, or has a part such as `..`; `errors` says what is wrong."
    ),
    "invalid_dependency": ErrorCode(
        400, "`depends_on` names an id that is no job of the organization; `errors` names it."
    ),
    "query_too_expensive": ErrorCode(
        400, "The GraphQL document exceeds a limit: tokens, depth, aliases, nodes or `first`; `limit` is that limit."
    ),
    "blocked_url": ErrorCode(
        400, "The server may not send requests to this URL. `errors` says why, such as an address that is not public."
    ),
    "unauthenticated": ErrorCode(
        401, "The request has no valid token, session or signature. The response does not say why."
    ),
    "storage_quota_exceeded": ErrorCode(
        402, "The organization would store more bytes of artifacts and caches than its plan allows, `limit`."
    ),
    "address_not_valid": ErrorCode(
        403, "The signed address was altered, has expired, or is for another method. Request another one."
    ),
    "identity_refused": ErrorCode(
        403, "The job may not have an identity token: it has ended, or its workflow does not permit that."
    ),
    "insufficient_scope": ErrorCode(403, "The token lacks the scope in `scope`."),
    "wrong_principal": ErrorCode(403, "A worker called an operation of clients, or a client an operation of workers."),
    "worker_mismatch": ErrorCode(403, "`worker_id` is not the worker of the token."),
    "pool_forbidden": ErrorCode(403, "The worker is not registered in the pool, or the project does not use the pool."),
    "priority_forbidden": ErrorCode(
        403, "The priority exceeds that of the plan, or the organization may not submit emergency jobs."
    ),
    "operator_only": ErrorCode(
        403, "An operator set this limit, or only operators may set it: a token cannot change or remove it."
    ),
    "feature_not_enabled": ErrorCode(
        403, "Hosted runtime analysis is not enabled for the organization; jobs of type `runtime` need it."
    ),
    "project_not_enabled": ErrorCode(
        403, "The organization has no such project, or the project is disabled. The response does not say which."
    ),
    "repository_not_allowed": ErrorCode(403, "The project may not run this repository."),
    "forbidden": ErrorCode(
        403, "A browser session was used without CSRF token or from another site, or a permission is missing."
    ),
    "https_required": ErrorCode(403, "The request was sent in plain text. Revoke its token, and use `https`."),
    "not_found": ErrorCode(404, "The resource does not exist, or the caller may not see it."),
    "method_not_allowed": ErrorCode(
        405, "The resource does not support the method; `Allow` lists those that it supports."
    ),
    "not_acceptable": ErrorCode(406, "The operation has none of the media types in `Accept`."),
    "request_timeout": ErrorCode(408, "The headers or the body took too long to arrive."),
    "stale_lease": ErrorCode(
        409, "The lease is unknown, ended, expired or revoked; `reason` says which. Stop the job."
    ),
    "conflict": ErrorCode(
        409,
        "The lease ended with another message, the run belongs to another job, the limit, slug, association or job id "
        "exists already, the runner is archived, the spec is in use, the organization has an owner, the scope has "
        "as many secrets or variables as it may have, the organization has as many webhooks, notification rules, "
        "schedules or open bulk actions as it may have, a job of the schedule has not ended, the bulk action is "
        "completed, the delivery is on its way, another artifact has the name, the artifact is complete, the version "
        "of the pack has another plan, or the incident is resolved.",
    ),
    "already_final": ErrorCode(409, "The job has ended; `job_status` is its status."),
    "already_retried": ErrorCode(409, "A newer attempt exists: `newer_job_id`."),
    "not_final": ErrorCode(409, "The job has not ended. Only a job that has ended can be retried or replayed."),
    "not_replayable": ErrorCode(
        409, "A replay would prove nothing; `reasons` has what of the job is not fixed, or its type has no replays."
    ),
    "not_retryable": ErrorCode(409, "Jobs of this type have no further attempts. Submit a new run."),
    "illegal_move": ErrorCode(
        409, "The transition is not allowed from the current state of the job. Phases only advance."
    ),
    "cancel_not_requested": ErrorCode(409, "There is no cancel request for this job."),
    "not_settable": ErrorCode(
        409, "The limit or incident is controlled by something else; `detail` says how to change it."
    ),
    "mirror_outdated": ErrorCode(
        409,
        "The copy of the repository does not have the ref, the commit or this version of the file yet. An update was "
        "requested: repeat after `Retry-After` seconds.",
    ),
    "idempotency_conflict": ErrorCode(409, "The Idempotency-Key was used with another request. Use a new key."),
    "digest_mismatch": ErrorCode(
        409,
        "`payloadDigest` is not the digest of the payload, `planHash` not that of the version of the pack, or `sha256` "
        "not that of the uploaded artifact; `detail` has the right one. The content of the artifact was deleted. "
        "Of a replay: the stored input of the job was changed.",
    ),
    "chunk_conflict": ErrorCode(
        409, "A chunk with this number and other bytes is stored, or a piece with this offset and other bytes."
    ),
    "chunk_gap": ErrorCode(
        409, "An earlier chunk or piece is missing; send `expected_seq` or `expected_offset` first."
    ),
    "run_conflict": ErrorCode(409, "Ingest has another run of this job, of another command."),
    "run_mismatch": ErrorCode(409, "The run was uploaded under another lease of the job. Upload it under this lease."),
    "length_required": ErrorCode(411, "The body has no Content-Length."),
    "version_conflict": ErrorCode(
        412,
        "`If-Match` names another version, or a weak `ETag`; `version` is the current one. Read the resource, then "
        "repeat.",
    ),
    "payload_too_large": ErrorCode(413, "The body has more than `limit` bytes."),
    "unsupported_media_type": ErrorCode(
        415, "The body is not `application/json`, or has a `Content-Encoding`; the detail names the header."
    ),
    "range_not_satisfiable": ErrorCode(416, "The requested range begins after the last byte of the object."),
    "workflow_rejected": ErrorCode(422, "Only document 003: the workflow file at the commit of the run is wrong."),
    "size_mismatch": ErrorCode(422, "The uploaded object has not the announced size. Nothing was stored."),
    "validation_failed": ErrorCode(
        422, "Only ingest: the body is JSON but not a valid run; `errors` names the fields."
    ),
    "precondition_required": ErrorCode(
        428, "The header `If-Match` is missing. Send the `ETag` of the version that you read."
    ),
    "rate_limited": ErrorCode(
        429,
        "Too many failed attempts from this address, a password is checked too often, or a runner or an anonymous "
        "client sends too many requests; wait `Retry-After` seconds.",
    ),
    "queue_full": ErrorCode(
        429, "The organization has `current` waiting jobs, the plan allows `limit`. Wait `Retry-After` seconds."
    ),
    "submit_rate_exceeded": ErrorCode(
        429, "The plan allows `limit` submits per minute, `burst` at once. Wait `Retry-After` seconds."
    ),
    "artifact_quota": ErrorCode(
        429,
        "The job would have more artifacts, or more bytes of them, than the plan allows, `limit`. Do not repeat it.",
    ),
    "too_many_concurrency_keys": ErrorCode(
        429, "The organization has `limit` concurrency keys. Keys that are no longer used are removed."
    ),
    "too_many_connections": ErrorCode(429, "The client address has too many open connections. Close some."),
    "headers_too_large": ErrorCode(
        431, "The request line and headers have more than `max_bytes` bytes or `max_headers` headers."
    ),
    "too_many_streams": ErrorCode(
        429,
        "The caller or organization (`limited_by`) has `open_streams` open streams; at most `limit` are allowed.",
    ),
    "internal_error": ErrorCode(500, "An error of the server. Its log contains the details under the `request_id`."),
    "follow_unavailable": ErrorCode(
        501, "This server process (WSGI) cannot follow the log of a job that has not ended."
    ),
    "no_streams": ErrorCode(503, "This server process (WSGI) cannot stream events. Another one may."),
    "webhook_not_configured": ErrorCode(503, "Neither the installation nor any project has a webhook secret."),
    "busy": ErrorCode(
        503,
        "The database could not complete the request now (lock, time limit, connections), or the process has its "
        "maximum of open streams; repeat after `Retry-After` seconds.",
    ),
    "overloaded": ErrorCode(
        503, "All threads or database connections of the process are in use; repeat after `Retry-After` seconds."
    ),
    "database_unavailable": ErrorCode(
        503, "The database cannot be reached, or its schema is of another release; repeat after `Retry-After` seconds."
    ),
    "signing_unavailable": ErrorCode(
        503, "The server process has no key that may sign evidence. An operator must create or copy one."
    ),
    "storage_unavailable": ErrorCode(
        503, "The store of artifacts does not answer; repeat after `Retry-After` seconds."
    ),
    "storage_full": ErrorCode(507, "The store of artifacts has no space left. Nothing was stored."),
}
