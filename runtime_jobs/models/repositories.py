"""Git repositories of projects, of which the installation keeps mirrors."""

from django.db import models
from django.db.models.functions import Lower, Now

from runtime_jobs.models.tenants import Project

MAX_ORIGIN_LENGTH = 1024


class Repository(models.Model):
    """A repository that workflows of a project use. The wire of shithub names it by its number (`repo_id`).

    Attributes:
        project: The project whose jobs may check it out.
        owner: The first part of its name; `/{owner}/{name}.git` is its address for git.
        name: The second part. Upper and lower case are equal in both.
        is_private: Whether git asks for credentials. Without this everybody may read it.
        next_run_index: The number of its next workflow run, from 1.
        origin: The https URL that the mirror follows, or the absolute path of a bare repository of this machine.
        sealed_credential: `user:password` for the origin, sealed; None: it is public.
        mirrored_at: When the mirror was last equal to the origin; None: it has not been equal to this origin yet.
    """

    id = models.BigAutoField(primary_key=True)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="git_repositories")
    owner = models.CharField(max_length=100)
    name = models.CharField(max_length=100)
    is_private = models.BooleanField("private", default=False, help_text="Git asks for credentials.")
    next_run_index = models.PositiveBigIntegerField(default=1, editable=False)
    origin = models.CharField(
        max_length=MAX_ORIGIN_LENGTH, help_text="https://host/owner/name, or the path of a bare repository."
    )
    sealed_credential = models.BinaryField(null=True, editable=False)
    mirrored_at = models.DateTimeField("mirrored", null=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        db_table = "repositories"
        verbose_name_plural = "repositories"
        constraints = [
            models.UniqueConstraint(Lower("owner"), Lower("name"), name="one_repository_per_name"),
            models.CheckConstraint(condition=models.Q(next_run_index__gte=1), name="repository_run_index_from_1"),
        ]

    def __str__(self) -> str:
        return self.full_name

    @property
    def full_name(self) -> str:
        """Return `owner/name`."""
        return f"{self.owner}/{self.name}"
