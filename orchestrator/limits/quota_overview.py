"""The model of the admin's page of quotas. It is not in the admin's folder: processes without pages load models."""

from runtime_jobs.models import Organization


class QuotaOverview(Organization):
    """The same rows as organizations, for the page of quotas in the admin."""

    class Meta:
        proxy = True
        default_permissions = ("view",)
        verbose_name = "quota"
