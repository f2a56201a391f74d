from django.apps import AppConfig
from django.db.models.signals import post_migrate, post_save


class LeasesConfig(AppConfig):
    name = "leases"
    verbose_name = "Leases"

    def ready(self) -> None:
        from leases import checks  # noqa: F401, PLC0415 registers itself, once the settings are there
        from leases.scheduling import fair_share, lanes  # noqa: PLC0415 registers itself, once the settings are there

        post_migrate.connect(lambda **_: lanes.install(), sender=self, weak=False)
        post_save.connect(fair_share.share_new_pool, sender="workers.Pool")
