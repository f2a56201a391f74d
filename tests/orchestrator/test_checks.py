"""Settings that are out of range are refused at the start, by name and with the range."""

import os
import subprocess
import sys

import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import DatabaseError, connection, transaction

from config.paths import BASE_DIR
from orchestrator import checks


@pytest.mark.parametrize(
    ("seconds", "refused"),
    [(0, False), (0.001, False), (72, False), (1e9, False), (-1, True), (1e-4, True), (1e10, True)],
)
def test_an_aging_period_is_zero_or_in_a_range(settings, seconds, refused):
    settings.AGING_SECONDS = seconds
    messages = [(message.id, message.msg) for message in checks.aging()]
    text = f"AGING_SECONDS is {seconds:g}; it must be 0 (no aging) or between 0.001 and 1000000000."
    assert messages == ([("orchestrator.E007", text)] if refused else [])


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("seconds", "works"),
    [(checks.MIN_AGING_SECONDS, True), (checks.MAX_AGING_SECONDS, True), (1e-320, False), (1e308, False)],
)
def test_the_range_is_one_in_which_queues_have_an_order(seconds, works):
    """Far outside, each claim and each new lane would be refused with `value out of range`."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('orchestrator.aging_seconds', %s, true)", [repr(seconds)])
        query = "SELECT queue_tier('shared-linux', 50, now() - interval '30 years', NULL)"
        if works:
            cursor.execute(query)
            assert cursor.fetchone()[0] in {50, 399}
        else:
            with pytest.raises(DatabaseError, match="out of range"), transaction.atomic():
                cursor.execute(query)


@pytest.mark.parametrize(
    ("rule", "messages"),
    [
        ({}, []),
        ({"failures": 0, "job_failures": ["steps"]}, []),
        ({"failures": 1}, []),
        ({"failures": 50}, [("E008", "BREAKER_FAILURES is 50; it is a share and must be between 0 and 1.")]),
        ({"failures": -0.1}, [("E008", "BREAKER_FAILURES is -0.1; it is a share and must be between 0 and 1.")]),
        ({"least_jobs": 0}, [("E009", "BREAKER_LEAST_JOBS is 0; it must be at least 1.")]),
        (
            {"window_seconds": 0, "cool_down_seconds": -1},
            [
                ("E009", "BREAKER_WINDOW_SECONDS is 0; it must be at least 1."),
                ("E009", "BREAKER_COOL_DOWN_SECONDS is -1; it must be at least 1."),
            ],
        ),
        ({"job_failures": ["step"]}, [("E010", "BREAKER_JOB_FAILURES names unknown job types: step.")]),
    ],
)
def test_a_rule_of_breakers_is_in_its_range(settings, rule, messages):
    settings.BREAKER = settings.BREAKER | rule
    assert [(message.id, message.msg) for message in checks.breakers()] == [
        (f"orchestrator.{code}", text) for code, text in messages
    ]


def test_all_of_them_are_registered(settings):
    settings.AGING_SECONDS, settings.BREAKER = -1, settings.BREAKER | {"failures": 50}
    assert {"orchestrator.E007", "orchestrator.E008"} <= {message.id for message in run_checks()}


@pytest.mark.parametrize("name", ["serve", "runclock", "rundispatcher", "runhousekeeping", "up", "prune"])
def test_the_processes_of_a_server_refuse_them(settings, name):
    settings.AGING_SECONDS = -1
    with pytest.raises(SystemCheckError, match=r"orchestrator\.E007"):
        call_command(name, skip_checks=False)


STARTED = """
import sys
from unittest import mock
import django
from django.core.checks import run_checks
from django.core.management import execute_from_command_line
django.setup()
with mock.patch("orchestrator.processes.scheduler.Scheduler.run"):
    execute_from_command_line(["manage.py", "runclock", "--once"])
print({"config.urls", "orchestrator.admin"} & set(sys.modules))
run_checks(tags=["admin"])
print("orchestrator.admin" in sys.modules)
"""


def test_a_process_without_urls_imports_no_views(tmp_path):
    """Views and pages of the admin are more than half of what it would import. The checks of the pages import them."""
    nowhere = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "STATE_DIR": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", STARTED],
        cwd=BASE_DIR,
        env=os.environ | nowhere,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.splitlines()[-2:] == ["set()", "True"]


@pytest.mark.parametrize(("stored", "errors"), [(4 << 20, []), ((4 << 20) - 1, ["orchestrator.E013"])])
def test_a_result_that_can_be_received_can_be_stored(settings, stored, errors):
    settings.RUNNER_MESSAGE_LIMIT_BYTES, settings.OUTPUT_LIMIT_BYTES = 4 << 20, stored
    assert [error.id for error in checks.stored_outputs()] == errors


@pytest.mark.parametrize(
    ("upload", "spool", "uploads", "errors"),
    [(100, 200, 1, 0), (101, 200, 1, 1), (0, 200, 1, 1), (100, 200, 0, 1)],
)
def test_an_upload_of_an_image_can_be_received(settings, upload, spool, uploads, errors):
    settings.IMAGE_UPLOAD_LIMIT_BYTES, settings.IMAGE_SPOOL_BYTES, settings.IMAGE_MAX_UPLOADS = upload, spool, uploads
    assert [error.id for error in checks.image_uploads()] == ["orchestrator.E014"] * errors


@pytest.mark.parametrize(
    ("bucket", "region", "endpoint", "part"),
    [
        ("", "", "", None),
        ("b", "us-east-1", "", None),
        ("b", "us-east-1", "https://s3.example", None),
        ("", "us-east-1", "", "without ARTIFACTS_BUCKET"),
        ("", "", "https://s3.example", "without ARTIFACTS_BUCKET"),
        ("b", "", "", "without ARTIFACTS_REGION"),
        ("b", "", "https://s3.example", "without ARTIFACTS_REGION"),
        ("b", "us-east-1", "s3.example:9000", "must begin with https:// or http://"),
    ],
)
def test_an_incomplete_set_of_a_bucket_is_refused(settings, bucket, region, endpoint, part):
    settings.ARTIFACTS_BUCKET, settings.ARTIFACTS_REGION, settings.ARTIFACTS_ENDPOINT_URL = bucket, region, endpoint
    messages = [(message.id, message.msg) for message in checks.artifact_bucket()]
    assert [code for code, _ in messages] == (["orchestrator.E017"] if part else [])
    assert all(part in text for _, text in messages)
