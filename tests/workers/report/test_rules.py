"""Each rule fires on what it names, and stays silent on what honest tools do every day."""

import pytest

from tests.workers.traced import METADATA, fired, line, payload_of, recorded, result, spec, trace
from workers.engines.contract import MountPoints, NetworkRecord
from workers.report.report import RunReport
from workers.report.rules.registry import RULES, SEVERITIES

ENOENT = "-1 ENOENT (No such file or directory)"


def read(path: str, result: str = "3") -> str:
    shown = f"3<{path}>" if result == "3" else result
    return f'openat(AT_FDCWD</job>, "{path}", O_RDONLY|O_CLOEXEC) = {shown}'


def write(path: str, result: str = "3") -> str:
    shown = f"3<{path}>" if result == "3" else result
    return f'openat(AT_FDCWD</job>, "{path}", O_WRONLY|O_CREAT|O_TRUNC, 0644) = {shown}'


def runs(path: str, *argv: str) -> str:
    words = ", ".join(f'"{word}"' for word in argv)
    return f'execve("{path}", [{words}], 0x7f00 /* 5 vars */) = 0'


def connects(host: str, port: int = 443, result: str = "-1 ENETUNREACH (Network is unreachable)") -> str:
    return f'connect(3<socket:[1]>, {{sa_family=AF_INET, sin_port=htons({port}), sin_addr=inet_addr("{host}")}}, 16) = {result}'


def asks(*labels: str) -> str:
    name = "".join(f"\\{len(label):03o}{label}" for label in labels)
    question = f'"\\22\\64\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0{name}\\0\\0\\1\\0\\1"'
    to = '{sa_family=AF_INET, sin_port=htons(53), sin_addr=inet_addr("127.0.0.1")}'
    return f"sendto(4<socket:[2]>, {question}, 40, 0, {to}, 16) = 40"


def found(*calls: str, **options) -> dict[str, list[str]]:
    return fired(payload_of(trace(*calls), **options))


@pytest.mark.parametrize(
    "path",
    ["/home/job/.ssh/id_rsa", "/root/.ssh/config", "/job/.npmrc", "/home/job/.netrc", "/home/job/.docker/config.json",
     "/home/job/.aws/credentials", "/home/job/.kube/config", "/job/.env", "/job/web/.env.production", "/etc/shadow",
     "/home/job/.git-credentials", "/home/job/.config/gcloud/application_default_credentials.json", "/home/job/.pypirc",
     "/home/job/.cargo/credentials.toml", "/home/job/.gnupg/secring.gpg", "/run/secrets/token", "/proc/1/environ",
     "/job/deploy/id_ed25519", "/home/job/.bash_history"],
)  # fmt: skip
@pytest.mark.parametrize("result", ["3", ENOENT])
def test_reading_credentials_is_suspicious_also_when_there_are_none(path, result):
    assert list(found(read(path, result))) == ["credential_read"]


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "/etc/ld.so.cache", "/home/job/.ssh/id_rsa.pub", "/job/.env.example", "/job/.envrc", "/job/.npmignore",
     "/proc/self/environ", "/job/src/aws/credentials.py", "/job/.env/lib/python3/site.py", "/etc/resolv.conf", "/proc/1/stat"],
)  # fmt: skip
def test_ordinary_files_are_not_credentials(path):
    assert found(read(path)) == {}


def test_listing_a_directory_named_env_is_not_reading_it():
    assert found('openat(AT_FDCWD</job>, ".env", O_RDONLY|O_DIRECTORY) = 3</job/.env>') == {}


def test_a_link_does_not_hide_where_it_leads():
    assert found('openat(AT_FDCWD</job>, "notes.txt", O_RDONLY) = 3</home/job/.ssh/id_rsa>') == {
        "credential_read": ["~/.ssh/id_rsa"]
    }


def test_taking_a_credential_by_rename_or_link_counts():
    assert found('rename("/job/.env", "/job/x") = 0')["credential_read"] == ["./.env"]
    assert found('linkat(AT_FDCWD</job>, ".env", AT_FDCWD</job>, "x", 0) = 0')["credential_read"] == ["./.env"]


def test_a_tool_may_read_its_own_configuration():
    assert found(runs("/usr/bin/node", "node", "/usr/bin/npm", "install"), read("/home/job/.npmrc")) == {}
    assert found(runs("/usr/bin/git", "git", "fetch"), read("/home/job/.netrc")) == {}
    assert found(runs("/usr/bin/ssh", "ssh", "host"), read("/home/job/.ssh/id_rsa")) == {}


@pytest.mark.parametrize(
    "program",
    [
        runs("/job/npm", "npm", "install"),
        runs("/usr/bin/node", "node", "./npm"),
        runs("/usr/bin/node", "node", "install.js", "/usr/bin/npm"),
        runs("/usr/bin/cat", "npm", "/home/job/.npmrc"),
        runs("/usr/bin/cat", "cat", "/usr/bin/npm"),
    ],
)
def test_nobody_becomes_that_tool_by_taking_its_name(program):
    assert "credential_read" in found(program, read("/home/job/.npmrc"))


@pytest.mark.parametrize(
    "program",
    [
        runs("/usr/bin/python3", "python3", "-m", "ssh"),  # ./ssh.py
        runs("/usr/bin/python3.11", "python3.11", "-m", "ssh"),
        runs("/usr/bin/sh", "sh", "-m", "/usr/bin/ssh"),
        runs("/usr/bin/sha256sum", "sha256sum", "/usr/bin/ssh", "/home/job/.ssh/id_rsa"),
        runs("/usr/bin/shuf", "shuf", "/usr/bin/ssh"),
        runs("/usr/bin/perldoc", "perldoc", "/usr/bin/ssh"),
    ],
)
def test_a_module_or_the_file_of_another_program_is_not_that_tool(program):
    assert "credential_read" in found(program, read("/home/job/.ssh/id_rsa"))


@pytest.mark.parametrize(
    "interpreter", ["node", "nodejs", "node18", "python3", "python3.11", "perl5.36.0", "ruby3.1", "sh"]
)
def test_a_tool_of_an_interpreter_of_any_version_is_that_tool(interpreter):
    assert found(runs(f"/usr/bin/{interpreter}", interpreter, "/usr/bin/npm"), read("/home/job/.npmrc")) == {}


def test_git_reads_what_it_versions():
    assert found(runs("/usr/bin/git", "git", "add", "-A"), read("/job/.env")) == {}
    assert "credential_read" in found(runs("/usr/bin/git", "git", "add", "-A"), read("/home/job/.env"))


@pytest.mark.parametrize(
    "call",
    [write("/etc/evil", "-1 EROFS (Read-only file system)"), write("/root/x", ENOENT), 'unlink("/usr/bin/git") = -1 EACCES (Permission denied)',
     'rename("/job/a", "/usr/a") = -1 EXDEV (Invalid cross-device link)', 'mkdir("/opt/x", 0777) = -1 EROFS (Read-only file system)',
     'symlink("/x", "/etc/y") = -1 EROFS (x)', 'chmod("/etc/hosts", 0666) = -1 EROFS (x)', 'truncate("/etc/hosts", 0) = -1 EROFS (x)',
     'openat(AT_FDCWD</job>, "../etc/x", O_RDWR) = -1 EROFS (x)'],
)  # fmt: skip
def test_writing_outside_is_suspicious_though_it_fails(call):
    assert list(found(call)) == ["write_outside"]


@pytest.mark.parametrize(
    "call",
    [write("/job/x"), write("/tmp/x"), write("/dev/shm/x"), write("/home/job/.npm/x"), write("/dev/null"), write("/dev/tty", "-1 ENXIO (x)"),
     write("/dev/pts/0"), write("/proc/self/oom_score_adj"), write("/proc/self/task/12/comm"), 'mkdir("/usr", 0777) = -1 EEXIST (File exists)',
     'mkdir("/", 0777) = -1 EEXIST (File exists)', write("/usr/lib/python3/x/__pycache__/y.cpython-311.pyc.123", "-1 EROFS (x)"),
     'mkdir("/usr/lib/python3/x/__pycache__", 0777) = -1 EROFS (x)', 'unlink("x") = 0'],
)  # fmt: skip
def test_writing_in_its_own_places_is_not(call):
    assert found(call) == {}


def test_relative_paths_start_where_the_process_stands():
    assert found('chdir("/etc") = 0', 'unlink("hosts") = -1 EROFS (x)')["write_outside"] == ["/etc/hosts (EROFS)"]
    assert found('chdir("/job/web") = 0', 'unlink("hosts") = 0') == {}
    assert found("fchdir(4</usr>) = 0", 'unlink("x") = -1 EROFS (x)')["write_outside"] == ["/usr/x (EROFS)"]


ONE_EACH = {
    "kernel_write": write("/proc/sys/kernel/core_pattern", "-1 EACCES (Permission denied)"),
    "persistence_write": write("/home/job/.bashrc"),
    "setuid_bit": 'fchmodat(AT_FDCWD</job>, "x", 04755) = 0',
    "exec_from_temporary": runs("/tmp/x", "x"),
    "exec_from_memory": 'execveat(7</memfd:evil>(deleted), "", ["x"], 0x1 /* 0 vars */, AT_EMPTY_PATH) = 0',
    "exec_refused": 'execve("/usr/bin/curl", ["curl"], 0x7ffc) = -1 EPERM (Operation not permitted)',
    "sandbox_escape": "ptrace(0x10, 0x1, 0x0, 0x0, 0x0, 0x0) = -1 EPERM (Operation not permitted)",
    "kill_outside": "kill(-1, SIGTERM) = -1 ESRCH (No such process)",
    "unusual_socket": "socket(AF_VSOCK, SOCK_STREAM, 0) = -1 EAFNOSUPPORT (Address family not supported by protocol)",
    "metadata_address": connects("169.254.169.254", 80),
    "private_address": connects("10.1.2.3"),
    "connection_outside": connects("203.0.113.7"),
    "host_socket": 'connect(3<socket:[1]>, {sa_family=AF_UNIX, sun_path="/var/run/docker.sock"}, 110) = ' + ENOENT,
    "lookup_outside": asks("evil", "example", "test"),
}


@pytest.mark.parametrize("rule", ONE_EACH)
def test_each_rule_fires_alone(rule):
    assert list(found(ONE_EACH[rule])) == [rule]


def test_mounting_and_new_namespaces_are_attempts_to_escape():
    for call in ('mount("x", "/mnt", 0x0, 0x0, 0x0, 0x0) = -1 EPERM (x)', "unshare(CLONE_NEWNS) = 0", "unshare(0x10000000, 0x0) = -1 EPERM (x)",
                 "setns(0x3, 0x0) = -1 EPERM (x)", "clone(child_stack=NULL, flags=CLONE_NEWUSER|SIGCHLD) = -1 EPERM (x)",
                 "clone(0x10000011, 0x0, 0x0) = -1 EPERM (x)"):  # fmt: skip
        assert list(found(call)) == ["sandbox_escape"], call
    assert found("unshare(CLONE_FS) = 0") == {}
    assert found("unshare(0x200, 0x0) = 0") == {}


def test_a_pair_of_an_unusual_family_is_an_unusual_socket():
    refused = "-1 EAFNOSUPPORT (Address family not supported by protocol)"
    assert found(f"socketpair(AF_ALG, SOCK_SEQPACKET, 0, 0x7ffd) = {refused}") == {
        "unusual_socket": ["AF_ALG (EAFNOSUPPORT)"]
    }


def test_signals_to_ones_own_children_are_ordinary():
    assert found("kill(12, SIGTERM) = 0", "kill(1, 0) = 0", "kill(99, SIGKILL) = -1 ESRCH (No such process)") == {}
    assert "kill_outside" in found("kill(99, SIGKILL) = -1 EPERM (Operation not permitted)")
    assert "kill_outside" in found("kill(1, SIGKILL) = 0")


def test_death_by_sigsys_is_reported_whatever_the_source():
    assert list(fired(payload_of(trace() + line("+++ killed by SIGSYS +++"), signal="SIGSYS"))) == ["bad_syscall"]
    assert list(fired(payload_of(trace(), exit_code=159))) == ["bad_syscall"]
    assert list(fired(payload_of(trace(), kind="signaled", exit_code=None, signal="SIGSYS"))) == ["bad_syscall"]


def test_only_sockets_that_others_can_reach_by_name_are_listening():
    bind = 'bind(3<socket:[9]>, {sa_family=AF_INET, sin_port=htons(8081), sin_addr=inet_addr("0.0.0.0")}, 16) = 0'
    assert found(bind, "listen(3<socket:[9]>, 5) = 0") == {"listening_socket": ["0.0.0.0:8081"]}
    unix = 'bind(3<socket:[9]>, {sa_family=AF_UNIX, sun_path="/tmp/s"}, 110) = 0'
    assert found(unix, "listen(3<socket:[9]>, 5) = 0") == {}


def test_expected_hosts_are_not_suspicious():
    expected = ("packages.example.test", "*.mirror.test", "203.0.113.7:443")
    assert found(asks("packages", "example", "test"), asks("a", "mirror", "test"), expected=expected) == {}
    assert found(connects("203.0.113.7"), expected=expected) == {}
    assert list(found(connects("203.0.113.7", 22), expected=expected)) == ["connection_outside"]
    assert list(found(asks("evilpackages", "example", "test"), asks("mirror", "test"), expected=expected)) == [
        "lookup_outside"
    ]


def test_loopback_and_names_without_a_dot_are_not_outside():
    assert found(connects("127.0.0.1", 3128, "0"), connects("0.0.0.0", 80), asks("sandbox"), asks("localhost")) == {}


def test_what_the_egress_proxy_refused_is_outside():
    refused = NetworkRecord("evil.example.test", 443, "refused", reason="not allowed")
    allowed = NetworkRecord("packages.example.test", 443, "allowed", "203.0.113.9", 10, 20)
    assert fired(payload_of(trace(), network=(refused, allowed))) == {"connection_outside": ["evil.example.test:443"]}


def test_names_that_carry_data_are_distinguished():
    assert set(found(asks("a" * 50, "example", "test"))) == {"encoded_lookup", "lookup_outside"}


def test_the_way_to_a_resolver_is_judged_by_what_is_asked():
    assert found(connects("10.0.0.53", 53, "0")) == {}


def test_a_checkout_below_a_temporary_directory_is_not_temporary():
    report = RunReport(MountPoints("/tmp/slot/job", "/tmp/slot/home"))
    report.feed(trace(runs("/tmp/slot/job/configure", "configure"), runs("/tmp/slot/home/.local/bin/x", "x")))
    assert fired(report.payload(metadata=METADATA, result=result(), spec=spec())) == {}


def test_the_cloud_s_own_name_is_its_address():
    assert "metadata_address" in found(asks("metadata", "google", "internal"))


def test_a_name_is_found_in_every_way_of_sending():
    hidden = '"\\22\\64\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\4evil\\4test\\0\\0\\1\\0\\1"'
    peer = 'connect(4<socket:[2]>, {sa_family=AF_INET, sin_port=htons(53), sin_addr=inet_addr("127.0.0.1")}, 16) = 0'
    header = f"{{msg_name=NULL, msg_namelen=0, msg_iov=[{{iov_base={hidden}, iov_len=27}}], msg_iovlen=1, msg_flags=0}}"
    for call in (f"sendto(4<socket:[2]>, {hidden}, 27, 0, NULL, 0) = 27", f"sendmsg(4<socket:[2]>, {header}, 0) = 27",
                 f"sendmmsg(4<socket:[2]>, [{{msg_hdr={header}, msg_len=27}}], 1, 0) = 1"):  # fmt: skip
        assert found(peer, call) == {"lookup_outside": ["evil.test"]}, call


def test_a_package_s_own_script_is_worth_a_word():
    npm = runs("/usr/bin/node", "node", "/usr/bin/npm", "install")
    data = trace(npm, "vfork( <unfinished ...>") + line(runs("/bin/sh", "sh", "-c", "node install.js"), pid=501)
    assert fired(payload_of(data)) == {"install_script": ["sh -c node install.js"]}


def test_a_shell_of_a_package_manager_that_runs_as_a_module_is_reported():
    data = trace(runs("/usr/bin/python3", "python3", "-m", "pip"), "vfork( <unfinished ...>")
    data += line(runs("/bin/sh", "sh", "-c", "make"), pid=501)
    assert fired(payload_of(data)) == {"install_script": ["sh -c make"]}


def test_a_cut_trace_is_reported():
    assert fired(payload_of(trace(), trace_truncated=True, trace_bytes=1 << 30)) == {"trace_cut": ["1073741824 bytes"]}


@pytest.mark.parametrize("name", ["git", "npm", "pip", "compiler"])
def test_honest_tools_break_no_rule(name):
    assert fired(payload_of(recorded(name), expected=("packages.example.test",))) == {}


def test_the_recorded_attack_breaks_the_rules_it_was_made_for():
    assert set(fired(payload_of(recorded("hostile")))) >= {
        "credential_read", "write_outside", "kernel_write", "persistence_write", "setuid_bit", "exec_from_temporary", "exec_from_memory",
        "kill_outside", "unusual_socket", "bad_syscall", "metadata_address", "private_address", "connection_outside", "lookup_outside",
        "host_socket", "listening_socket",
    }  # fmt: skip


def test_every_rule_has_a_name_a_severity_and_a_reason():
    rules = [rule for group in RULES.values() for rule in group]
    assert all(rule.severity in SEVERITIES and rule.name.isidentifier() and len(rule.reason) > 10 for rule in rules)
    reasons = {(rule.name, rule.severity, rule.reason) for rule in rules}
    assert len(reasons) == len({rule.name for rule in rules}), "one name, one meaning"
