"""Commands in images: their user, directory and files, what they see of the machine, and what is left of them."""

import contextlib
import os
import re
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.workers.engines.conftest import SMALL
from tests.workers.images import Image, base, entry, folder, layer, symlink
from workers.engines.bubblewrap.engine import BubblewrapEngine
from workers.engines.contract import EgressPolicy, StopSignal, TraceLevel
from workers.engines.limits import volumes
from workers.engines.oci import images
from workers.engines.oci.documents import ImageInvalid
from workers.engines.oci.images import ImageCache
from workers.engines.sandbox import self_test

PERL = "/usr/lib/x86_64-linux-gnu/perl-base"


def open_files():
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            yield link.readlink()


def test_the_user_is_that_of_the_image(bench):
    wanted = {
        "": "0 0 /root",
        "app": "1000 1000 /home/app",
        "1000": "1000 1000 /home/app",
        "app:extra": "1000 1001 /home/app",
        "7:8": "7 8 /",
        "app:0": "1000 0 /home/app",
    }
    for user, found in wanted.items():
        result, output, _, _ = bench.in_image((), "echo $(id -u) $(id -g) $HOME", config={"User": user})
        assert (result.kind, output) == ("exited", f"{found}\n"), user
    for user, words in {"nobody": "no user 'nobody'", "app:none": "no group 'none'", "99999999999": "no user"}.items():
        with pytest.raises(ImageInvalid, match=words):
            bench.in_image((), "true", config={"User": user})


def test_accounts_are_read_inside_of_the_image(bench):
    """A link out of the image leads to its own files, and a pipe or a huge file costs nothing."""
    out = layer(
        entry("real", b"me:x:5:6::/me:/bin/sh\n"), entry("etc/.wh.passwd"), symlink("etc/passwd", "/../../real")
    )
    assert bench.in_image([out], "id -u", config={"User": "me"})[1] == "5\n"
    with pytest.raises(ImageInvalid, match="no user"):
        bench.in_image([layer(entry("etc/passwd", b"x" * (3 << 20)))], "true", config={"User": "app"})


def test_the_command_has_the_whole_image_for_itself(bench):
    """Changes are the job's own: the next one, in another slot, sees the image as it was, and files of all modes."""
    script = "cat /home/app/own; echo more >> /home/app/own; rm -r /srv; ls -d /srv; pwd; cat /home/app/own"
    with bench.tree(Image((base(),), {"User": "app"})) as tree:
        for slot in (0, 1, 0):
            with bench.rooted(tree, "/bin/sh", "-c", script, slot=slot, directory="/made/here") as spec:
                result, output, errors, trace = bench.run_spec(spec)
            assert (result.exit_code, output) == (0, "mine\n/made/here\nmine\nmore\n")
            assert errors == "ls: cannot access '/srv': No such file or directory\n"
            assert re.search(r'openat\(AT_FDCWD</made/here>, "/home/app/own".* = 3</home/app/own>', trace)
            assert str(bench.base) not in trace
        assert (tree.path / "home/app/own").read_text() == "mine\n"
    bench.engine.clean(range(4))
    assert [link for link in map(str, open_files()) if link.startswith("user:")] == []


def test_links_of_an_image_lead_nowhere_else(bench):
    """An image decides what is at the mount points, and at the files that the worker writes."""
    victim = bench.base / "victim"
    victim.write_text("untouched")
    links = layer(
        *[symlink(name, "/usr") for name in ("proc", "job")],
        entry("dev", b"no directory"),
        symlink("etc/hosts", str(victim)),
        folder("etc/resolv.conf"),
        symlink("work", "../../../../srv"),
    )
    script = "ls /job /proc/self/status; cat /etc/hosts; echo x > /dev/null; pwd -P; echo end"
    result, output, errors, _ = bench.in_image([links], script, directory="/work/deep")
    assert (result.exit_code, errors) == (0, "")
    assert output.splitlines()[-4:] == ["127.0.0.1 localhost sandbox", "::1 localhost", "/srv/deep", "end"]
    assert victim.read_text() == "untouched"
    other = bench.base / "other"
    other.mkdir()
    assert bench.in_image([layer(symlink("etc", str(other)))], "echo end")[1] == "end\n"
    assert list(other.iterdir()) == []
    with pytest.raises(ImageInvalid, match="working directory '/bin/sh/x'"):
        bench.in_image((), "true", directory="/bin/sh/x")


def test_a_job_in_an_image_attacks_its_sandbox_as_in_every_other(bench, monkeypatch):
    """The attacks of the self-test, as root of the image. It may write to its own root and system, and nowhere else."""
    files = [path for path in Path(PERL).rglob("*") if path.is_file()]
    perl = [Path("/usr/bin/perl"), *files]
    found = subprocess.run(["ldd", "/usr/bin/perl"], capture_output=True, text=True, check=True).stdout
    perl += map(Path, re.findall(r"(/\S+) \(0x", found))
    image = Image((base(), layer(*[entry(str(path).lstrip("/"), path.read_bytes()) for path in perl])), {"User": "0"})
    engine = bench.engine

    def run(spec, output, trace, stop):
        place = spec.workspace.with_name(f"{spec.workspace.name}.image")
        with bench.tree(image, digest="perl") as tree, engine.root(tree, 0, place, "/") as root:
            return engine.run(replace(spec, root=root), output=output, trace=trace, stop=stop)

    @contextlib.contextmanager
    def workspace(owner):
        yield bench.place() if owner is not None else bench.base / "other"

    (bench.base / "other").mkdir()
    monkeypatch.setattr(self_test, "workspace", workspace)
    subject = self_test.EngineUnderTest(
        run, engine.owner, 0, engine.directory, lambda _: None, has_init=True, scopes_signals=True
    )
    own = ("a job can write into the system", "a job can write beside its workspace", "the command runs as 0 0")
    findings = self_test.check_isolation(subject)
    assert [words for words in findings if not words.startswith(own)] == []
    assert len(findings) == len(own)
    script = "cat /proc/1/syscall /proc/1/environ /proc/1/maps /proc/1/stack; head -c 1 /proc/1/mem"
    _, output, errors, _ = bench.in_image((), script, config={"User": "0"})
    assert (output, errors.count("Permission denied") + errors.count("not permitted")) == ("", 5)


def test_limits_and_network_hold_in_an_image(bench):
    fill = "for n in 1 2 3; do dd if=/dev/zero of=/big$n bs=1M 2>/dev/null; done; sleep 30"
    assert bench.in_image((), fill)[0].kind == "disk_full"
    many = "n=0; while :; do n=$((n+1)); mkdir /srv/$n || break; done; sleep 30"
    limits = replace(SMALL, inodes=600)
    assert bench.in_image((), many, limits=limits)[0].kind == "disk_full"
    assert bench.in_image((), "head -c 400000000 /dev/zero | tail")[0].exit_code == 127  # there is no tail
    assert bench.in_image((), "sleep 30", timeout_seconds=1.5)[0].kind == "timeout"
    with bench.tree(Image((base(),))) as tree, bench.rooted(tree, "missing") as spec:
        assert bench.run_spec(spec)[0].kind == "not_found"
        result, output, _, _ = bench.run_spec(replace(spec, argv=("env",), egress=EgressPolicy(("example.com",))))
        assert "https_proxy=http://127.0.0.1:3128" in output
        assert "egress_proxy" in result.enforced_layers
        assert bench.run_spec(replace(spec, argv=("true",), trace=TraceLevel.NONE))[0].exit_code == 0


def test_one_job_unpacks_while_others_wait(bench):
    pulls = []
    image = Image((base(),))

    def pull(place):
        pulls.append(place)
        return image.pull(place)

    found = []

    def hold(slot):
        with bench.engine.image("one", slot, bench.base, SMALL, pull=pull, stop=StopSignal()) as tree:
            found.append(tree)

    threads = [threading.Thread(target=hold, args=[slot]) for slot in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(pulls) == 1
    assert [tree is found[0] for tree in found] == [True] * 3


def test_the_tree_that_was_unused_for_longest_goes_first(bench, monkeypatch):
    monkeypatch.setattr(bench.engine, "cache", ImageCache(max_bytes=5 << 20, max_inodes=1000))
    size = layer(entry("x", bytes(2 << 20), mode=0o644))

    def use(name):
        with bench.tree(Image((size,)), digest=name) as tree:
            return tree.path

    a, b = use("a"), use("b")
    assert use("a") == a
    c = use("c")
    assert [path.exists() for path in (a, b, c)] == [True, False, True]
    with bench.tree(Image((size,)), digest="a"):  # the one in use stays, whatever the limit is
        monkeypatch.setattr(bench.engine.cache, "max_inodes", 1)
        use("d")
        assert [path.exists() for path in (a, c)] == [True, False]
    assert use("b") != b
    bench.engine.clean([0])
    assert [place for place in bench.base.iterdir() if place.name.startswith("slot-1")] == []


def test_unused_trees_go_for_their_number_and_for_a_full_disk(bench, monkeypatch):
    monkeypatch.setattr(bench.engine, "cache", ImageCache(max_bytes=1 << 40, max_inodes=1 << 40))
    monkeypatch.setattr(images, "_MAX_TREES", 3)
    small = Image((layer(entry("x")),))
    paths = []
    for name in "abcd":
        with bench.tree(small, digest=name) as tree:
            paths.append(tree.path)
    assert [path.exists() for path in paths] == [False, True, True, True]
    answers = ["low", "low", None, "low", "low", "low"]
    monkeypatch.setattr(BubblewrapEngine, "shortage", lambda *_: answers.pop(0))
    assert bench.engine.shortage(bench.base) is None
    assert [path.exists() for path in paths] == [False, False, False, True]
    with bench.tree(small, digest="e") as tree:
        assert bench.engine.shortage(bench.base) == "low"  # the one in use stays
        assert [path.exists() for path in (*paths, tree.path)] == [False] * 4 + [True]


def test_layers_do_not_stay_on_the_disk_of_the_machine(bench, monkeypatch):
    """Where it cannot be given back, what is left of the layers counts."""
    monkeypatch.setattr(bench.engine, "cache", ImageCache(max_bytes=10 << 20, max_inodes=1 << 40))
    monkeypatch.setattr(volumes, "_TRIM_BYTES", 1 << 20)
    small = Image((layer(entry("x")),))

    def pull(place):
        with (place / "large").open("wb") as file:
            file.write(os.urandom(6 << 20))
            os.fsync(file.fileno())
        return small.pull(place)

    def use(name):
        with bench.engine.image(name, 0, bench.base, SMALL, pull=pull, stop=StopSignal()) as tree:
            return tree.path, bench.engine.volumes.of(tree.path).allocated_bytes

    kept = [use("a"), use("b")]
    assert [(path.exists(), size < 4 << 20) for path, size in kept] == [(True, True)] * 2
    monkeypatch.setattr(volumes.Volume, "trim", lambda _: None)
    kept = [use("c"), use("d")]
    assert [(path.exists(), size < 4 << 20) for path, size in kept] == [(False, False), (True, False)]


def test_without_idmapped_mounts_each_slot_unpacks_for_itself(bench, monkeypatch):
    monkeypatch.setattr(bench.engine, "id_maps", None)
    paths = set()
    for slot in (0, 1, 0):
        with bench.tree(Image((base(),), {"User": "app"}), slot=slot, digest="own") as tree:
            paths.add(tree.path)
            with bench.rooted(tree, "cat", "/home/app/own", slot=slot) as spec:
                assert bench.run_spec(spec)[1] == "mine\n"
    assert len(paths) == 2
