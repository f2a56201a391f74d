"""A job that may not start programs: its own command runs, and no other, however it is asked for."""

import pytest

from tests.workers.engines.payloads import TRY, results


def test_one_program_may_not_start_another(bench):
    run = bench.sh("/bin/true; ls; (echo a subshell is no program)", allow_exec=False)
    assert run.output.count("Operation not permitted") == 2
    assert "a subshell is no program" in run.output
    assert run.seen('execve("/bin/true", ["/bin/true"]', "EPERM")
    assert run.seen("execve(", '"/usr/bin/ls", ["ls"]', "EPERM")
    assert len(run.seen('"/bin/true", [')) == 1, "each attempt stands there once"


def test_one_program_s_own_descriptor_cannot_be_had_again(bench):
    run = bench.perl(
        TRY
        + r"""
        my $empty = ''; open my $true, '<', '/bin/true';
        calls(execveat_same => [322, 4095, $empty, 0, 0, 0x1000], execveat_other => [322, fileno $true, $empty, 0, 0, 0x1000],
            dup2 => [33, fileno $true, 4095], dup => [72, fileno $true, 0, 4095], raise => [160, 7, my $l = pack('QQ', 9999, 9999)],
            execveat_path => [322, -100, my $p = '/bin/true', 0, 0, 0]);
        """,
        allow_exec=False,
    )
    found = results(run)
    assert found == {
        "execveat_same": "EBADF", "execveat_other": "EPERM", "dup2": "EBADF", "dup": "EINVAL", "raise": "EPERM",
        "execveat_path": "EPERM",
    }  # fmt: skip


@pytest.mark.parametrize(
    "line", ["#!/usr/bin/perl", "#! /usr/bin/perl -w", "#!/usr/bin/env perl", "#!/usr/bin/env -S perl -w"]
)
def test_one_program_may_be_a_script(bench, line):
    script = f"{line}\nprint qq($0 @ARGV\\n); system '/bin/true'; print $? == -1 ? 'refused' : 'started';\n"
    run = bench.run("./script", "a b", files={"script": script}, allow_exec=False)
    assert "./script a b" in run.output.splitlines()
    assert run.output.splitlines()[-1] == "refused"
    assert run.result.exit_code == 0


def test_one_program_that_does_not_exist_is_not_found(bench):
    for files in ({}, {"script": "#!/no/such/interpreter\n"}, {"script": "#!/usr/bin/env no-such\n"}):
        assert bench.run("./script", files=files, allow_exec=False).kind == "not_found"


def test_exec_control_is_named_among_the_layers(bench):
    assert "one_program" in bench.sh("true", allow_exec=False).result.enforced_layers
    assert "one_program" not in bench.sh("true").result.enforced_layers
