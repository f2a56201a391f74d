"""Secrets and variables of an organization or of one of its repositories, and what a claim has handed out of them."""

import re
from typing import Final

from django.db import models
from django.db.models import Q
from django.db.models.functions import Upper

from runtime_jobs.models.jobs import Job
from runtime_jobs.models.repositories import Repository
from runtime_jobs.models.tenants import Organization

MAX_NAME_LENGTH: Final = 100
NAME_PATTERN: Final = f"[A-Za-z_][A-Za-z0-9_]{{0,{MAX_NAME_LENGTH - 1}}}"
NAME: Final = re.compile(NAME_PATTERN)
MAX_VALUE_BYTES: Final = 48 << 10
MAX_PER_SCOPE: Final = 100  # names of one kind, of one organization or repository


class ScopedValue(models.Model):
    """A named value of an organization, or of one repository, whose values win over those of its organization.

    Names are equal whatever the case of their letters. The case of the last change is kept.
    """

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+", db_index=False)
    repository = models.ForeignKey(
        Repository,
        on_delete=models.CASCADE,
        related_name="+",
        null=True,
        blank=True,
        db_index=False,
        help_text="Empty: for all repositories of the organization.",
    )
    name = models.CharField(
        max_length=MAX_NAME_LENGTH, help_text="Letters, digits and underscores. The case of letters does not matter."
    )
    updated_by = models.CharField(max_length=200)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.scope_text}/{self.name}"

    @property
    def event_target(self) -> str:
        """The name in operator events."""
        return f"{self._meta.model_name}:{self}"

    @property
    def scope_text(self) -> str:
        """The scope for people: the organization, or the organization and the repository."""
        if self.repository is None:
            return self.organization.slug
        return f"{self.organization.slug}/{self.repository.owner}/{self.repository.name}"


class Secret(ScopedValue):
    """A value that jobs receive and nothing displays. It is sealed with its scope and name: see `sealing_context`."""

    sealed = models.BinaryField(editable=False)

    class Meta:
        db_table = "runtime_secrets"
        constraints = [
            models.UniqueConstraint(
                "organization", Upper("name"), condition=Q(repository=None), name="one_secret_per_organization_name"
            ),
            models.UniqueConstraint(
                "repository",
                Upper("name"),
                condition=Q(repository__isnull=False),
                name="one_secret_per_repository_name",
            ),
        ]

    @property
    def sealing_context(self) -> str:
        """The place of the value, with which it is sealed."""
        if self.repository_id is None:
            return f"organization/{self.organization_id}/{self.name.upper()}"
        return f"repository/{self.repository_id}/{self.name.upper()}"


class Variable(ScopedValue):
    """A value that jobs receive, and that the API and the admin display."""

    value = models.TextField(help_text="At most 48 KiB. It may not contain ${{.")

    class Meta:
        db_table = "runtime_variables"
        constraints = [
            models.UniqueConstraint(
                "organization", Upper("name"), condition=Q(repository=None), name="one_variable_per_organization_name"
            ),
            models.UniqueConstraint(
                "repository",
                Upper("name"),
                condition=Q(repository__isnull=False),
                name="one_variable_per_repository_name",
            ),
        ]


class MaskSnapshot(models.Model):
    """The values that the last claim of a job has handed out, sealed, and masked in its log.

    So a secret that is changed or deleted while the job runs is masked all the same.
    """

    job = models.OneToOneField(
        Job, to_field="job_ulid", db_column="job_ulid", on_delete=models.CASCADE, related_name="mask_snapshot"
    )
    fence = models.BigIntegerField(help_text="Of the claim.")
    sealed = models.BinaryField()
    created_at = models.DateTimeField()

    class Meta:
        db_table = "runtime_mask_snapshots"

    def __str__(self) -> str:
        return f"masks of {self.job_id}"

    @property
    def sealing_context(self) -> str:
        """The place of the values, with which they are sealed."""
        return f"job/{self.job_id}/{self.fence}"
