"""Every code that a problem document may carry: its HTTP status, and when a caller meets it. Data only.

`docs/api.md` shows this table, the OpenAPI document this list; tests hold both, and every code in the source, to it."""

from typing import NamedTuple


class ErrorCode(NamedTuple):
    status: int
    when: str


CODES: dict[str, ErrorCode] = {
    "malformed_json": ErrorCode(
        400, "The body is not one JSON object in UTF-8, or nests too deeply, or repeats a key."
    ),
    "unknown_field": ErrorCode(400, "The body has a field that does not exist; `errors` names it."),
    "invalid": ErrorCode(400, "A value is missing, of the wrong type or out of its bounds; `errors` names each."),
    "invalid_query": ErrorCode(
        400, "A parameter behind the `?` is unknown, repeated, empty or wrong; `errors` names it."
    ),
    "timeout_above_plan": ErrorCode(400, "The plan allows at most `max_timeout_seconds`."),
    "invalid_dependency": ErrorCode(400, "`depends_on` names what is no job of the organization; `errors` says which."),
    "unauthenticated": ErrorCode(401, "No valid token or signature came along. Nothing more is said."),
    "insufficient_scope": ErrorCode(403, "The token lacks the scope that `scope` names."),
    "wrong_principal": ErrorCode(403, "A worker called what is for clients, or a client what is for workers."),
    "worker_mismatch": ErrorCode(403, "The `worker_id` is not the token's."),
    "pool_forbidden": ErrorCode(
        403, "The worker is not registered in that pool, or the project's jobs do not go there."
    ),
    "priority_forbidden": ErrorCode(403, "Above the plan's, or an emergency where the organization may have none."),
    "operator_only": ErrorCode(
        403, "An operator set this, or only operators may: a token neither changes nor lifts it."
    ),
    "feature_not_enabled": ErrorCode(403, "The organization has no hosted runtime analysis; type `runtime` needs it."),
    "project_not_enabled": ErrorCode(403, "There is no such project, or it is not enabled."),
    "repository_not_allowed": ErrorCode(403, "The project may not run this repository."),
    "forbidden": ErrorCode(403, "A browser's session was used without its CSRF token, or from another site's page."),
    "https_required": ErrorCode(
        403, "The request came in plain text. Revoke the token that it carried, and use `https`."
    ),
    "not_found": ErrorCode(404, "There is no such thing, or you may not see it."),
    "method_not_allowed": ErrorCode(405, "`Allow` says which methods are right."),
    "not_acceptable": ErrorCode(406, "None of the media types in `Accept` can be had."),
    "request_timeout": ErrorCode(408, "The headers or the body took too long to arrive."),
    "stale_lease": ErrorCode(409, "The lease does not speak for its job (any more); `reason` says why. Stop the job."),
    "conflict": ErrorCode(
        409, "The lease ended with another message, the run is another job's, or there is such a limit."
    ),
    "already_final": ErrorCode(409, "The job has ended; `job_status` says how."),
    "already_retried": ErrorCode(409, "A newer attempt exists: `newer_job_id`."),
    "not_final": ErrorCode(409, "Only a job that has ended can be retried."),
    "illegal_move": ErrorCode(409, "From where the job is, no way leads there: phases do not run backwards."),
    "cancel_not_requested": ErrorCode(409, "Nobody has asked to cancel this job."),
    "not_settable": ErrorCode(409, "The limit follows something else; `detail` says what changes it."),
    "idempotency_conflict": ErrorCode(409, "The Idempotency-Key was used before, with another request."),
    "chunk_conflict": ErrorCode(409, "A chunk with this number was sent before, with other bytes."),
    "chunk_gap": ErrorCode(409, "An earlier chunk is missing; `expected_seq` says which."),
    "run_conflict": ErrorCode(409, "Ingest holds another run of this job, about another command."),
    "run_mismatch": ErrorCode(409, "The run was uploaded under another lease of the job; upload it under this one."),
    "length_required": ErrorCode(411, "Send the body with a Content-Length."),
    "version_conflict": ErrorCode(412, "`If-Match` names another version; `version` is that of now. Look again."),
    "payload_too_large": ErrorCode(413, "The body has more than `limit` bytes."),
    "unsupported_media_type": ErrorCode(415, "The body is not called `application/json`, or it is compressed."),
    "validation_failed": ErrorCode(422, "Ingest only: the body is JSON, but no run; `errors` names the fields."),
    "precondition_required": ErrorCode(428, "Say in `If-Match` which version you saw: that of the answer's `ETag`."),
    "rate_limited": ErrorCode(429, "Too many refused tokens from this address; wait `Retry-After` seconds."),
    "queue_full": ErrorCode(
        429, "The plan allows `limit` waiting jobs, `current` wait. Nothing was queued; wait `Retry-After` seconds."
    ),
    "submit_rate_exceeded": ErrorCode(
        429, "The plan allows `limit` submitted jobs a minute, `burst` at once; wait `Retry-After` seconds."
    ),
    "too_many_concurrency_keys": ErrorCode(
        429, "The organization has `limit` concurrency keys already; those that are not used any more are forgotten."
    ),
    "too_many_connections": ErrorCode(429, "The client's address has too many connections open. Close some."),
    "headers_too_large": ErrorCode(
        431, "The request line and headers have more than `max_bytes` bytes or `max_headers` headers."
    ),
    "too_many_streams": ErrorCode(
        429, "The token, person or organization (`limited_by`) has `open_streams` open log streams, at most `limit`."
    ),
    "internal_error": ErrorCode(500, "A bug of ours. The log has it under the `request_id`."),
    "follow_unavailable": ErrorCode(
        501, "This server process (WSGI) cannot follow the log of a job that has not ended."
    ),
    "webhook_not_configured": ErrorCode(
        503, "Neither the installation nor any project has a secret for this webhook yet."
    ),
    "busy": ErrorCode(
        503, "Somebody else holds what is needed; the same request may succeed after `Retry-After` seconds."
    ),
    "overloaded": ErrorCode(
        503, "No thread or database connection of the process is free; repeat after `Retry-After` seconds."
    ),
    "database_unavailable": ErrorCode(503, "The database cannot be reached; try again after `Retry-After` seconds."),
}
