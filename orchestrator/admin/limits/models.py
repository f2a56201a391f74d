"""Models that only the pages of limits use."""

from runtime_jobs.models import Organization


class QuotaOverview(Organization):
    """The same rows as organizations, for the page of quotas in the admin."""

    class Meta:
        proxy = True
        default_permissions = ("view",)
        verbose_name = "quota"
