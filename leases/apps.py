"""Configuration of the `leases` application."""

from django.apps import AppConfig
from django.db.models.signals import post_save


class LeasesConfig(AppConfig):
    """Registers the system checks and the shares of new pools."""

    name = "leases"
    verbose_name = "Leases"

    def ready(self) -> None:
        from leases import checks  # noqa: F401, PLC0415 registers itself, once the settings are loaded
        from leases.scheduling import fair_share  # noqa: PLC0415 imports models

        post_save.connect(fair_share.share_new_pool, sender="workers.Pool")
