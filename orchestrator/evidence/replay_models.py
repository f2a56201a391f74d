"""The replays of jobs, each with what it is expected to produce, and the verdict."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from orchestrator.evidence.replay_comparison import DIVERGED, MATCH, UNVERIFIABLE
from runtime_jobs.identifiers import ID_LENGTH


class ReplayVerdict(models.TextChoices):
    """Whether a replay has produced what the job has produced."""

    MATCH = MATCH
    DIVERGED = DIVERGED
    UNVERIFIABLE = UNVERIFIABLE


class Replay(models.Model):
    """A job that repeats another one. The scheduler process compares both when the replay has ended.

    Attributes:
        job_ulid: The replay, by its first attempt.
        replay_of_ulid: The job that it repeats, by its first attempt.
        attempt_ulid: The attempt of that job whose outputs are expected.
        is_sealed: Whether it was requested as sealed: without network.
        reason: Why it was requested.
        requested_by: The client or operator, as `kind:name`.
        caveats: What of the job is not fixed, so that the replay verifies nothing.
        expected: The manifest of the job when the replay was requested.
        found: The manifest of the replay, with the verdict.
        verdict: Null until the replay has ended.
        difference: The first difference of the outputs: `path`, `expected`, `found`.
        reasons: Why the replay verifies nothing.
        notes: Differences that decide nothing, such as those of logs.
        decided_at: When both were compared.
    """

    id = models.BigAutoField(primary_key=True)
    job_ulid = models.CharField(max_length=ID_LENGTH, unique=True)
    replay_of_ulid = models.CharField(max_length=ID_LENGTH)
    attempt_ulid = models.CharField(max_length=ID_LENGTH)
    org_slug = models.CharField(max_length=63)
    job_type = models.CharField(max_length=50)
    is_sealed = models.BooleanField("sealed")
    reason = models.CharField(max_length=500)
    requested_by = models.CharField(max_length=200)
    caveats = ArrayField(models.CharField(max_length=400), default=list)
    expected = models.JSONField()
    found = models.JSONField(null=True)
    verdict = models.CharField(max_length=12, choices=ReplayVerdict.choices, null=True)
    difference = models.JSONField(null=True)
    reasons = models.JSONField(default=list)
    notes = models.JSONField(default=list)
    created_at = models.DateTimeField()
    decided_at = models.DateTimeField(null=True)

    class Meta:
        app_label = "orchestrator"
        db_table = "job_replays"
        default_permissions = ("view",)
        constraints = [
            models.CheckConstraint(
                name="replay_verdict_is_whole",
                condition=Q(verdict=None, decided_at=None, found=None)
                | Q(verdict__isnull=False, decided_at__isnull=False, found__isnull=False),
            ),
        ]
        indexes = [
            # The scheduler process: replays without a verdict. They are few.
            models.Index(fields=["id"], name="replays_undecided", condition=Q(verdict=None)),
            # The list of an organization, and its audit bundle.
            models.Index(models.F("org_slug"), models.F("id").desc(), name="replays_of_organization"),
        ]

    def __str__(self) -> str:
        return f"replay {self.job_ulid} of {self.replay_of_ulid}"
