"""A repository that attacks whoever runs it, all the way through: the job ends like any other and the machine is as it was.

Each attack alone, with what the trace says of it, is in `tests/workers/engines` and `tests/workers/agent/test_checkout.py`.
"""

import signal
from pathlib import Path

import pytest

from orchestrator.ingest.models import Run
from tests.integration.conftest import Yard
from tests.integration.test_worker_faults import log_of
from tests.workers.agent.repositories import Repository, git
from tests.workers.engines.conftest import host_state
from tests.workers.engines.payloads import TRY

pytestmark = pytest.mark.slow

REFUSED = {"EPERM", "EACCES", "EROFS", "ENOENT", "ENOSYS", "EAFNOSUPPORT", "ENETUNREACH", "ECONNREFUSED", "ESRCH"}
ATTACKS = r"""
my ($none, $tmp, $fs, $room) = ("none", "/tmp", "tmpfs", "\0" x 256);
calls(mount => [165, $none, $tmp, $fs, 0, 0], chroot => [161, $tmp], unshare => [272, 0x10000000], setns => [308, 0, 0],
    attach => [101, 16, 1, 0, 0], readv => [310, 1, $room, 1, $room, 1, 0], getfd => [438, 3, 0, 0],
    io_uring => [425, 8, $room], bpf => [321, 0, $room, 128], userfaultfd => [323, 0], keyctl => [250, 0, -3, 0, 0, 0],
    module => [313, 0, my $empty = "", 0], reboot => [169, 0, 0, 0, 0], settime => [227, 0, $room],
    vsock => [41, 40, 3, 0], packet => [41, 17, 3, 0], clone3 => [435, pack('Q11', 0x800000, (0) x 10), 88],
    untraced => [56, 0x800000 | 17, 0, 0, 0, 0], typed => [16, 0, 0x5412, my $letter = "x"]);
for my $file ('/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger', '/etc/passwd', '/usr/bin/evil', '/root/evil') {
    try("write $file" =~ s/ /:/r => sub { open(my $f, '+>', $file) ? 1 : -1 });
}
try('read:shadow' => sub { open(my $f, '<', '/etc/shadow') ? 1 : -1 });
socket(my $web, 2, 1, 0); try('metadata' => sub { connect($web, pack('S n C4 x8', 2, 80, 169, 254, 169, 254)) ? 1 : -1 });
unless (fork) { setpgrp; unless (fork) { $SIG{TERM} = 'IGNORE'; open STDOUT, '>', '/dev/null'; sleep 600 } exit }
open(my $link, '>', 'escape'); print "over\n";
"""


def hostile(path: Path, marker: Path) -> str:
    """Return the commit: filters, a submodule, hooks, a link out of the tree, a nested repository with a program in it."""
    repository = Repository(path)
    files = {
        "attack.pl": (TRY + ATTACKS).encode(),
        ".gitattributes": b"* filter=evil\n",
        ".lfsconfig": f'[lfs]\n\turl = "ext::sh -c touch% {marker}"\n'.encode(),
        ".gitmodules": f'[submodule "sub"]\n\tpath = sub\n\turl = ext::sh -c touch% {marker}\n'.encode(),
        "hooks/post-checkout.sh": f"#!/bin/sh\ntouch {marker}\n".encode(),
        "nested/HEAD": b"ref: refs/heads/main\n",
        "nested/config": f"[core]\n\tbare = true\n\tfsmonitor = touch {marker}\n".encode(),
        "nested/objects/x": b"",
        "nested/refs/x": b"",
    }
    inner = git("hash-object", "-t", "commit", "-w", "--stdin", "--literally", at=path, send=b"tree none\n")
    return repository.commit(files, links={"escape": str(marker)}, sub=inner)


@pytest.mark.parametrize("engine", ["bubblewrap", "restricted"])
def test_a_hostile_repository_ends_like_any_other_and_changes_nothing(yard: Yard, engine: str) -> None:
    marker = yard.root / "marker"
    yard.commit = hostile(yard.root / "mirrors" / "acme" / "hostile.git", marker)
    (yard.root / "mirrors" / "acme" / "web.git").rename(yard.root / "web.git")
    (yard.root / "mirrors" / "acme" / "hostile.git").rename(yard.root / "mirrors" / "acme" / "web.git")
    before = host_state()
    job = yard.submit("perl", "attack.pl")
    worker = yard.start(yard.enrol("one"), engine=engine)
    done = yard.ended(job)
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0, worker.log
    log = log_of(job.job_ulid).decode()
    assert (done.public_status, done.exit_code) == ("uploaded", 0), log
    assert log.endswith("over\n")
    answers = dict(line.split(" ", 1) for line in log.splitlines() if " " in line and line[0] != "[")
    assert len(answers) > 20
    assert set(answers.values()) <= REFUSED, answers
    assert not marker.exists()
    assert Run.objects.get().job_id == job.job_ulid
    assert host_state() == before
