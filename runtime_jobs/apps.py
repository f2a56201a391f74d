from django.apps import AppConfig


class RuntimeJobsConfig(AppConfig):
    name = "runtime_jobs"
    verbose_name = "Jobs"
