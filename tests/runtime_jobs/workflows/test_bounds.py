"""Hostile workflow files in a child process that may use 64 MiB more memory, and ten seconds of CPU time for each file."""

import json
import subprocess
import sys

from config.paths import BASE_DIR

# The limits are the kernel's: a file that needs more ends the process, and the test with it.
CHILD = """
import json, resource, sys, time
import django
django.setup()
from runtime_jobs.workflows.diagnostics import Severity
from runtime_jobs.workflows.matching import TriggerEvent, is_triggered
from runtime_jobs.workflows.parsing import parse_workflow
from tests.runtime_jobs.workflows.test_bounds import HARMLESS, hostile_files

parse_workflow(HARMLESS)  # imports and caches are not counted
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
found = {}
paths = [f"{'a' * 200}/{number}/{'b' * 100}" for number in range(300)]
for name, content in hostile_files().items():
    begun = time.process_time()
    limit = int(begun) + 10
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    parsed = parse_workflow(content)
    if parsed.workflow is not None:
        is_triggered(parsed.workflow.triggers, TriggerEvent("push", ref="refs/heads/" + "a" * 250, changed_paths=paths))
        for schedule in parsed.workflow.triggers.schedules:
            schedule.next_after(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))
    errors = [one for one in parsed.diagnostics if one.severity == Severity.ERROR]
    found[name] = [parsed.workflow is not None, len(errors), time.process_time() - begun]
print(json.dumps(found))
"""
HARMLESS = b"on: push\njobs:\n  a:\n    runs-on: x\n    steps: [run: echo]\n"
JOB = "runs-on: x, steps: [{run: echo}]"
ACCEPTED = {"harmless", "patterns", "repeated steps", "crons", "chain of operators", "expressions"}


def hostile_files() -> dict[str, bytes]:
    """Files of up to 64 KiB, each with the most of something."""
    levels = 9
    laughs = ["a0: &a0 [" + ", ".join("x" * 9) + "]"]
    laughs += [f"a{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * 9) + "]" for n in range(1, levels)]
    merged = ["a0: &a0 {x: y}"] + [f"a{n}: &a{n} {{l: *a{n - 1}, r: *a{n - 1}}}" for n in range(1, 45)]
    step = "{run: '${{ shithub.sha }}', env: {A: '${{ vars.a }}'}}"
    jobs = "\n".join(f"  j{n}: {{runs-on: x, steps: *s}}" for n in range(63))
    circle = "\n".join(f"  j{n}: {{needs: [{', '.join(f'j{m}' for m in range(64))}], {JOB}}}" for n in range(64))
    chain = " && ".join(["vars.a"] * 400)
    patterns = ", ".join(f"'{'*a' * 120}{n}'" for n in range(100))
    files = {
        "5,000 lists": "[" * 5_000,
        "5,000 closed lists": "[" * 5_000 + "]" * 5_000,
        "5,000 mappings": "{a: " * 5_000,
        "5,000 sequences": "- " * 5_000,
        "64 KiB of brackets": "[" * 65_000,
        "64 KiB of keys": "? " * 32_000,
        "many laughs": "\n".join(laughs),
        "doubled mappings": "\n".join(merged),
        "a long text repeated": "a: &a " + "x" * 60_000 + "\nb: [" + "*a, " * 99 + "]",
        "an alias in itself": "a: &a [*a, *a]",
        "a tag": "on: push\njobs: !!python/object/apply:os.system [id]",
        "keys without end": "\n".join(f"k{n}: 1" for n in range(8_000)),
        "one key": "\n".join(["k: 1"] * 12_000),
        "quotes": "a: " + '"' * 65_000,
        "anchors": " ".join(f"&a{n}" for n in range(9_000)),
        "tabs": "\t" * 65_000,
        "comments": "#\n" * 32_000,
        "documents": "---\n" * 16_000,
        "block text": "a: |\n" + " x\n" * 20_000,
        "needs of all": f"on: push\njobs:\n{circle}",
        "negations": f"on: push\njobs:\n  a: {{if: '{'!' * 4_000}true', {JOB}}}",
        "parentheses": f"on: push\njobs:\n  a: {{if: '{'(' * 2_000}true{')' * 2_000}', {JOB}}}",
        "expressions": f"on: push\njobs:\n  a: {{runs-on: x, steps: [{{run: '{'${{ vars.a }}' * 4_000}'}}]}}",
        "unclosed expressions": f"on: push\njobs:\n  a: {{runs-on: x, steps: [{{run: '{'${{ ' * 16_000}'}}]}}",
        "unknown keys": f"on: push\njobs:\n  a: {{{', '.join(f'k{n}: 1' for n in range(5_000))}}}",
        "harmless": HARMLESS.decode(),
        "repeated steps": f"env: {{}}\non: push\njobs:\n  s: {{runs-on: x, steps: &s [{', '.join([step] * 40)}]}}\n{jobs}",
        "patterns": f"on: {{push: {{paths: [{patterns}], branches: [{patterns}]}}}}\njobs: {{a: {{{JOB}}}}}",
        "crons": f"on: {{schedule: [{', '.join(['{cron: 0 0 29 2 1}'] * 20)}]}}\njobs: {{a: {{{JOB}}}}}",
        "chain of operators": f"on: push\njobs:\n  a: {{if: '{chain}', {JOB}}}",
    }
    return {name: text.encode()[: 64 << 10] for name, text in files.items()}


def test_hostile_files_are_read_in_bounded_time_and_memory():
    found = subprocess.run(
        [sys.executable, "-c", "import datetime, os\nos.environ['DJANGO_SETTINGS_MODULE'] = 'config.settings'\n" + CHILD],
        cwd=BASE_DIR, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2_000:]
    results = json.loads(found.stdout.splitlines()[-1])
    assert set(results) == set(hostile_files())
    accepted = {name for name, (is_workflow, _, _) in results.items() if is_workflow}
    assert accepted == ACCEPTED
    without_diagnostic = {name for name, (_, errors, _) in results.items() if not errors}
    assert without_diagnostic == ACCEPTED  # every other file says what is wrong
    slowest = max(results.items(), key=lambda item: item[1][2])
    assert slowest[1][2] < 10, slowest
