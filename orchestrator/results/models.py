"""Reports of benchmark runs, and what they measure: branches, testbeds, benchmarks, measures, metrics."""

from typing import Any

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from orchestrator.results.adapters.base import AdapterName, Average
from orchestrator.results.folding import Fold
from runtime_jobs.identifiers import new_uuid
from runtime_jobs.models import Job, Project
from runtime_jobs.resource_names import MAX_SLUG_LENGTH
from workers.models import HardwareSpec

MAX_NAME_LENGTH = 64
MAX_BRANCH_NAME_LENGTH = 256
MAX_BENCHMARK_NAME_LENGTH = 1024


class ProjectResource(models.Model):
    """The columns that the named resources of a project share. Name and slug are unique within the project."""

    id = models.BigAutoField(primary_key=True)
    uuid = models.UUIDField(unique=True, default=new_uuid, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+", db_index=False)
    slug = models.CharField(max_length=MAX_SLUG_LENGTH)
    created_at = models.DateTimeField(db_default=Now())
    modified_at = models.DateTimeField(db_default=Now())
    archived_at = models.DateTimeField(null=True)

    name: Any

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return str(self.name)


class Branch(ProjectResource):
    """The branch of a repository whose benchmarks a report has. Only its name counts; it has no start point."""

    name = models.CharField(max_length=MAX_BRANCH_NAME_LENGTH)

    class Meta:
        app_label = "orchestrator"
        db_table = "result_branches"
        verbose_name_plural = "branches"
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="one_branch_per_name"),
            models.UniqueConstraint(fields=["project", "slug"], name="one_branch_per_slug"),
        ]


class Testbed(ProjectResource):
    """The machine or environment in which benchmarks run.

    Attributes:
        spec: The hardware spec of later jobs that name this testbed and no spec.
    """

    __test__ = False  # a class whose name begins so is a test for pytest

    name = models.CharField(max_length=MAX_NAME_LENGTH)
    spec = models.ForeignKey(HardwareSpec, on_delete=models.SET_NULL, related_name="testbeds", null=True)

    class Meta:
        app_label = "orchestrator"
        db_table = "result_testbeds"
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="one_testbed_per_name"),
            models.UniqueConstraint(fields=["project", "slug"], name="one_testbed_per_slug"),
        ]


class Benchmark(ProjectResource):
    """A benchmark by the name that its harness prints."""

    name = models.CharField(max_length=MAX_BENCHMARK_NAME_LENGTH)

    class Meta:
        app_label = "orchestrator"
        db_table = "result_benchmarks"
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="one_benchmark_per_name"),
            models.UniqueConstraint(fields=["project", "slug"], name="one_benchmark_per_slug"),
        ]


class Measure(ProjectResource):
    """A quantity that benchmarks report, with its unit, such as latency in nanoseconds."""

    name = models.CharField(max_length=MAX_NAME_LENGTH)
    units = models.CharField(max_length=MAX_NAME_LENGTH)

    class Meta:
        app_label = "orchestrator"
        db_table = "result_measures"
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="one_measure_per_name"),
            models.UniqueConstraint(fields=["project", "slug"], name="one_measure_per_slug"),
        ]


class Report(models.Model):
    """A benchmark run of a project: the request. `ReportResult` has the outcome, `Metric` the values.

    A run without a job has its results in the request. A run with a job gets them when the job ends.

    Attributes:
        job: The job that runs the benchmarks, or None. The report and the id stay when retention deletes the job.
        spec: The hardware spec of the job when the report was created.
        average: The average that the harness reports, if it has several. Empty: the default of the adapter.
        fold: How several iterations become one. Empty: each iteration stays.
    """

    id = models.BigAutoField(primary_key=True)
    uuid = models.UUIDField(unique=True, default=new_uuid, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="reports", db_index=False)
    job = models.OneToOneField(
        Job,
        to_field="job_ulid",
        db_column="job_ulid",
        on_delete=models.DO_NOTHING,
        related_name="report",
        null=True,
        db_constraint=False,  # retention deletes jobs and keeps reports
    )
    branch = models.ForeignKey(Branch, on_delete=models.RESTRICT, related_name="reports")
    testbed = models.ForeignKey(Testbed, on_delete=models.RESTRICT, related_name="reports")
    spec = models.ForeignKey(HardwareSpec, on_delete=models.SET_NULL, related_name="reports", null=True)
    git_hash = models.CharField(max_length=40, blank=True)
    adapter = models.CharField(max_length=30, choices=AdapterName.choices, default=AdapterName.MAGIC)
    average = models.CharField(max_length=10, choices=Average.choices, blank=True)
    fold = models.CharField(max_length=10, choices=Fold.choices, blank=True)
    start_time = models.DateTimeField()
    end_time = models.DateTimeField()
    idempotency_key = models.UUIDField(null=True)
    created_by = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        app_label = "orchestrator"
        db_table = "result_reports"
        constraints = [
            models.UniqueConstraint(
                fields=["project", "idempotency_key"],
                condition=Q(idempotency_key__isnull=False),
                name="one_report_per_idempotency_key",
            )
        ]
        # The reports of a project, newest first.
        indexes = [models.Index(fields=["project", "-id"], name="reports_of_project")]

    def __str__(self) -> str:
        return str(self.uuid)


class ReportResult(models.Model):
    """The outcome of reading the results of a report, stored once with the metrics and the end of the job.

    Attributes:
        start_time: The start of the run, or its backdate. None if the results could not be read.
        end_time: The end of the run, likewise.
        duration_seconds: The time between the start of the execution and its result.
        error: The reason why the results could not be read, or empty.
    """

    report = models.OneToOneField(Report, on_delete=models.CASCADE, primary_key=True, related_name="result")
    start_time = models.DateTimeField(null=True)
    end_time = models.DateTimeField(null=True)
    duration_seconds = models.PositiveIntegerField(null=True)
    metric_count = models.PositiveIntegerField(default=0)
    error = models.TextField(blank=True)
    read_at = models.DateTimeField(db_default=Now())

    WRITTEN_WITH_CHANGES = True

    class Meta:
        app_label = "orchestrator"
        db_table = "result_report_results"

    def __str__(self) -> str:
        return f"result of {self.report_id}"


class Metric(models.Model):
    """The value of one measure for one benchmark in one iteration of a report."""

    id = models.BigAutoField(primary_key=True)
    uuid = models.UUIDField(unique=True, default=new_uuid, editable=False)
    report = models.ForeignKey(Report, on_delete=models.CASCADE, related_name="metrics", db_index=False)
    iteration = models.PositiveIntegerField()
    benchmark = models.ForeignKey(Benchmark, on_delete=models.RESTRICT, related_name="metrics", db_index=False)
    measure = models.ForeignKey(Measure, on_delete=models.RESTRICT, related_name="metrics", db_index=False)
    value = models.FloatField()
    lower_value = models.FloatField(null=True)
    upper_value = models.FloatField(null=True)

    WRITTEN_WITH_CHANGES = True

    class Meta:
        app_label = "orchestrator"
        db_table = "result_metrics"
        constraints = [
            models.UniqueConstraint(
                fields=["report", "iteration", "benchmark", "measure"], name="one_metric_per_iteration"
            )
        ]
        # The history of a benchmark.
        indexes = [models.Index(fields=["benchmark", "measure", "-report"], name="metrics_of_benchmark")]

    def __str__(self) -> str:
        return f"{self.value}"
