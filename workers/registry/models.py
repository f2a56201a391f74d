"""Pools, and the workers that an operator has registered in them."""

from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models.functions import Now

from runtime_jobs.identifiers import ID_LENGTH, new_worker_id
from runtime_jobs.models.tenants import ISOLATION_CHOICES, slug


class WorkerState(models.TextChoices):
    """Whether a worker gets jobs."""

    ACTIVE = "active"
    DRAINING = "draining"  # finishes its jobs, gets no new ones
    MAINTENANCE = "maintenance"  # as draining, with a note
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


class WorkerQuerySet(models.QuerySet["Worker"]):
    """Queries of workers."""

    def locked(self) -> "WorkerQuerySet":
        return self.select_for_update(no_key=True, of=("self",))


class Worker(models.Model):
    """A machine that may claim jobs, with the labels and capabilities that an operator has registered."""

    worker_id = models.CharField(max_length=ID_LENGTH, unique=True, default=new_worker_id, editable=False)
    slug = models.CharField(max_length=63, unique=True, validators=[slug])
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
    # The offer of its last claim; null before the first one. Pending reasons name what no worker offers.
    offered = ArrayField(models.CharField(max_length=63), null=True, editable=False)
    offered_types = ArrayField(models.CharField(max_length=50), null=True, editable=False)
    offered_isolation = models.CharField(max_length=20, null=True, editable=False, choices=ISOLATION_CHOICES)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    objects = WorkerQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(name="worker_capacity_positive", condition=models.Q(capacity__gte=1)),
        ]

    def __str__(self) -> str:
        return self.slug

    @property
    def may_claim(self) -> bool:
        return self.state == WorkerState.ACTIVE
