"""Tenants: plans, organizations, projects, memberships and API tokens."""

from typing import Any

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.functions import RandomUUID
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models.functions import Cast, Now

from runtime_jobs.identifiers import new_uuid
from runtime_jobs.priorities import EMERGENCY
from runtime_jobs.resource_names import slugify, with_random_suffix

slug = RegexValidator(r"^[a-z0-9][a-z0-9-]{0,62}\Z", "Lower-case letters, digits and hyphens, at most 63.")
ISOLATION_CHOICES = [
    ("none", "none"),
    ("restricted", "restricted"),
    ("namespaces", "namespaces"),
    ("microvm", "microvm"),
]


class JobTrace(models.TextChoices):
    """The levels of what a worker records of the commands of a job, least first."""

    NONE = "none", "none"
    NETWORK = "network", "network"  # processes and network; no files
    FULL = "full", "full"


# Defaults of a new plan, and of each plan that is older than these limits.
MAX_QUEUED = 10_000
SUBMITS_PER_MINUTE = 6_000
SUBMIT_BURST = 2_000
MAX_STORED_BYTES = 50 << 30
MAX_JOB_ARTIFACTS = 1_000
MAX_JOB_ARTIFACT_BYTES = 10 << 30
MAX_BATCH_JOBS = 64  # a smaller quota could never accept the largest batch
DEFAULT_TIMEOUT_SECONDS = 3_600
MAX_SLUG_LENGTH = 63
MAX_PUBLIC_SLUG_LENGTH = 64
MAX_SUBMITS_PER_MINUTE = 10_000_000  # keeps the arithmetic of bucket_tokens within 32 bits


class Scope(models.TextChoices):
    """A permission of an API token."""

    JOBS_READ = "jobs:read"
    JOBS_WRITE = "jobs:write"
    ORCH_READ = "orch:read"
    ORCH_OPERATE = "orch:operate"
    ORCH_QUOTA = "orch:quota"
    SECRETS_WRITE = "secrets:write"


class Plan(models.Model):
    """Limits, priority and weight of the organizations that have this plan."""

    name = models.CharField(max_length=63, unique=True, validators=[slug])
    priority = models.IntegerField(
        default=150,
        validators=[MaxValueValidator(EMERGENCY - 1)],
        help_text="Priority of the organization's jobs. A higher number is claimed first (free 100, team 200).",
    )
    max_timeout_seconds = models.PositiveIntegerField(
        "max timeout (seconds)",
        default=900,
        validators=[MinValueValidator(1)],
        help_text="Longest timeout that a job may request.",
    )
    default_timeout_seconds = models.PositiveIntegerField(
        "default timeout (seconds)",
        default=DEFAULT_TIMEOUT_SECONDS,
        db_default=DEFAULT_TIMEOUT_SECONDS,
        validators=[MinValueValidator(1)],
        help_text="Timeout of a run (Bencher API) that requests none. The max timeout limits it, too.",
    )
    max_active = models.PositiveIntegerField(
        "max concurrency",
        null=True,
        blank=True,
        help_text="Running jobs per organization. Jobs with priority 200 or higher count, but are never blocked. "
        "Empty: unlimited.",
    )
    max_queued = models.PositiveIntegerField(
        "max queued jobs",
        null=True,
        blank=True,
        default=MAX_QUEUED,
        validators=[MinValueValidator(MAX_BATCH_JOBS)],
        help_text="Queued jobs per organization. Further submits are answered 429. Empty: unlimited.",
    )
    submits_per_minute = models.PositiveIntegerField(
        "submit rate (per minute)",
        null=True,
        blank=True,
        default=SUBMITS_PER_MINUTE,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_SUBMITS_PER_MINUTE)],
        help_text="Submitted jobs per organization and minute. Further submits are answered 429. Empty: unlimited.",
    )
    submit_burst = models.PositiveIntegerField(
        default=SUBMIT_BURST,
        db_default=SUBMIT_BURST,
        validators=[MinValueValidator(MAX_BATCH_JOBS)],
        help_text="Jobs that may be submitted in one burst. Applies only with a submit rate.",
    )
    one_per_address = models.BooleanField(
        "one job per source IP",
        default=False,
        help_text="At most one running job per source IP. For organizations without an owner.",
    )
    max_stored_bytes = models.BigIntegerField(
        "max stored bytes",
        null=True,
        blank=True,
        default=MAX_STORED_BYTES,
        db_default=MAX_STORED_BYTES,
        validators=[MinValueValidator(0)],
        help_text="Artifacts and caches per organization. Further uploads are answered 402. Empty: unlimited.",
    )
    max_job_artifacts = models.PositiveIntegerField(
        "max artifacts per job",
        null=True,
        blank=True,
        default=MAX_JOB_ARTIFACTS,
        db_default=MAX_JOB_ARTIFACTS,
        help_text="Artifacts that the worker of one job uploads. Further ones are answered 429. Empty: unlimited.",
    )
    max_job_artifact_bytes = models.BigIntegerField(
        "max artifact bytes per job",
        null=True,
        blank=True,
        default=MAX_JOB_ARTIFACT_BYTES,
        db_default=MAX_JOB_ARTIFACT_BYTES,
        validators=[MinValueValidator(0)],
        help_text="Bytes of these artifacts together. Further ones are answered 429. Empty: unlimited.",
    )
    weight = models.PositiveIntegerField(
        "fair-share weight",
        default=1,
        validators=[MinValueValidator(1)],
        help_text="Share of the organization in pools with the fair-share policy.",
    )

    def __str__(self) -> str:
        return self.name

    def bounded_timeout(self, requested: int | None) -> int:
        """Return the timeout in seconds that a run gets: the requested or the default one, within the maximum."""
        return min(self.default_timeout_seconds if requested is None else requested, self.max_timeout_seconds)


class Organization(models.Model):
    """A tenant. Its slug never changes: jobs and runs carry copies of it."""

    uuid = models.UUIDField(default=new_uuid, db_default=RandomUUID(), editable=False)
    slug = models.CharField(max_length=63, unique=True, validators=[slug])
    name = models.CharField(max_length=200, blank=True)
    plan = models.ForeignKey(Plan, on_delete=models.PROTECT, related_name="organizations")
    hosted_runtime_analysis = models.BooleanField(default=False)
    egress = ArrayField(
        models.CharField(max_length=255),
        verbose_name="egress allowlist",
        default=list,
        blank=True,
        help_text="Destinations that jobs with network access may reach: host, *.suffix or host:port (default 443).",
    )
    followed_priority = models.IntegerField(
        null=True, editable=False, help_text="Priority of the plan that was last applied to queued jobs."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    claimed_at = models.DateTimeField(
        null=True, editable=False, help_text="When an organization without an owner got its first member."
    )
    default_project = models.ForeignKey(
        "Project",
        on_delete=models.SET_NULL,
        related_name="+",
        null=True,
        blank=True,
        db_index=False,
        help_text="Project of jobs that name none (API of document 004). Empty: the only enabled project.",
    )

    class Meta:
        constraints = [models.UniqueConstraint(fields=["uuid"], name="one_organization_per_uuid")]

    def __str__(self) -> str:
        return self.slug

    def clean(self) -> None:
        """Check that the default project is one of this organization.

        Raises:
            ValidationError: It belongs to another one.
        """
        if self.default_project is not None and self.default_project.organization_id != self.pk:
            raise ValidationError({"default_project": f"Must be a project of the organization {self.slug}."})


class Visibility(models.TextChoices):
    """The clients that may read a project by the Bencher API."""

    PUBLIC = "public"  # everyone
    PRIVATE = "private"  # members of the organization, and holders of a key of the project


class Project(models.Model):
    """A project of an organization, and the repositories that its jobs may use.

    Attributes:
        public_slug: The name of the project where organizations are not named: in the Bencher API and as a repository
            of images. It is the slug, with a suffix if another organization has a project with this name.
    """

    uuid = models.UUIDField(default=new_uuid, db_default=RandomUUID(), editable=False)
    public_slug = models.CharField(
        max_length=MAX_PUBLIC_SLUG_LENGTH,
        blank=True,
        default="",
        db_default=Cast(RandomUUID(), models.CharField()),
        editable=False,
    )
    visibility = models.CharField(
        max_length=10,
        choices=Visibility.choices,
        default=Visibility.PRIVATE,
        db_default=Visibility.PRIVATE,
        help_text="Who may read the project by the Bencher API. public: everyone, without authentication.",
    )
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="projects")
    slug = models.CharField(max_length=63, validators=[slug])
    enabled = models.BooleanField(default=False, help_text="Allows hosted runtime analysis for this project.")
    repositories = ArrayField(
        models.CharField(max_length=512),
        default=list,
        blank=True,
        help_text="owner/name as on the Git host, or owner/* for all repositories of an owner.",
    )
    pool = models.CharField(
        max_length=63, blank=True, help_text="Pool that runs the project's jobs. Empty: the default pool."
    )
    least_isolation = models.CharField(
        "minimum isolation",
        max_length=20,
        blank=True,
        choices=ISOLATION_CHOICES,
        help_text="Weakest sandbox that is accepted. Empty: the minimum isolation of the pool.",
    )
    trace = models.CharField(
        max_length=10,
        blank=True,
        choices=JobTrace.choices,
        help_text="What is recorded of jobs that do not say it. full: processes, network and files. network: no "
        "files. none: nothing. Empty: as the pool says.",
    )
    configured_command = ArrayField(
        models.CharField(max_length=4096),
        verbose_name="default command",
        default=list,
        blank=True,
        help_text="Argument list for jobs of webhooks and for batches without own jobs. Empty: no job is created.",
    )
    configured_directory = models.CharField("working directory", max_length=1024, default=".")
    configured_timeout_seconds = models.PositiveIntegerField(
        "timeout (seconds)", default=300, validators=[MinValueValidator(1)]
    )
    configured_network = models.BooleanField("allow network", default=False)
    push_enabled = models.BooleanField(
        "run on push", default=False, help_text="Creates jobs for pushes as well as for pull requests."
    )
    webhook_generation = models.PositiveIntegerField(
        default=0, editable=False, help_text="Generation of the webhook secret, which is derived. 0: no secret yet."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["organization", "slug"], name="one_project_per_slug"),
            models.UniqueConstraint(fields=["uuid"], name="one_project_per_uuid"),
            models.UniqueConstraint(fields=["public_slug"], name="one_project_per_public_slug"),
        ]

    def __str__(self) -> str:
        return f"{self.organization.slug}/{self.slug}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Store the project. A new one gets its public slug.

        Raises:
            IntegrityError: Another transaction has just taken the slug. A repetition takes another one.
        """
        if not self.public_slug:
            self.public_slug = free_public_slug(slugify(self.slug))
        super().save(*args, **kwargs)

    def allows(self, owner: str, name: str) -> bool:
        return bool({f"{owner}/{name}".lower(), f"{owner}/*".lower()} & {entry.lower() for entry in self.repositories})


def free_public_slug(slug: str) -> str:
    """Return the slug, or the slug with a random suffix if a project of any organization has it as public slug."""
    return with_random_suffix(slug) if Project.objects.filter(public_slug=slug).exists() else slug


class MemberRole(models.TextChoices):
    """The role of a member: which scopes the member has in the organization."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    QUOTA_MANAGER = "quota_manager", "quota manager"


class Membership(models.Model):
    """A person who may see the jobs of an organization in the browser, and more with a higher role."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(
        max_length=20,
        choices=MemberRole.choices,
        default=MemberRole.VIEWER,
        db_default=MemberRole.VIEWER,
        help_text="viewer: reads jobs, events and limits. operator: also cancels jobs and controls webhooks and "
        "incidents. quota manager: also changes limits, pauses and throttles.",
    )

    class Meta:
        verbose_name = "member"
        constraints = [models.UniqueConstraint(fields=["user", "organization"], name="one_membership_per_person")]

    def __str__(self) -> str:
        return f"{self.user} in {self.organization}"


class ApiToken(models.Model):
    """A token for programs of one organization. Displayed once; only its SHA-256 is stored.

    With a project it is a project key (`bencher_run_…`), which only the Bencher API accepts. It has no scopes.
    """

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="tokens")
    project = models.ForeignKey(
        Project,
        on_delete=models.CASCADE,
        related_name="keys",
        null=True,
        blank=True,
        help_text="Creates a key for this project and the Bencher API (bencher_run_…). Empty: a token of the "
        "organization for the native API.",
    )
    name = models.CharField(max_length=100)
    digest = models.CharField(max_length=64, unique=True, editable=False)
    scopes = ArrayField(models.CharField(max_length=20, choices=Scope.choices), default=list)
    created_by = models.CharField(max_length=150, blank=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField("expires", null=True, blank=True, help_text="In UTC. Empty: never.")
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        verbose_name = "API token"

    def __str__(self) -> str:
        return f"{self.name} ({self.organization.slug})"

    @property
    def event_target(self) -> str:
        """The name in operator events."""
        return f"token:{self.organization.slug}/{self.pk}"


class PersonalKey(models.Model):
    """A key of a person for the Bencher API: `bencher_user_…` or a JWT. Displayed once; only its SHA-256 is stored."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="personal_keys")
    name = models.CharField(max_length=100)
    digest = models.CharField(max_length=64, unique=True, editable=False)
    is_jwt = models.BooleanField(
        "JSON Web Token",
        default=False,
        help_text="Creates a signed token, for clients that accept no other form. It always expires.",
    )
    created_by = models.CharField(max_length=150, blank=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField("expires", null=True, blank=True, help_text="In UTC. Empty: never.")
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        verbose_name = "personal key"

    def __str__(self) -> str:
        return f"{self.name} ({self.user.get_username()})"

    @property
    def event_target(self) -> str:
        """The name in operator events."""
        return f"personal_key:{self.user.get_username()}/{self.pk}"
