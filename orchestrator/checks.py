"""System checks: settings that contradict one another or are out of range are reported at the start."""

from ipaddress import ip_network
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, register

from leases.checks import SETTINGS
from runtime_jobs.specs import JOB_TYPES

MIN_AGING_SECONDS, MAX_AGING_SECONDS = 0.001, 1e9  # PostgreSQL's division overflows far outside of this range


@register(SETTINGS)
def certificates(**_: Any) -> list[CheckMessage]:
    """Report client certificates with a header and no proxies, or the reverse, and proxies that are no addresses."""
    if bool(settings.CERTIFICATE_HEADER) != bool(settings.CERTIFICATE_PROXIES):
        hint = "Name the header and the proxies that may set it, or neither."
        return [
            Error("Only one of CERTIFICATE_HEADER and CERTIFICATE_PROXIES is set.", hint=hint, id="orchestrator.E001")
        ]
    return [
        Error(f"CERTIFICATE_PROXIES: {proxy!r} is not an IP address or network.", id="orchestrator.E002")
        for proxy in settings.CERTIFICATE_PROXIES
        if not _is_network(proxy)
    ]


@register(SETTINGS)
def scheduler_takeover(**_: Any) -> list[CheckMessage]:
    """Report a takeover so late that `/readyz` fails before it."""
    takeover, silent = settings.CLOCK_TAKEOVER_SECONDS, settings.CLOCK_SILENT_AFTER_SECONDS
    if 2 <= takeover < silent:
        return []
    text = f"CLOCK_TAKEOVER_SECONDS is {takeover:g}; it must be at least 2 and less than CLOCK_SILENT_AFTER_SECONDS."
    return [Error(text, hint=f"CLOCK_SILENT_AFTER_SECONDS is {silent:g}.", id="orchestrator.E003")]


@register(SETTINGS)
def retention(**_: Any) -> list[CheckMessage]:
    """Report negative periods, and records of requests that are kept longer than the jobs that they name."""
    days = settings.RETENTION_DAYS
    wrong: list[CheckMessage] = [
        Error(f"RETENTION_{name.upper()}_DAYS is {number}; it must be 0 (keep) or more.", id="orchestrator.E004")
        for name, number in days.items()
        if number < 0
    ]
    wrong += [
        Error(
            f"RETENTION_{name.upper()}_DAYS is {days[name] or 'unlimited'}, but jobs are kept for {days['jobs']} days.",
            hint="A request that is repeated later would be answered with a job that was deleted.",
            id="orchestrator.E005",
        )
        for name in ("idempotency_keys", "webhook_deliveries")
        if days["jobs"] > 0 and not 0 < days[name] <= days["jobs"]
    ]
    return wrong


@register(SETTINGS)
def hsts(**_: Any) -> list[CheckMessage]:
    """Report a preload without subdomains: the browsers' preload lists do not accept it."""
    if settings.SECURE_HSTS_PRELOAD and not settings.SECURE_HSTS_INCLUDE_SUBDOMAINS:
        hint = "Set HSTS_INCLUDE_SUBDOMAINS too, or neither."
        return [Error("HSTS_PRELOAD has no effect without HSTS_INCLUDE_SUBDOMAINS.", hint=hint, id="orchestrator.E006")]
    return []


@register(SETTINGS)
def aging(**_: Any) -> list[CheckMessage]:
    """Report an aging period that is negative, or with which the order of queues cannot be computed."""
    seconds = settings.AGING_SECONDS
    if seconds == 0 or MIN_AGING_SECONDS <= seconds <= MAX_AGING_SECONDS:
        return []
    text = f"AGING_SECONDS is {seconds:g}; it must be 0 (no aging) or between {MIN_AGING_SECONDS:g} and 1000000000."
    return [Error(text, id="orchestrator.E007")]


@register(SETTINGS)
def breakers(**_: Any) -> list[CheckMessage]:
    """Report rules with which breakers would open without a failure or never, and unknown job types."""
    rule = settings.BREAKER
    found: list[CheckMessage] = []
    if not 0 <= rule["failures"] <= 1:
        hint = "For 50 percent set 0.5. With 1 a breaker never opens."
        text = f"BREAKER_FAILURES is {rule['failures']:g}; it is a share and must be between 0 and 1."
        found.append(Error(text, hint=hint, id="orchestrator.E008"))
    found += [
        Error(f"BREAKER_{name.upper()} is {rule[name]}; it must be at least 1.", id="orchestrator.E009")
        for name in ("least_jobs", "window_seconds", "cool_down_seconds")
        if rule[name] < 1
    ]
    if unknown := sorted(set(rule["job_failures"]) - set(JOB_TYPES)):
        hint = f"The job types are {', '.join(JOB_TYPES)}."
        text = f"BREAKER_JOB_FAILURES names unknown job types: {', '.join(unknown)}."
        found.append(Error(text, hint=hint, id="orchestrator.E010"))
    return found


@register(SETTINGS)
def token_cache(**_: Any) -> list[CheckMessage]:
    """Report a cache that would accept a revoked token for more than a second."""
    from orchestrator.core.principal_cache import MAX_SECONDS  # noqa: PLC0415 - and with it the HTTP API

    seconds = settings.AUTH_CACHE_SECONDS
    if 0 <= seconds <= MAX_SECONDS:
        return []
    text = f"AUTH_CACHE_SECONDS is {seconds:g}; it must be from 0 (no cache) to {MAX_SECONDS:g}."
    return [Error(text, hint="A revoked token could be valid for so long.", id="orchestrator.E011")]


@register(SETTINGS)
def runners(**_: Any) -> list[CheckMessage]:
    """Report timeouts of runners that are out of range."""
    ranges = {
        "RUNNER_HEARTBEAT_TIMEOUT_SECONDS": (1, 900),
        "RUNNER_TIMEOUT_GRACE_SECONDS": (1, 900),
        "RUNNER_LATE_RESULT_SECONDS": (0, 7 * 24 * 3600),
    }
    return [
        Error(f"{name} is {getattr(settings, name)}; it must be from {minimum} to {maximum}.", id="orchestrator.E012")
        for name, (minimum, maximum) in ranges.items()
        if not minimum <= getattr(settings, name) <= maximum
    ]


@register(SETTINGS)
def leases_of_workflow_jobs(**_: Any) -> list[CheckMessage]:
    """Report leases of workflow jobs that are too short for a runner, or so long that a lost job is noticed late."""
    seconds = settings.ACTIONS_LEASE_SECONDS
    if 5 <= seconds <= 900:
        return []
    text = f"ACTIONS_LEASE_SECONDS is {seconds}; it must be from 5 to 900."
    return [Error(text, hint="Runners poll every two seconds.", id="orchestrator.E016")]


@register(SETTINGS)
def stored_outputs(**_: Any) -> list[CheckMessage]:
    """Report a limit of stored outputs that is below the largest message of a runner."""
    stored, received = settings.OUTPUT_LIMIT_BYTES, settings.RUNNER_MESSAGE_LIMIT_BYTES
    if stored >= received:
        return []
    text = f"OUTPUT_LIMIT_BYTES is {stored}; it must not be below RUNNER_MESSAGE_LIMIT_BYTES ({received})."
    return [Error(text, hint="A result could be received and not stored.", id="orchestrator.E013")]


@register(SETTINGS)
def image_uploads(**_: Any) -> list[CheckMessage]:
    """Report limits of uploads that no upload could satisfy."""
    upload, spool = settings.IMAGE_UPLOAD_LIMIT_BYTES, settings.IMAGE_SPOOL_BYTES
    if upload < 1 or settings.IMAGE_MAX_UPLOADS < 1:
        text = "IMAGE_UPLOAD_LIMIT_BYTES and IMAGE_MAX_UPLOADS must be at least 1."
        return [Error(text, id="orchestrator.E014")]
    if upload > spool // 2:
        text = f"IMAGE_UPLOAD_LIMIT_BYTES is {upload}; it must be at most half of IMAGE_SPOOL_BYTES ({spool})."
        return [Error(text, hint="One project may have half of what a process receives.", id="orchestrator.E014")]
    return []


@register(SETTINGS)
def artifact_bucket(**_: Any) -> list[CheckMessage]:
    """Report an incomplete set of settings of a bucket: objects would silently be stored in a folder."""
    bucket, endpoint, region = settings.ARTIFACTS_BUCKET, settings.ARTIFACTS_ENDPOINT_URL, settings.ARTIFACTS_REGION
    hint = "Set ARTIFACTS_BUCKET and ARTIFACTS_REGION, with another server than Amazon's also ARTIFACTS_ENDPOINT_URL."
    if (endpoint or region) and not bucket:
        text = "ARTIFACTS_ENDPOINT_URL or ARTIFACTS_REGION is set without ARTIFACTS_BUCKET."
        return [Error(text, hint=hint, id="orchestrator.E017")]
    if bucket and not region:
        return [Error("ARTIFACTS_BUCKET is set without ARTIFACTS_REGION.", hint=hint, id="orchestrator.E017")]
    if endpoint and urlsplit(endpoint).scheme not in {"http", "https"}:
        text = f"ARTIFACTS_ENDPOINT_URL is {endpoint!r}; it must begin with https:// or http://."
        return [Error(text, hint=hint, id="orchestrator.E017")]
    return []


@register(SETTINGS)
def root_keys(**_: Any) -> list[CheckMessage]:
    """Report root keys that are not 32 bytes in base64, by their place. The message contains nothing of the key."""
    from orchestrator.core.sealing import decode_root_key  # noqa: PLC0415 - and with it the cryptography library

    named = [("ACTIONS_ROOT_KEY", settings.ACTIONS_ROOT_KEY)] if settings.ACTIONS_ROOT_KEY else []
    named += [(f"ACTIONS_ROOT_KEYS_OLD[{place}]", text) for place, text in enumerate(settings.ACTIONS_ROOT_KEYS_OLD)]
    found: list[CheckMessage] = []
    for name, text in named:
        try:
            decode_root_key(text)
        except ValueError as error:
            hint = "Create one with `openssl rand -base64 32`."
            found.append(Error(f"{name} must be 32 bytes in base64: {error}.", hint=hint, id="orchestrator.E015"))
    return found


def _is_network(text: str) -> bool:
    try:
        ip_network(text)
    except ValueError:
        return False
    return True
