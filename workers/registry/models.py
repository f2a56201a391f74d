"""Pools, the workers that an operator has registered in them, and the hardware specs that workers provide."""

from datetime import datetime
from uuid import UUID

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models.functions import Now
from django.dispatch import Signal

from runtime_jobs.identifiers import ID_LENGTH, new_uuid, new_worker_id, uuid_of
from runtime_jobs.models.tenants import ISOLATION_CHOICES, JobTrace, slug
from runtime_jobs.specs.oci import spec_label


class WorkerState(models.TextChoices):
    """Whether a worker gets jobs."""

    ACTIVE = "active"
    DRAINING = "draining"  # finishes its jobs, gets no new ones
    MAINTENANCE = "maintenance"  # as draining, with a note
    ARCHIVED = "archived"  # a runner whose key is refused until it is restored
    REVOKED = "revoked"  # for good; its token no longer counts


class PoolPolicy(models.TextChoices):
    """Order among jobs of equal priority in a pool."""

    FIFO = "fifo"  # the oldest job first, of any organization
    FAIR = "fair"  # organizations take turns by weight; within one the oldest job first


def registered_capabilities() -> list[str]:
    """Return the capabilities that a new worker may offer."""
    return ["linux", "ptrace", "namespaces", "egress", "exec_control"]


class Pool(models.Model):
    """A set of workers with the same purpose. Jobs accept `least_isolation` unless their project sets another."""

    slug = models.CharField(max_length=63, unique=True, validators=[slug])
    description = models.CharField(max_length=200, blank=True)
    least_isolation = models.CharField(
        "minimum isolation",
        max_length=20,
        default="namespaces",
        choices=ISOLATION_CHOICES,
        help_text="Weakest sandbox that the pool's jobs accept, unless their project sets another.",
    )
    trace = models.CharField(
        max_length=10,
        blank=True,
        choices=JobTrace.choices,
        help_text="What is recorded of jobs that do not say it, and whose project does not. full: processes, network "
        "and files. network: no files. none: nothing. Empty: as the job type says (full for runtime, else none).",
    )
    policy = models.CharField(
        max_length=10,
        choices=PoolPolicy.choices,
        default=PoolPolicy.FAIR,
        editable=False,
        help_text="Order among jobs of equal priority. fair: organizations share by weight, so a backlog of one "
        "delays no other. fifo: the oldest job first.",
    )
    aging = models.BooleanField(
        default=True,
        db_default=True,
        help_text="Waiting raises the priority of a job (setting AGING_SECONDS). "
        "Off: strict order by priority; a job of low priority may starve.",
    )
    trusts_lease_ids = models.BooleanField(
        "allow unauthenticated runners",
        default=False,
        help_text="Accepts the id of a lease instead of a token. The runner of Delta CI sends no credentials: every "
        "client that knows a lease id of this pool may report on its job.",
    )

    def __str__(self) -> str:
        return self.slug


class SpecOS(models.TextChoices):
    """Operating system of a hardware spec."""

    LINUX = "linux"
    MACOS = "macos", "macOS"
    WINDOWS = "windows"


class SpecArchitecture(models.TextChoices):
    """Processor architecture of a hardware spec."""

    X86_64 = "x86_64", "x86_64"
    AARCH64 = "aarch64", "aarch64"


class SpecSandbox(models.TextChoices):
    """Sandbox in which the runner executes the jobs of a hardware spec."""

    FIRECRACKER = "firecracker"


class HardwareSpec(models.Model):
    """The hardware that a job asks for (document 002). Workers that are associated with it run its jobs.

    Attributes:
        memory: In bytes.
        disk: In bytes.
        fallback_at: Since when the spec is the default of jobs that name none. At most one spec has a value.
    """

    uuid = models.UUIDField(unique=True, default=new_uuid, editable=False)
    name = models.CharField(max_length=64)
    slug = models.CharField(max_length=64, unique=True)
    os = models.CharField("operating system", max_length=10, choices=SpecOS.choices)
    architecture = models.CharField(max_length=10, choices=SpecArchitecture.choices)
    sandbox = models.CharField(
        max_length=20,
        choices=SpecSandbox.choices,
        null=True,
        blank=True,
        help_text="Sandbox of the jobs. firecracker: they need the isolation microvm. Empty: they need none.",
    )
    cpu = models.PositiveIntegerField("CPUs", validators=[MinValueValidator(1)])
    memory = models.PositiveBigIntegerField("memory (bytes)", validators=[MinValueValidator(1)])
    disk = models.PositiveBigIntegerField("disk (bytes)", validators=[MinValueValidator(1)])
    network = models.BooleanField(default=False, help_text="Whether jobs have network access. The runner enforces it.")
    fallback_at = models.DateTimeField(null=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    modified_at = models.DateTimeField(db_default=Now(), editable=False)
    archived_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="hardwarespec_amounts_positive", condition=models.Q(cpu__gte=1, memory__gte=1, disk__gte=1)
            ),
            models.UniqueConstraint(
                models.ExpressionWrapper(
                    models.Q(fallback_at__isnull=False),
                    output_field=models.BooleanField(),
                ),
                name="hardwarespec_one_fallback",
                condition=models.Q(fallback_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return self.slug

    @property
    def event_target(self) -> str:
        """The name in operator events."""
        return f"spec:{self.uuid}"

    @property
    def label(self) -> str:
        """The requirement of a job that asks for this spec, and the label of a worker that provides it."""
        return spec_label(self.uuid)

    @property
    def least_isolation(self) -> str:
        """The minimum isolation of the jobs that ask for this spec."""
        return "microvm" if self.sandbox == SpecSandbox.FIRECRACKER else "none"


# Sent in the transaction that archives a spec, with the argument `spec`. Tables that refer to a spec as a default of
# later jobs, such as testbeds, clear the reference.
spec_archived = Signal()


class WorkerQuerySet(models.QuerySet["Worker"]):
    """Queries of workers."""

    def locked(self) -> "WorkerQuerySet":
        return self.select_for_update(no_key=True, of=("self",))

    def runners(self) -> "WorkerQuerySet":
        """Return the workers of the pool for clients of the Bencher protocol."""
        return self.filter(pool__slug=settings.RUNNER_POOL)


class Worker(models.Model):
    """A machine that may claim jobs, with the labels and capabilities that an operator has registered.

    A worker of the pool `RUNNER_POOL` is a runner of the Bencher protocol: it has a name, can be archived, and its
    token is a runner key.
    """

    worker_id = models.CharField(max_length=ID_LENGTH, unique=True, default=new_worker_id, editable=False)
    # Not longer, although slugs of Bencher's API may be: processes of the release before have prepared statements that
    # return this column, and another type would make each of them fail.
    slug = models.CharField(max_length=63, unique=True, validators=[slug])
    name = models.CharField(
        max_length=64, blank=True, default="", db_default="", help_text="Name of a runner. Empty: the slug."
    )
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="workers")
    digest = models.CharField(max_length=64, unique=True, editable=False)
    certificate_subject = models.CharField(
        max_length=512,
        null=True,
        blank=True,
        unique=True,
        help_text="Subject that a trusted proxy sends after it has verified the worker's client certificate.",
    )
    capacity = models.PositiveIntegerField(
        default=1,
        validators=[MinValueValidator(1), MaxValueValidator(256)],
        help_text="Slots: the number of jobs that run at the same time.",
    )
    labels = ArrayField(models.CharField(max_length=63), default=list, blank=True)
    capabilities = ArrayField(
        models.CharField(max_length=63),
        default=registered_capabilities,
        blank=True,
        help_text="Capabilities that the worker may offer. A job runs only where all its requirements are offered.",
    )
    state = models.CharField(max_length=20, choices=WorkerState.choices, default=WorkerState.ACTIVE, editable=False)
    note = models.CharField(max_length=200, blank=True, editable=False)
    session = models.CharField(
        max_length=26, blank=True, editable=False, help_text="ULID of the worker's newest process."
    )
    last_seen_at = models.DateTimeField(null=True, editable=False)
    agent_version = models.CharField(
        max_length=64, blank=True, default="", db_default="", editable=False, help_text="As the runner reported it."
    )
    # The offer of its last claim; null before the first one. Pending reasons name what no worker offers.
    offered = ArrayField(models.CharField(max_length=63), null=True, editable=False)
    offered_types = ArrayField(models.CharField(max_length=50), null=True, editable=False)
    offered_isolation = models.CharField(max_length=20, null=True, editable=False, choices=ISOLATION_CHOICES)
    leases_from = models.BigIntegerField(
        default=0, db_default=0, editable=False, help_text="No lease with a lower id counts. Claims raise it."
    )
    unready_reason = models.CharField(
        max_length=500,
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="Why the worker does not claim jobs, as it reported. Its next claim clears it.",
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    modified_at = models.DateTimeField(db_default=Now(), editable=False)
    archived_at = models.DateTimeField(null=True, editable=False)
    specs = models.ManyToManyField(HardwareSpec, through="WorkerSpec", related_name="workers")

    objects = WorkerQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(name="worker_capacity_positive", condition=models.Q(capacity__gte=1)),
            # A claim reads the state alone.
            models.CheckConstraint(
                name="worker_archived_state",
                condition=models.Q(archived_at__isnull=True) & ~models.Q(state="archived")
                | models.Q(archived_at__isnull=False, state__in=["archived", "revoked"]),
            ),
        ]

    def __str__(self) -> str:
        return self.slug

    @property
    def is_runner(self) -> bool:
        """Whether the worker is in the pool for clients of the Bencher protocol."""
        return self.pool.slug == settings.RUNNER_POOL

    @property
    def may_claim(self) -> bool:
        return self.state == WorkerState.ACTIVE

    @property
    def uuid(self) -> UUID:
        """The bits of `worker_id`, by which the Bencher protocol names a runner."""
        return uuid_of(self.worker_id)

    @property
    def display_name(self) -> str:
        """The name, else the slug."""
        return self.name or self.slug


class RunnerManager(models.Manager["Runner"]):
    """Selects the workers that are runners."""

    def get_queryset(self) -> models.QuerySet["Runner"]:
        return super().get_queryset().filter(pool__slug=settings.RUNNER_POOL)


class Runner(Worker):
    """A worker of the pool `RUNNER_POOL`, for the page of its own in the admin."""

    objects = RunnerManager()  # type: ignore[assignment, misc] # of the proxy, not of all workers

    class Meta:
        proxy = True
        default_permissions = ("view",)
        verbose_name = "runner"


class WorkerSpec(models.Model):
    """A hardware spec that a worker provides. The operator who associates both vouches for the machine."""

    worker = models.ForeignKey(Worker, on_delete=models.CASCADE, related_name="worker_specs")
    spec = models.ForeignKey(HardwareSpec, on_delete=models.PROTECT, related_name="worker_specs")

    class Meta:
        verbose_name = "association"
        constraints = [models.UniqueConstraint(fields=["worker", "spec"], name="workerspec_once")]

    def __str__(self) -> str:
        return f"{self.worker} provides {self.spec}"


class RunnerChannels(models.Model):
    """The open channels of runners in one process of the server, as it reports them every few seconds.

    Attributes:
        process: The name of the process, which is unique.
        channels: For each runner with a channel, by its key: the number of its channels by state.
    """

    process = models.CharField(max_length=100, primary_key=True)
    channels = models.JSONField(default=dict)
    expires_at = models.DateTimeField()

    class Meta:
        db_table = "runner_channels"

    def __str__(self) -> str:
        return self.process


class ActionsRunner(models.Model):
    """A runner of workflow jobs (document 003), beside its row as a worker.

    Attributes:
        name: The name that an operator gave it.
        labels: The labels of its last heartbeat, at first those of its registration.
        isolation: The isolation that an operator vouches for.
        host_name: The machine, as the runner reported it.
        version: The version of the runner, as the runner reported it.
    """

    worker = models.OneToOneField(Worker, on_delete=models.CASCADE, primary_key=True, related_name="actions_runner")
    name = models.CharField(max_length=100, unique=True)
    labels = ArrayField(models.CharField(max_length=100), default=list, blank=True)
    isolation = models.CharField(max_length=20, choices=ISOLATION_CHOICES, default="namespaces")
    host_name = models.CharField(max_length=255, blank=True, default="", editable=False)
    version = models.CharField(max_length=255, blank=True, default="", editable=False)

    class Meta:
        db_table = "actions_runners"
        verbose_name = "workflow runner"

    def __str__(self) -> str:
        return self.name

    @property
    def last_seen_at(self) -> datetime | None:
        """The time of its last heartbeat."""
        return self.worker.last_seen_at


class RegistrationToken(models.Model):
    """A token with which a runner of workflow jobs sends heartbeats. A runner has several while one is rotated.

    Attributes:
        digest: SHA-256 of the 32 bytes that the token spells in hexadecimal digits.
    """

    id = models.BigAutoField(primary_key=True)
    runner = models.ForeignKey(ActionsRunner, on_delete=models.CASCADE, related_name="tokens")
    digest = models.BinaryField(max_length=32, unique=True, editable=False)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "actions_registration_tokens"

    def __str__(self) -> str:
        return f"token {self.pk} of {self.runner_id}"

    def state_at(self, now: datetime) -> str:
        """Return whether the token is accepted: `valid`, `expired` or `revoked`."""
        if self.revoked_at is not None:
            return "revoked"
        return "valid" if self.expires_at is None or now < self.expires_at else "expired"
