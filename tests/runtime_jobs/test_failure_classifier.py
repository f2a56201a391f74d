"""The guess at why a command failed: its rules in their order, its texts within their bounds."""

import pytest

from runtime_jobs.failure_classifier import classify_failure
from runtime_jobs.models import FailureExplanation


def guess(text="", *, name="deploy", exit_code=1, logs=()):
    return classify_failure(name=name, exit_code=exit_code, message=text, logs=logs)


@pytest.mark.parametrize(
    ("text", "name", "exit_code", "expected"),
    [
        ("step timed out", "x", 1, ("INFRA", "MEDIUM")),
        ("Timeout waiting for lock", "x", 1, ("INFRA", "MEDIUM")),
        ("context deadline exceeded", "x", 1, ("INFRA", "MEDIUM")),
        ("exit status 124", "x", 124, ("INFRA", "MEDIUM")),
        ("killed", "x", 124, ("INFRA", "MEDIUM")),
        ("fatal: Out Of Memory", "x", 1, ("INFRA", "HIGH")),
        ("write: no space left on device", "x", 1, ("INFRA", "HIGH")),
        ("disk full", "x", 1, ("INFRA", "HIGH")),
        ("signal: killed", "tests", -1, ("INFRA", "HIGH")),
        ("dial tcp 192.0.2.1:443", "x", 1, ("INFRA", "HIGH")),
        ("connection refused", "x", 1, ("INFRA", "HIGH")),
        ("i/o timeout", "x", 1, ("INFRA", "MEDIUM")),  # the rule on timeouts comes first
        ("tls handshake timeout", "x", 1, ("INFRA", "MEDIUM")),
        ("temporary failure in name resolution", "x", 1, ("INFRA", "HIGH")),
        ("sh: make: command not found", "build", 127, ("TOOLING", "HIGH")),
        ("executable file not found in $PATH", "x", 1, ("TOOLING", "HIGH")),
        ("open x: no such file or directory", "x", 1, ("TOOLING", "HIGH")),
        ("permission denied", "x", 126, ("TOOLING", "MEDIUM")),
        ("exit status 1", "go-vet", 1, ("USER", "MEDIUM")),
        ("exit status 1", "Lint and test", 1, ("USER", "MEDIUM")),
        ("exit status 1", "unit-TESTS", 1, ("USER", "MEDIUM")),
        ("exit status 1", "build", 1, ("USER", "MEDIUM")),
        ("exit status 1", "deploy", 1, ("USER", "LOW")),
        ("", "", None, ("USER", "LOW")),
    ],
)
def test_the_first_rule_that_fits_decides(text, name, exit_code, expected):
    found = guess(text, name=name, exit_code=exit_code)
    assert (found.category, found.confidence) == expected
    assert found.category in FailureExplanation.Category.values
    assert found.confidence in FailureExplanation.Confidence.values


def test_lint_comes_before_test_and_test_before_build():
    assert guess(name="lint-test-build").summary.startswith("The lint step failed")
    assert guess(name="test-build").summary.startswith("Tests failed")


def test_the_summary_is_a_fixed_phrase_with_the_exit_code():
    assert guess("no\nspace", exit_code=28).summary == "Resources ran out (exit code 28)."
    assert guess(exit_code=None).summary == "The command failed."


def test_the_details_are_the_message_the_code_and_the_first_log():
    found = guess("cannot  push:\r\n\tdenied", exit_code=2, logs=["s3://a/log.txt", "s3://b/log.txt"])
    assert found.details == "cannot push: denied | exit code 2 | s3://a/log.txt"


@pytest.mark.parametrize("text", ["", "exit status 2", "Exit status 2 after retries"])
def test_what_says_nothing_is_left_out(text):
    assert guess(text, exit_code=2).details == "exit code 2"


@pytest.mark.parametrize("letter", ["x", "é", "💩"])
def test_texts_are_cut_by_bytes_within_a_letter_never(letter):
    details = guess(letter * 1000).details
    assert 500 < len(details.encode()) <= 512
    assert details == letter * (len(details) - 1) + "…"
