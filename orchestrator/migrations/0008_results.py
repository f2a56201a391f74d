"""Create the tables of reports, of what they name, and of their metrics. The former release uses none of them."""

import django.db.models.deletion
import django.db.models.functions.datetime
import runtime_jobs.identifiers
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('orchestrator', '0007_request_windows'),
        ('runtime_jobs', '0008_usage'),
        ('workers', '0005_runners'),
    ]

    operations = [
        migrations.CreateModel(
            name='Report',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('uuid', models.UUIDField(default=runtime_jobs.identifiers.new_uuid, editable=False, unique=True)),
                ('git_hash', models.CharField(blank=True, max_length=40)),
                ('adapter', models.CharField(choices=[('magic', 'Magic'), ('json', 'Json'), ('rust', 'Rust'), ('rust_bench', 'Rust Bench'), ('rust_criterion', 'Rust Criterion'), ('cpp', 'Cpp'), ('cpp_google', 'Cpp Google'), ('go', 'Go'), ('go_bench', 'Go Bench'), ('python', 'Python'), ('python_pytest', 'Python Pytest'), ('shell', 'Shell'), ('shell_hyperfine', 'Shell Hyperfine')], default='magic', max_length=30)),
                ('average', models.CharField(blank=True, choices=[('mean', 'Mean'), ('median', 'Median')], max_length=10)),
                ('fold', models.CharField(blank=True, choices=[('min', 'Min'), ('max', 'Max'), ('mean', 'Mean'), ('median', 'Median')], max_length=10)),
                ('start_time', models.DateTimeField()),
                ('end_time', models.DateTimeField()),
                ('idempotency_key', models.UUIDField(null=True)),
                ('created_by', models.CharField(blank=True, max_length=200)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                'db_table': 'result_reports',
            },
        ),
        migrations.CreateModel(
            name='Benchmark',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('uuid', models.UUIDField(default=runtime_jobs.identifiers.new_uuid, editable=False, unique=True)),
                ('slug', models.CharField(max_length=64)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('modified_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('archived_at', models.DateTimeField(null=True)),
                ('name', models.CharField(max_length=1024)),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='runtime_jobs.project')),
            ],
            options={
                'db_table': 'result_benchmarks',
            },
        ),
        migrations.CreateModel(
            name='Branch',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('uuid', models.UUIDField(default=runtime_jobs.identifiers.new_uuid, editable=False, unique=True)),
                ('slug', models.CharField(max_length=64)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('modified_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('archived_at', models.DateTimeField(null=True)),
                ('name', models.CharField(max_length=256)),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='runtime_jobs.project')),
            ],
            options={
                'verbose_name_plural': 'branches',
                'db_table': 'result_branches',
            },
        ),
        migrations.CreateModel(
            name='Measure',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('uuid', models.UUIDField(default=runtime_jobs.identifiers.new_uuid, editable=False, unique=True)),
                ('slug', models.CharField(max_length=64)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('modified_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('archived_at', models.DateTimeField(null=True)),
                ('name', models.CharField(max_length=64)),
                ('units', models.CharField(max_length=64)),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='runtime_jobs.project')),
            ],
            options={
                'db_table': 'result_measures',
            },
        ),
        migrations.CreateModel(
            name='ReportResult',
            fields=[
                ('report', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='result', serialize=False, to='orchestrator.report')),
                ('start_time', models.DateTimeField(null=True)),
                ('end_time', models.DateTimeField(null=True)),
                ('duration_seconds', models.PositiveIntegerField(null=True)),
                ('metric_count', models.PositiveIntegerField(default=0)),
                ('error', models.TextField(blank=True)),
                ('read_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                'db_table': 'result_report_results',
            },
        ),
        migrations.AddField(
            model_name='report',
            name='branch',
            field=models.ForeignKey(on_delete=django.db.models.deletion.RESTRICT, related_name='reports', to='orchestrator.branch'),
        ),
        migrations.AddField(
            model_name='report',
            name='job',
            field=models.OneToOneField(db_column='job_ulid', db_constraint=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='report', to='runtime_jobs.job', to_field='job_ulid'),
        ),
        migrations.AddField(
            model_name='report',
            name='project',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='reports', to='runtime_jobs.project'),
        ),
        migrations.AddField(
            model_name='report',
            name='spec',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='reports', to='workers.hardwarespec'),
        ),
        migrations.CreateModel(
            name='Metric',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('uuid', models.UUIDField(default=runtime_jobs.identifiers.new_uuid, editable=False, unique=True)),
                ('iteration', models.PositiveIntegerField()),
                ('value', models.FloatField()),
                ('lower_value', models.FloatField(null=True)),
                ('upper_value', models.FloatField(null=True)),
                ('benchmark', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.RESTRICT, related_name='metrics', to='orchestrator.benchmark')),
                ('measure', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.RESTRICT, related_name='metrics', to='orchestrator.measure')),
                ('report', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='metrics', to='orchestrator.report')),
            ],
            options={
                'db_table': 'result_metrics',
            },
        ),
        migrations.CreateModel(
            name='Testbed',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('uuid', models.UUIDField(default=runtime_jobs.identifiers.new_uuid, editable=False, unique=True)),
                ('slug', models.CharField(max_length=64)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('modified_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('archived_at', models.DateTimeField(null=True)),
                ('name', models.CharField(max_length=64)),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='runtime_jobs.project')),
                ('spec', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='testbeds', to='workers.hardwarespec')),
            ],
            options={
                'db_table': 'result_testbeds',
            },
        ),
        migrations.AddField(
            model_name='report',
            name='testbed',
            field=models.ForeignKey(on_delete=django.db.models.deletion.RESTRICT, related_name='reports', to='orchestrator.testbed'),
        ),
        migrations.AddConstraint(
            model_name='benchmark',
            constraint=models.UniqueConstraint(fields=('project', 'name'), name='one_benchmark_per_name'),
        ),
        migrations.AddConstraint(
            model_name='benchmark',
            constraint=models.UniqueConstraint(fields=('project', 'slug'), name='one_benchmark_per_slug'),
        ),
        migrations.AddConstraint(
            model_name='branch',
            constraint=models.UniqueConstraint(fields=('project', 'name'), name='one_branch_per_name'),
        ),
        migrations.AddConstraint(
            model_name='branch',
            constraint=models.UniqueConstraint(fields=('project', 'slug'), name='one_branch_per_slug'),
        ),
        migrations.AddConstraint(
            model_name='measure',
            constraint=models.UniqueConstraint(fields=('project', 'name'), name='one_measure_per_name'),
        ),
        migrations.AddConstraint(
            model_name='measure',
            constraint=models.UniqueConstraint(fields=('project', 'slug'), name='one_measure_per_slug'),
        ),
        migrations.AddIndex(
            model_name='metric',
            index=models.Index(fields=['benchmark', 'measure', '-report'], name='metrics_of_benchmark'),
        ),
        migrations.AddConstraint(
            model_name='metric',
            constraint=models.UniqueConstraint(fields=('report', 'iteration', 'benchmark', 'measure'), name='one_metric_per_iteration'),
        ),
        migrations.AddConstraint(
            model_name='testbed',
            constraint=models.UniqueConstraint(fields=('project', 'name'), name='one_testbed_per_name'),
        ),
        migrations.AddConstraint(
            model_name='testbed',
            constraint=models.UniqueConstraint(fields=('project', 'slug'), name='one_testbed_per_slug'),
        ),
        migrations.AddIndex(
            model_name='report',
            index=models.Index(fields=['project', '-id'], name='reports_of_project'),
        ),
        migrations.AddConstraint(
            model_name='report',
            constraint=models.UniqueConstraint(condition=models.Q(('idempotency_key__isnull', False)), fields=('project', 'idempotency_key'), name='one_report_per_idempotency_key'),
        ),
    ]
