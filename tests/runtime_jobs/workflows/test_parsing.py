"""Workflow files: what is read from them, and each fault with its path and line."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.paths import BASE_DIR
from runtime_jobs.workflows.diagnostics import MAX_DIAGNOSTICS, Severity
from runtime_jobs.workflows.document import WorkflowPermissions
from runtime_jobs.workflows.parsing import MAX_JOBS, MAX_STEPS, circular, parse_workflow

FULL = """\
name: CI
on:
  push:
    branches: [main, 'release/**']
    tags: v*
    paths:
      - src/**
      - '!src/docs/**'
  pull_request:
    types: [opened, labeled]
    branches: main
  schedule:
    - cron: '0 4 * * 1-5'
  workflow_dispatch:
    inputs:
      target:
        description: Where to
        type: choice
        options: [staging, production]
        default: staging
        required: true
      dry-run:
        type: boolean
permissions: read-all
env:
  CI: true
  VERSION: 3.10
  NOTHING:
concurrency:
  group: ci-${{ github.ref }}
  cancel-in-progress: true
jobs:
  build:
    name: Build it
    runs-on: ubuntu-latest
    timeout-minutes: 30
    permissions:
      contents: read
      id-token: write
    env:
      CI: 'yes'
      REF: ${{ github.ref }}
    steps:
      - uses: actions/checkout@v4
        with:
          fetch-depth: 0
      - id: test
        name: Test
        if: vars.SKIP != 'true'
        run: |
          make test
          echo ${{ secrets.TOKEN }}
        working-directory: src/${{ vars.FOLDER }}
        env:
          TITLE: ${{ shithub.event.head_commit.message }}
        continue-on-error: true
  deploy:
    runs-on: self-hosted
    needs: build
    if: ${{ always() && shithub.ref == 'refs/heads/main' }}
    steps:
      - run: make deploy
"""


def parsed(text):
    return parse_workflow(text.encode())


def errors_of(text):
    found = parsed(text)
    errors = [diagnostic for diagnostic in found.diagnostics if diagnostic.severity == Severity.ERROR]
    assert (found.workflow is None) is bool(errors)
    return [(diagnostic.path, diagnostic.line, diagnostic.message) for diagnostic in errors]


def test_everything_is_read():
    found = parsed(FULL)
    workflow = found.workflow
    assert [str(diagnostic) for diagnostic in found.diagnostics] == [
        "30: warning: concurrency.group: Use shithub instead of github in expressions.",
        "42: warning: jobs.build.env.REF: Use shithub instead of github in expressions.",
    ]
    assert workflow.name == "CI"
    triggers = workflow.triggers
    assert triggers.push.branches.patterns == ("main", "release/**")
    assert triggers.push.tags.patterns == ("v*",)
    assert triggers.push.paths.patterns == ("src/**", "!src/docs/**")
    assert triggers.pull_request.types == ("opened", "labeled")
    assert triggers.pull_request.branches.patterns == ("main",)
    assert [schedule.source for schedule in triggers.schedules] == ["0 4 * * 1-5"]
    target, dry_run = triggers.dispatch.inputs
    assert (target.name, target.type, target.default, target.is_required) == ("target", "choice", "staging", True)
    assert target.options == ("staging", "production")
    assert target.description == "Where to"
    assert (dry_run.type, dry_run.default, dry_run.is_required) == ("boolean", None, False)
    assert workflow.concurrency.group == "ci-${{ shithub.ref }}"
    assert workflow.concurrency.cancel_in_progress
    build, deploy = workflow.jobs
    assert (build.key, build.name, build.runs_on, build.timeout_minutes) == ("build", "Build it", "ubuntu-latest", 30)
    assert workflow.env_of(build) == {"CI": "yes", "VERSION": "3.10", "NOTHING": "", "REF": "${{ shithub.ref }}"}
    assert workflow.env_of(deploy) == {"CI": "true", "VERSION": "3.10", "NOTHING": ""}
    assert workflow.permissions_of(build).as_json() == {"per": {"contents": "read", "id-token": "write"}}
    assert workflow.permissions_of(deploy) == WorkflowPermissions("read-all")
    assert workflow.permissions_of(deploy).as_json() == {"mode": "read-all"}
    checkout, test = build.steps
    assert (checkout.uses, dict(checkout.with_values)) == ("actions/checkout@v4", {"fetch-depth": "0"})
    assert (test.step_id, test.name, test.condition) == ("test", "Test", "vars.SKIP != 'true'")
    assert test.run == "make test\necho ${{ secrets.TOKEN }}\n"
    assert test.working_directory == "src/${{ vars.FOLDER }}"
    assert dict(test.env) == {"TITLE": "${{ shithub.event.head_commit.message }}"}
    assert test.continue_on_error
    assert (deploy.needs, deploy.name, deploy.timeout_minutes) == (("build",), "", None)
    assert deploy.condition == "always() && shithub.ref == 'refs/heads/main'"


def workflow(on="push", jobs="", extra="", job="", step="run: x"):
    jobs = jobs or f"  a:\n    runs-on: linux\n{job}    steps:\n      - {step}\n"
    return f"on: {on}\n{extra}jobs:\n{jobs}"


@pytest.mark.parametrize(
    ("on", "events"),
    [
        ("push", {"push"}),
        ("[push, pull_request]", {"push", "pull_request"}),
        ("[push, push]", {"push"}),
        ("{push: , pull_request: null}", {"push", "pull_request"}),
        ("{workflow_dispatch: {}}", {"dispatch"}),
        ("{workflow_dispatch: {inputs: }}", {"dispatch"}),
        ("'workflow_dispatch'", {"dispatch"}),
        ("{schedule: [{cron: '* * * * *'}]}", {"schedules"}),
    ],
)
def test_on_is_a_word_a_list_or_a_mapping(on, events):
    triggers = parsed(workflow(on)).workflow.triggers
    assert {name for name in ("push", "pull_request", "schedules", "dispatch") if getattr(triggers, name)} == events


def test_a_trigger_without_settings_is_not_missing():
    assert parsed(workflow("{push: }")).workflow.triggers.push is not None


# The text, and the path and line of its only error with a part of the message.
WRONG = [
    ("push", "", 1, "A mapping of keys"),
    ("[]", "", 1, "A mapping of keys"),
    ("jobs: {a: {runs-on: x, steps: [run: y]}}", "on", 1, "The key on is missing"),
    ("on: push", "jobs", 1, "The key jobs is missing"),
    (workflow(extra="defaults: {x: 1}\n"), "defaults.x", 2, "unknown"),
    (workflow(extra="On: push\n"), "On", 2, "unknown"),
    (workflow(extra="<<: {}\n"), '["<<"]', 2, "unknown"),
    (workflow(extra='"weird key": 1\n'), '["weird key"]', 2, "unknown"),
    (workflow(extra="on: push\n"), "on", 2, "twice"),
    (workflow(extra=f"name: {'x' * 257}\n"), "name", 2, "256"),
    (workflow(extra="name: [a]\n"), "name", 2, "A text"),
    (workflow("release"), "on", 1, '"release" is unknown'),
    (workflow("[push, release]"), "on[1]", 1, "unknown"),
    (workflow("schedule"), "on", 1, "needs a mapping"),
    (workflow("[]"), "on", 1, "at least one event"),
    (workflow("{}"), "on", 1, "at least one event"),
    (workflow("[[push]]"), "on[0]", 1, "A text"),
    (workflow("{release: }"), "on.release", 1, "unknown"),
    (workflow("{push: {branch: main}}"), "on.push.branch", 1, "unknown"),
    (workflow("{push: [main]}"), "on.push", 1, "A mapping"),
    (workflow("{push: {branches: {a: b}}}"), "on.push.branches", 1, "A list"),
    (workflow("{push: {branches: ['']}}"), "on.push.branches[0]", 1, "1 to 256"),
    (workflow("{push: {branches: ['!']}}"), "on.push.branches[0]", 1, "1 to 256"),
    (workflow("{push: {paths: " + "x" * 257 + "}}"), "on.push.paths", 1, "1 to 256"),
    (workflow("{push: {paths: [" + "x, " * 101 + "]}}"), "on.push.paths", 1, "101 patterns"),
    (workflow("{pull_request: {tags: v1}}"), "on.pull_request.tags", 1, "unknown"),
    (workflow("{pull_request: {types: Opened}}"), "on.pull_request.types", 1, "no type of activity"),
    (workflow("{schedule: {cron: x}}"), "on.schedule", 1, "A list"),
    (workflow("{schedule: []}"), "on.schedule", 1, "0 schedules"),
    (workflow("{schedule: [{}]}"), "on.schedule[0]", 1, "cron is missing"),
    (workflow("{schedule: [{cron: '* * *'}]}"), "on.schedule[0].cron", 1, "five fields"),
    (workflow("{schedule: [{cron: '* * * * *', tz: x}]}"), "on.schedule[0].tz", 1, "unknown"),
    (workflow("{workflow_dispatch: {x: }}"), "on.workflow_dispatch.x", 1, "unknown"),
    (workflow("{workflow_dispatch: {inputs: {a: {type: number}}}}"), "on.workflow_dispatch.inputs.a.type", 1, "unknown"),
    (workflow("{workflow_dispatch: {inputs: {a: {type: choice}}}}"), "on.workflow_dispatch.inputs.a", 1, "options"),
    (workflow("{workflow_dispatch: {inputs: {a: {options: [x]}}}}"), "on.workflow_dispatch.inputs.a", 1, "options"),
    (
        workflow("{workflow_dispatch: {inputs: {a: {type: choice, options: [x], default: y}}}}"),
        "on.workflow_dispatch.inputs.a.default", 1, "not one of",
    ),
    (
        workflow("{workflow_dispatch: {inputs: {a: {type: boolean, default: 'yes'}}}}"),
        "on.workflow_dispatch.inputs.a.default", 1, "true or false",
    ),
    (workflow("{workflow_dispatch: {inputs: {a b: {}}}}"), 'on.workflow_dispatch.inputs["a b"]', 1, "identifier"),
    (workflow("{workflow_dispatch: {inputs: {a: {required: 1}}}}"), "on.workflow_dispatch.inputs.a.required", 1, "true"),
    (workflow(extra="permissions: all\n"), "permissions", 2, "read-all"),
    (workflow(extra="permissions: {contents: admin}\n"), "permissions.contents", 2, "none, read, write"),
    (workflow(extra="permissions: [read]\n"), "permissions", 2, "A mapping"),
    (workflow(extra="env: x\n"), "env", 2, "A mapping"),
    (workflow(extra="env: {A: [1]}\n"), "env.A", 2, "A text"),
    (workflow(extra="env: {1A: x}\n"), 'env["1A"]', 2, "name of a variable"),
    (workflow(extra="env: {SHITHUB_INPUT_0: x}\n"), "env.SHITHUB_INPUT_0", 2, "name of a variable"),
    (workflow(extra="env: {A: '${{ nope.x }}'}\n"), "env.A", 2, "'nope' does not exist"),
    (workflow(extra="env: {A: '${{ x'}\n"), "env.A", 2, "closing"),
    (workflow(extra="concurrency: ''\n"), "concurrency", 2, "empty"),
    (workflow(extra="concurrency: {cancel-in-progress: true}\n"), "concurrency", 2, "group is missing"),
    (workflow(extra="concurrency: {group: a, x: b}\n"), "concurrency.x", 2, "unknown"),
    (workflow(extra="concurrency: {group: a, cancel-in-progress: maybe}\n"), "concurrency.cancel-in-progress", 2, "true"),
    (workflow(extra="concurrency: ${{ secrets.A }}\n"), "concurrency", 2, "secrets cannot"),
    (workflow(extra="concurrency: [a]\n"), "concurrency", 2, "A mapping"),
    (workflow(jobs="  {}\n"), "jobs", 2, "0 jobs"),
    (workflow(jobs="  - a\n"), "jobs", 2, "A mapping"),
    (workflow(jobs="  a b: {runs-on: x, steps: [run: y]}\n"), 'jobs["a b"]', 3, "identifier"),
    (workflow(jobs="  a: x\n"), "jobs.a", 3, "A mapping"),
    (workflow(jobs="  a: {steps: [run: y]}\n"), "jobs.a", 3, "runs-on is missing"),
    (workflow(jobs="  a: {runs-on: x}\n"), "jobs.a", 3, "steps is missing"),
    (workflow(jobs="  a: {runs-on: x, steps: []}\n"), "jobs.a.steps", 3, "0 steps"),
    (workflow(jobs="  a: {runs-on: x, steps: {run: y}}\n"), "jobs.a.steps", 3, "A list"),
    (workflow(jobs="  a: {runs-on: x, steps: [y]}\n"), "jobs.a.steps[0]", 3, "A mapping"),
    (workflow(jobs="  a: {runs-on: [x, y], steps: [run: y]}\n"), "jobs.a.runs-on", 3, "Only one label"),
    (workflow(jobs="  a: {runs-on: '', steps: [run: y]}\n"), "jobs.a.runs-on", 3, "1 to 100"),
    (workflow(jobs="  a: {runs-on: 'x y', steps: [run: y]}\n"), "jobs.a.runs-on", 3, "1 to 100"),
    (workflow(jobs="  a: {runs-on: " + "x" * 101 + ", steps: [run: y]}\n"), "jobs.a.runs-on", 3, "1 to 100"),
    (workflow(jobs="  a: {runs-on: '${{ matrix.os }}', steps: [run: y]}\n"), "jobs.a.runs-on", 3, "An expression in runs-on is not supported yet. Write the label"),
    (workflow(job="    strategy: {matrix: {a: [1]}}\n"), "jobs.a.strategy", 5, "unknown. A matrix is not supported yet. Write a job for each"),
    (workflow(step="{run: 'x ${{ matrix.python-version }}'}"), "jobs.a.steps[0].run", 6, "'matrix' does not exist here: a matrix is not supported yet. Write a job"),
    (workflow(step="{run: x, env: {A: \"${{ matrix['a'] }}\"}}"), "jobs.a.steps[0].env.A", 6, "a matrix is not supported yet"),
    (workflow(step="{run: '${{ steps.my-step.output }}'}"), "jobs.a.steps[0].run", 6, "write steps.ID.outputs.NAME"),
    (workflow(job="    if: needs.build-it.result == 'success'\n"), "jobs.a.if", 5, "In the if of a job write success()"),
    (workflow(step="{run: '${{ inputs.dry-run }}'}"), "jobs.a.steps[0].run", 6, "write shithub.event.inputs.NAME"),
    (workflow(step="{run: '${{ shithub.event.inputs.dry-run }}'}"), "jobs.a.steps[0].run", 6, "A name here has no '-'"),
    (workflow(step="{run: x, if: shithub.event.number > 3}"), "jobs.a.steps[0].if", 6, "operators < and > are not supported"),
    (workflow(step="{run: x, if: 'vars.A == 3'}"), "jobs.a.steps[0].if", 6, "Numbers are not supported. Write a text in single quotes"),
    (workflow(step="{run: x, if: 'vars.A == \"b\"'}"), "jobs.a.steps[0].if", 6, "Write texts in single quotes"),
    (workflow(step="{run: x, if: 'vars.A ; b'}"), "jobs.a.steps[0].if", 6, "Unexpected character ';' at character 8."),
    (workflow(job="    container: x\n"), "jobs.a.container", 5, "unknown"),
    (workflow(job="    timeout-minutes: 0\n"), "jobs.a.timeout-minutes", 5, "1 to 4320"),
    (workflow(job="    timeout-minutes: 4321\n"), "jobs.a.timeout-minutes", 5, "1 to 4320"),
    (workflow(job="    timeout-minutes: 1.5\n"), "jobs.a.timeout-minutes", 5, "1 to 4320"),
    (workflow(job="    timeout-minutes: \u0661\n"), "jobs.a.timeout-minutes", 5, "1 to 4320"),
    (workflow(job="    needs: b\n"), "jobs.a.needs", 5, 'no job "b"'),
    (workflow(job="    needs: [a]\n"), "jobs.a", 3, "needs itself"),
    (workflow(job="    needs: {a: b}\n"), "jobs.a.needs", 5, "A list"),
    (workflow(job="    if: ''\n"), "jobs.a.if", 5, "empty"),
    (workflow(job="    if: a ==\n"), "jobs.a.if", 5, "missing"),
    (workflow(job="    if: secrets.A\n"), "jobs.a.if", 5, "secrets cannot"),
    (workflow(job="    if: needs.b.result == 'x'\n"), "jobs.a.if", 5, "'needs' does not exist"),
    (workflow(job="    if: [true]\n"), "jobs.a.if", 5, "A text"),
    (workflow(job="    env: {K: '${{ secrets.A }}'}\n    if: env.K\n"), "jobs.a.if", 6, "depends on a secret"),
    (workflow(step="{run: x, shell: pwsh}"), "jobs.a.steps[0].shell", 6, "one of bash, sh, python"),
    (workflow(step="{run: 'print(${{ vars.X }})', shell: python}"), "jobs.a.steps[0].run", 6, "read os.environ"),
    (workflow(extra="env: {A: '${{ runner.os }}'}\n"), "env.A", 2, "runner cannot be used here"),
    (workflow(step="{name: x}"), "jobs.a.steps[0]", 6, "either run or uses"),
    (workflow(step="{run: x, uses: actions/checkout@v4}"), "jobs.a.steps[0]", 6, "either run or uses"),
    (workflow(step="{run: ' '}"), "jobs.a.steps[0].run", 6, "empty"),
    (workflow(step="{uses: actions/checkout@v3, with: {ref: x}}"), "jobs.a.steps[0].with.ref", 6, "Checkout has the values"),
    (workflow(step="{uses: ./local}"), "jobs.a.steps[0].uses", 6, "not supported"),
    (workflow(step="{run: x, id: 1a}"), "jobs.a.steps[0].id", 6, "identifier"),
    (workflow(step="{run: x, id: a}\n      - {run: y, id: a}"), "jobs.a.steps[1].id", 7, "Another step"),
    (workflow(step="{run: x, working-directory: /etc}"), "jobs.a.steps[0].working-directory", 6, "relative"),
    (workflow(step="{run: x, working-directory: a/../..}"), "jobs.a.steps[0].working-directory", 6, "relative"),
    (workflow(step="{run: x, working-directory: '${{ shithub.event.x }}'}"), "jobs.a.steps[0].working-directory", 6, "not trusted"),
    (workflow(step="{run: x, continue-on-error: 1}"), "jobs.a.steps[0].continue-on-error", 6, "true or false"),
    (workflow(step="{run: '${{ runner.tool }}'}"), "jobs.a.steps[0].run", 6, "runner.tool does not exist"),
    (workflow(step="{run: '${{ fromJSON(x) }}'}"), "jobs.a.steps[0].run", 6, "does not exist"),
    (workflow(step="{run: x, if: '${{ false }} x'}"), "jobs.a.steps[0].if", 6, "Unexpected"),
    (workflow(step="{uses: actions/checkout@v4, with: {'a b': c}}"), 'jobs.a.steps[0].with["a b"]', 6, "identifier"),
    (workflow(step="{uses: actions/checkout@v4, with: {ref: '${{ secrets.A }}'}}"), "jobs.a.steps[0].with.ref", 6, "secrets cannot"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "path", "line", "message"), WRONG)
def test_a_fault_is_reported_with_path_and_line(text, path, line, message):
    (found,) = errors_of(text)
    assert found[:2] == (path, line)
    assert message in found[2]
    assert found[2].endswith((".", "…")), found[2]


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        (workflow(extra="name: '${{ shithub.ref }}'\n"), "name", "not evaluated"),
        (workflow(step="{run: x, with: {a: b}}"), "jobs.a.steps[0].with", "no effect"),
        (workflow(step="{uses: actions/setup-python@v5}"), "jobs.a.steps[0].uses", "first generation"),
        (workflow(step="{uses: shithub/upload-artifact@v1}"), "jobs.a.steps[0].uses", "first generation"),
        (workflow(step="{uses: actions/checkout@v4, with: {ref: x}}"), "jobs.a.steps[0].with.ref", "fetch-depth"),
        (workflow(step="{run: 'echo ::set-output name=a::b'}"), "jobs.a.steps[0].run", "::set-output has no effect"),
        (workflow(step="{run: 'echo ${{ github.sha }}'}"), "jobs.a.steps[0].run", "shithub instead of github"),
    ],
)  # fmt: skip
def test_a_warning_prevents_no_run(text, path, message):
    found = parsed(text)
    assert found.workflow is not None
    (warning,) = found.diagnostics
    assert (warning.severity, warning.path) == (Severity.WARNING, path)
    assert message in warning.message


def jobs_with(needs):
    return "".join(
        f"  {key}: {{runs-on: x, needs: [{', '.join(needed)}], steps: [run: y]}}\n" for key, needed in needs.items()
    )


def test_a_circle_of_needs_names_the_jobs_in_it():
    text = workflow(jobs=jobs_with({"a": ["c"], "b": ["a"], "c": ["b"], "d": ["a"], "e": []}))
    assert [path for path, _, _ in errors_of(text)] == ["jobs.a", "jobs.b", "jobs.c"]


def test_two_jobs_in_no_circle_may_need_one():
    text = workflow(jobs=jobs_with({"d": ["b", "c"], "b": ["a"], "c": ["a", "a"], "a": []}))
    assert {job.key: job.needs for job in parsed(text).workflow.jobs} == {
        "d": ("b", "c"), "b": ("a",), "c": ("a",), "a": (),
    }  # fmt: skip


@given(st.dictionaries(st.sampled_from("abcdef"), st.lists(st.sampled_from("abcdef"), max_size=3).map(tuple)))
def test_a_job_is_in_a_circle_if_it_reaches_itself(needs):
    def reaches(start, goal, seen=frozenset()):
        return any(
            key == goal or (key not in seen and reaches(key, goal, seen | {key})) for key in needs.get(start, ())
        )

    assert set(circular(needs)) == {key for key in needs if reaches(key, key)}


def test_the_numbers_of_jobs_and_steps_are_limited():
    many = "".join(f"  j{n}: {{runs-on: x, steps: [run: y]}}\n" for n in range(MAX_JOBS + 1))
    assert errors_of(workflow(jobs=many))[0][2].startswith(f"There are {MAX_JOBS + 1} jobs")
    steps = "[" + "run: y, " * (MAX_STEPS + 1) + "]"
    assert errors_of(workflow(jobs=f"  a: {{runs-on: x, steps: {steps}}}\n"))[0][0] == "jobs.a.steps"
    fitting = "[" + "run: y, " * MAX_STEPS + "]"
    assert len(parsed(workflow(jobs=f"  a: {{runs-on: x, steps: {fitting}}}\n")).workflow.jobs[0].steps) == MAX_STEPS


def test_an_alias_is_a_copy():
    text = "on: push\njobs:\n  a: &a\n    runs-on: x\n    steps: &s\n      - run: y\n  b: *a\n  c: {runs-on: z, steps: *s}\n"
    a, b, c = parsed(text).workflow.jobs
    assert (a.steps, a.runs_on) == (b.steps, b.runs_on)
    assert c.steps == a.steps


def test_all_faults_of_a_file_are_reported_in_the_order_of_its_lines():
    text = "jobs:\n  a:\n    steps: []\n    runs_on: x\non: pusch\nnmae: x\n"
    assert [(path, line) for path, line, _ in errors_of(text)] == [
        ("jobs.a", 2), ("jobs.a.steps", 3), ("jobs.a.runs_on", 4), ("on", 5), ("nmae", 6),
    ]  # fmt: skip


def test_the_number_of_diagnostics_is_limited():
    found = parsed("".join(f"k{n}: x\n" for n in range(5000)))
    assert len(found.diagnostics) == MAX_DIAGNOSTICS + 1
    assert any("left out" in diagnostic.message for diagnostic in found.diagnostics)


def test_text_of_the_file_is_harmless_in_messages():
    found = parsed('"\\e[31m\\u202e\\n": x\n' + workflow(step='{uses: "\\e]0;x\\a\\u2028"}'))
    assert all(diagnostic.message.isprintable() and diagnostic.path.isascii() for diagnostic in found.diagnostics)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_workflow_or_have_a_diagnostic(content):
    found = parse_workflow(content)
    assert found.workflow is not None or found.diagnostics


FRAGMENTS = st.sampled_from(
    [
        *("on:", "push", "jobs:", "a:", "runs-on:", "linux", "steps:", "- run: x", "needs:", "if:", "env:", "with:"),
        *(
            "\n",
            "\n  ",
            "\n    ",
            "\n      ",
            ": ",
            "- ",
            "[",
            "]",
            "{",
            "}",
            ", ",
            "&a",
            "*a",
            "'",
            '"',
            "|",
            ">",
            "!",
        ),
        *("${{", "}}", "secrets.A", "vars.B", "success()", "&&", "true", "null", "~", "0", "schedule:", "cron:"),
    ]
)


@given(st.lists(FRAGMENTS, max_size=40).map("".join))
def test_any_fragments_are_a_workflow_or_have_a_diagnostic(text):
    found = parsed(text)
    assert found.workflow is not None or any(d.severity == Severity.ERROR for d in found.diagnostics)
    assert all(1 <= diagnostic.line <= text.count("\n") + 2 for diagnostic in found.diagnostics)


LINES = FULL.splitlines(keepends=True)


@given(
    st.integers(0, len(LINES) - 1), st.integers(0, len(LINES) - 1), st.sampled_from(["drop", "copy", "indent", "cut"])
)
def test_a_damaged_file_is_a_workflow_or_has_a_diagnostic(place, other, damage):
    lines = list(LINES)
    match damage:
        case "drop":
            del lines[place]
        case "copy":
            lines.insert(place, lines[other])
        case "indent":
            lines[place] = "  " + lines[place]
        case "cut":
            lines[place] = lines[place][: len(lines[place]) // 2]
    found = parsed("".join(lines))
    assert found.workflow is not None or any(d.severity == Severity.ERROR for d in found.diagnostics)


def check(*files):
    command = [sys.executable, "manage.py", "workflow", "check", *map(str, files)]
    done = subprocess.run(
        command, cwd=BASE_DIR, capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "DATABASE_URL": "postgres://nobody@127.0.0.1:1/none"},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_the_command_checks_files_without_a_database(tmp_path):
    right, wrong, missing = tmp_path / "right.yml", tmp_path / "wrong.yml", tmp_path / "missing.yml"
    right.write_text(FULL)
    wrong.write_text(workflow(job="    strategy: {}\n"))
    status, out, _ = check(right)
    assert status == 0
    assert (
        out.splitlines()[0] == f"{right}:30: warning: concurrency.group: Use shithub instead of github in expressions."
    )
    status, out, _ = check(wrong)
    assert status == 2
    assert out.startswith(f"{wrong}:5: error: jobs.a.strategy: This key is unknown.")
    status, out, error = check(missing)
    assert (status, out) == (1, "")
    assert error.strip() == f"{missing}: No such file or directory."
    assert check(right, wrong, missing)[0] == 2


@pytest.mark.parametrize(
    ("step", "is_needed"),
    [
        ("{run: make}", False),
        ("{uses: actions/checkout@v4}", False),
        ("{run: 'echo ${{ github.sha }}', working-directory: src}", False),
        ("{uses: actions/checkout@v3}", True),
        ("{run: make, shell: sh}", True),
        ("{run: 'echo a=b >> $GITHUB_OUTPUT'}", True),
        ("{run: make, if: \"steps.a.outcome == 'success'\"}", True),
        ("{run: make, env: {A: '${{ github.repository }}'}}", True),
        ("{run: make, working-directory: '${{ steps.a.outputs.b }}'}", True),
    ],
)
def test_a_job_that_other_runners_cannot_execute_is_marked(step, is_needed):
    workflow_ = parse_workflow(workflow(step=step).encode()).workflow
    assert [job.needs_own_worker for job in workflow_.jobs] == [is_needed]


def test_a_job_is_not_marked_for_what_the_server_evaluates_or_another_job_has():
    text = """
on: push
concurrency: ${{ github.workflow }}
jobs:
  a: {runs-on: linux, if: "github.event_name == 'push'", steps: [{run: x}]}
  b: {runs-on: linux, defaults: {run: {shell: sh}}, steps: [{run: x}]}
  c: {runs-on: linux, defaults: {run: {working-directory: src}}, steps: [{run: x}, {uses: actions/checkout@v4}]}
"""
    jobs = parse_workflow(text.encode()).workflow.jobs
    assert [job.needs_own_worker for job in jobs] == [False, True, False]
    assert [step.working_directory for step in jobs[2].steps] == ["src", ""]
