"""Requests and responses of reports, testbeds and metrics. `wire.py` builds the responses."""

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers

from orchestrator.http.api.fields import StrictBooleanField, StrictCharField
from orchestrator.protocols.bencher.fields import LenientSerializer, NameField, SlugTextField
from orchestrator.protocols.bencher.specs.serializers import SpecDocument
from orchestrator.results.adapters import AdapterName
from runtime_jobs.models.tenants import Visibility


class ResourceDocument(serializers.Serializer):
    """A named resource of a project."""

    uuid = serializers.UUIDField()
    project = serializers.UUIDField()
    name = serializers.CharField()
    slug = serializers.CharField()
    created = serializers.DateTimeField()
    modified = serializers.DateTimeField()
    archived = serializers.DateTimeField(allow_null=True)


@extend_schema_serializer(component_name="BencherBenchmark")
class BenchmarkDocument(ResourceDocument):
    """A benchmark."""


@extend_schema_serializer(component_name="BencherMeasure")
class MeasureDocument(ResourceDocument):
    """A measure with its unit."""

    units = serializers.CharField()


@extend_schema_serializer(component_name="BencherTestbed")
class TestbedDocument(ResourceDocument):
    """A testbed with its hardware spec."""

    __test__ = False  # a class whose name begins so is a test for pytest

    spec = SpecDocument(allow_null=True)


class NewTestbedInput(LenientSerializer):
    """POST /v0/projects/{project}/testbeds."""

    name = NameField()
    slug = SlugTextField(required=False, allow_null=True, help_text="Default: the slug of the name.")
    spec = StrictCharField(required=False, allow_null=True, max_length=64, help_text="UUID or slug.")


class TestbedChangeInput(LenientSerializer):
    """PATCH /v0/projects/{project}/testbeds/{testbed}. Absent fields change nothing; `spec: null` removes the spec."""

    __test__ = False  # as above

    name = NameField(required=False, allow_null=True)
    slug = SlugTextField(required=False, allow_null=True)
    spec = StrictCharField(required=False, allow_null=True, max_length=64, help_text="UUID or slug.")
    archived = StrictBooleanField(required=False, allow_null=True)


@extend_schema_serializer(component_name="BencherVersion")
class VersionDocument(serializers.Serializer):
    """The commit of a report."""

    number = serializers.IntegerField()
    hash = serializers.CharField()


@extend_schema_serializer(component_name="BencherHead")
class HeadDocument(serializers.Serializer):
    """The head of a branch. There is one, with the id of the branch."""

    uuid = serializers.UUIDField()
    start_point = serializers.JSONField(allow_null=True)
    version = VersionDocument(allow_null=True)
    created = serializers.DateTimeField()
    replaced = serializers.DateTimeField(allow_null=True)


@extend_schema_serializer(component_name="BencherBranch")
class BranchDocument(ResourceDocument):
    """A branch at the commit of a report."""

    head = HeadDocument()


@extend_schema_serializer(component_name="BencherProject")
class ProjectDocument(serializers.Serializer):
    """A project."""

    uuid = serializers.UUIDField()
    organization = serializers.UUIDField()
    name = serializers.CharField()
    slug = serializers.CharField()
    url = serializers.CharField(allow_null=True)
    visibility = serializers.ChoiceField(choices=Visibility.values)
    created = serializers.DateTimeField()
    modified = serializers.DateTimeField()
    claimed = serializers.DateTimeField(allow_null=True)


@extend_schema_serializer(component_name="BencherMetricValue")
class MetricValueDocument(serializers.Serializer):
    """The value of a metric, and its interval."""

    uuid = serializers.UUIDField()
    value = serializers.FloatField()
    lower_value = serializers.FloatField(allow_null=True)
    upper_value = serializers.FloatField(allow_null=True)


@extend_schema_serializer(component_name="BencherReportMeasure")
class ReportMeasureDocument(serializers.Serializer):
    """A measure of a benchmark in a report. There are no thresholds, so `threshold` and `boundary` are null."""

    measure = MeasureDocument()
    metric = MetricValueDocument()
    threshold = serializers.JSONField(allow_null=True)
    boundary = serializers.JSONField(allow_null=True)


@extend_schema_serializer(component_name="BencherReportResult")
class BenchmarkResultDocument(serializers.Serializer):
    """A benchmark in an iteration of a report."""

    iteration = serializers.IntegerField()
    benchmark = BenchmarkDocument()
    measures = ReportMeasureDocument(many=True)


class IterationCounts(serializers.Serializer):
    """Numbers of one iteration."""

    benchmarks = serializers.IntegerField()
    measures = serializers.IntegerField()


class AlertCounts(serializers.Serializer):
    """Numbers of alerts. There are no thresholds, so both are 0."""

    total = serializers.IntegerField()
    active = serializers.IntegerField()


class ReportCounts(serializers.Serializer):
    """Numbers of a report, one entry for each iteration."""

    results = IterationCounts(many=True)
    alerts = AlertCounts()


@extend_schema_serializer(component_name="BencherReport")
class ReportDocument(serializers.Serializer):
    """A report. Its results are there when they have been read: see the job."""

    uuid = serializers.UUIDField()
    user = serializers.JSONField(allow_null=True)
    project = ProjectDocument()
    branch = BranchDocument()
    testbed = TestbedDocument()
    start_time = serializers.DateTimeField()
    end_time = serializers.DateTimeField()
    adapter = serializers.ChoiceField(choices=AdapterName.values)
    results = serializers.ListField(
        child=BenchmarkResultDocument(many=True),
        required=False,
        help_text="One list for each iteration. Absent in lists without `expand=true`.",
    )
    alerts = serializers.ListField(child=serializers.JSONField(), required=False)
    counts = ReportCounts()
    job = serializers.UUIDField(required=False)
    created = serializers.DateTimeField()


class PerfVersionDocument(serializers.Serializer):
    """The commit of a metric, if the report named it."""

    number = serializers.IntegerField()
    hash = serializers.CharField(allow_null=True)


class PerfPointDocument(serializers.Serializer):
    """A metric of a series."""

    report = serializers.UUIDField()
    iteration = serializers.IntegerField()
    start_time = serializers.DateTimeField()
    end_time = serializers.DateTimeField()
    version = PerfVersionDocument()
    metric = MetricValueDocument()
    threshold = serializers.JSONField(allow_null=True)
    boundary = serializers.JSONField(allow_null=True)
    alert = serializers.JSONField(allow_null=True)


class PerfSeriesDocument(serializers.Serializer):
    """The metrics of one branch, testbed, benchmark and measure."""

    branch = BranchDocument()
    testbed = TestbedDocument()
    benchmark = BenchmarkDocument()
    measure = MeasureDocument()
    metrics = PerfPointDocument(many=True)


@extend_schema_serializer(component_name="BencherPerf")
class PerfDocument(serializers.Serializer):
    """The history of metrics."""

    project = ProjectDocument()
    start_time = serializers.DateTimeField(allow_null=True)
    end_time = serializers.DateTimeField(allow_null=True)
    results = PerfSeriesDocument(many=True)


@extend_schema_serializer(component_name="BencherMetric")
class MetricDocument(serializers.Serializer):
    """One metric of a report."""

    uuid = serializers.UUIDField()
    report = serializers.UUIDField()
    iteration = serializers.IntegerField()
    start_time = serializers.DateTimeField()
    end_time = serializers.DateTimeField()
    branch = BranchDocument()
    testbed = TestbedDocument()
    benchmark = BenchmarkDocument()
    measure = MeasureDocument()
    metric = MetricValueDocument()
    threshold = serializers.JSONField(allow_null=True)
    boundary = serializers.JSONField(allow_null=True)
    alert = serializers.JSONField(allow_null=True)
