"""Hostile and odd images, each with its expected answer: it is refused with a sentence, or unpacked as far as it is good."""

import contextlib
import errno
import gzip
import io
import json
import os
import stat
import tarfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.workers.engines.conftest import SMALL
from tests.workers.images import Image, archive, compressed, entry, folder, layer, symlink
from workers.engines.contract import EngineUnavailable, StopSignal
from workers.engines.oci import engine, unpack
from workers.engines.oci.documents import ImageInvalid
from workers.engines.oci.images import ImageStopped

MARK = "image-test-escaped"
CAPABILITY = "\x01\x00\x00\x02\x00\x20" + "\x00" * 14


def hard_link(name, target):
    return entry(name, kind=tarfile.LNKTYPE, link=target)


def zeros(size):
    """A layer with one file of zeros, which is small only while it is compressed."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=1) as packed:
        info, _ = entry("srv/zeros")
        info.size = size
        packed.write(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(size >> 20):
            packed.write(bytes(1 << 20))
        packed.write(bytes(1024))
    raw = gzip.decompress(buffer.getvalue())
    return compressed(raw)


def sparse_file():
    """The old form of GNU: 1 TiB, of which 512 bytes are in the archive."""
    head = bytearray(entry("srv/sparse")[0].tobuf(tarfile.GNU_FORMAT))
    head[156:157], head[124:136] = b"S", b"00000001000\0"
    head[386:398], head[398:410] = b"00000000000\0", b"00000001000\0"
    head[483:495] = b"\x80" + (1 << 40).to_bytes(11, "big")
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return compressed(bytes(head) + b"x" * 512 + bytes(1024))


def two_members(raw):
    """A layer whose gzip file has two members, as parallel compressors write it."""
    found = compressed(raw)
    return type(found)(gzip.compress(raw[:700]) + gzip.compress(raw[700:]), "gzip", found.diff_id)


SRV = layer(folder("srv"), entry("srv/a", b"a"), entry("srv/b", b"b"), folder("srv/d"), entry("srv/d/in"))
REFUSED = {
    "a name with dots": ([layer(entry(f"../../../../tmp/{MARK}", b"x"))], "outside of its root"),
    "a hard link to the machine": ([layer(hard_link("stolen", "/etc/hostname"))], "hard link to a file"),
    "a hard link with dots": ([layer(hard_link("stolen", "../../../../etc/hostname"))], "outside of its root"),
    "a hard link through a link": ([layer(symlink("e", "/etc"), hard_link("s", "e/hostname"))], "hard link to a file"),
    "a hard link to a directory": ([layer(folder("srv"), hard_link("s", "srv"))], "hard link to a directory"),
    "a whiteout of the parent": ([SRV, layer(entry("srv/.wh..."))], "invalid whiteout"),
    "a whiteout of nothing": ([SRV, layer(entry("srv/.wh."))], "invalid whiteout"),
    "an entry below a file": ([layer(entry("srv", b"x"), entry("srv/in", b"y"))], "below a file"),
    "a circle of links": ([layer(symlink("x", "y"), symlink("y", "x"), entry("x/in"))], "circle of links"),
    "a sparse file": ([sparse_file()], "sparse file"),
    "too deep": ([layer(folder("/".join(["d"] * 2100)))], "directories below one another"),
    "a long name": ([layer(entry("n" * 256))], "cannot be made: File name too long"),
    "a long name of a directory": ([layer(entry("n" * 256 + "/in"))], "cannot be made: File name too long"),
    "a link to nothing": ([layer(symlink("x", ""))], "cannot be made"),
    "a link to a long name": ([layer(symlink("x", "n/" * 2500))], "cannot be made: File name too long"),
    "a bomb of bytes": ([zeros(SMALL.disk_bytes + (32 << 20))], "too large"),
    "a bomb of files": ([layer(*[entry(f"srv/{n}") for n in range(SMALL.max_inodes + 100)])], "too large"),
    "no archive": ([compressed(b"no archive" * 100)], "Layer 1 is no valid archive"),
    "a cut archive": ([compressed(archive(entry("srv/a", b"x" * 3000))[:2048])], "Layer 1 is no valid archive"),
    "a bad header": (
        [compressed(archive(entry("a"))[:512] + b"bad" * 200 + bytes(1448))],
        "Layer 1 is no valid archive",
    ),
    "a cut header": ([compressed(archive(entry("a"))[:700])], "Layer 1 is no valid archive"),
    "no gzip": ([type(SRV)(b"no gzip", "gzip", SRV.diff_id)], "Layer 1 is no valid archive"),
    "cut gzip": ([type(SRV)(SRV.content[:-20], "gzip", SRV.diff_id)], "Layer 1 is no valid archive"),
    "no zstd": ([type(SRV)(b"no zstd", "zstd", SRV.diff_id)], "Layer 1 is no valid archive"),
    "another diff id": ([SRV, type(SRV)(SRV.content, "gzip", "sha256:" + "0" * 64)], "Layer 2 has another digest"),
}


def inside(path, **wanted):
    """Return a check: the paths of the tree have these contents; None: there is no such file."""

    def check(tree):
        for name, text in {path: wanted.get("text", ""), **wanted.get("more", {})}.items():
            place = tree.path / name
            assert (place.read_text() if os.path.lexists(place) else None) == text, name

    return check


def modes(**wanted):
    def check(tree):
        for name, mode in wanted.items():
            assert stat.S_IMODE((tree.path / name).stat().st_mode) == mode, name

    return check


def left_out(*names):
    def check(tree):
        assert tree.left_out_count == len(names)
        assert all(name in found for name, found in zip(names, tree.left_out, strict=True))

    return check


UNPACKED = {
    "whiteouts": (
        [SRV, layer(entry("srv/.wh.a")), layer(entry("srv/c", b"c"), entry("srv/.wh..wh..opq"), folder("srv/d"))],
        inside("srv/c", text="c", more={"srv/a": None, "srv/b": None, "srv/d/in": None}),
    ),
    "an absolute name": ([layer(entry(f"/tmp/{MARK}", b"x"))], inside(f"tmp/{MARK}", text="x")),
    "a link out": ([layer(symlink("out", "/tmp"), entry(f"out/{MARK}", b"x"))], inside(f"tmp/{MARK}", text="x")),
    "a link out of a directory": (
        [layer(folder("a"), symlink("a/out", "/tmp"), entry(f"a/out/{MARK}", b"x"))],
        inside(f"tmp/{MARK}", text="x", more={f"a/tmp/{MARK}": None}),
    ),
    "a link out with dots": (
        [layer(symlink("out", "../../../../tmp")), layer(entry(f"out/{MARK}", b"x"))],
        inside(f"tmp/{MARK}", text="x"),
    ),
    "a chain of links": (
        [layer(folder("a/b"), symlink("a/c", "../d/../a/b"), symlink("e", "a/c"), entry("e/f", b"x"))],
        inside("a/b/f", text="x"),
    ),
    "a whiteout through a link out": (
        [layer(symlink("out", "/srv")), layer(entry("out/.wh.x"), entry("out/.wh..wh..opq"))],
        inside("srv/x", text=None),
    ),
    "devices and a pipe": (
        [
            layer(
                entry("dev/mem", kind=tarfile.CHRTYPE, devmajor=1, devminor=1),
                entry("dev/vda", kind=tarfile.BLKTYPE, devmajor=254),
                entry("srv/pipe", kind=tarfile.FIFOTYPE),
            )
        ],
        left_out("'dev/mem' (device)", "'dev/vda' (device)", "'srv/pipe' (FIFO)"),
    ),
    "programs with the rights of others": (
        [
            layer(
                entry("su", b"x", mode=0o6755),
                folder("group", 0o2777),
                entry("cap", b"x", pax_headers={"SCHILY.xattr.security.capability": CAPABILITY}),
            )
        ],
        modes(su=0o755, cap=0o755, group=0o777),
    ),
    "duplicates": (
        [layer(entry("x", b"1"), entry("x", b"2"), folder("y/z"), entry("y", b"file"), entry("f"), folder("f"))],
        inside("x", text="2", more={"y": "file"}),
    ),
    "a link in place of a directory": (
        [SRV, layer(symlink("srv", "usr")), layer(entry("srv/new", b"n"))],
        inside("usr/new", text="n"),
    ),
    "closed to everybody": ([layer(folder("s", 0), entry("s/in", b"x", mode=0))], modes(**{"s": 0o700, "s/in": 0o400})),
    "names with control characters": (
        [layer(entry("a\nb\x1b[31m", b"x"), entry("n" * 255, b"x"))],
        inside("a\nb\x1b[31m", text="x"),
    ),
    "deep": ([layer(folder("/".join(["d"] * 1500))), layer(entry(".wh.d"))], inside("d", text=None)),
    "zstd": ([layer(entry("z", b"zstd"), compression="zstd")], inside("z", text="zstd")),
    "uncompressed": ([layer(entry("z", b"tar"), compression="none")], inside("z", text="tar")),
    "gzip of two members": ([two_members(archive(entry("z", b"two" * 999)))], inside("z", text="two" * 999)),
    "no end": ([compressed(archive(entry("a", b"x"))[:1024])], inside("a", text="x")),
    "hard links": ([layer(entry("a", b"x"), hard_link("b", "/a")), layer(hard_link("c", "b"))], inside("c", text="x")),
    "127 layers": ([layer(entry(f"l{n}", b"x")) for n in range(127)], inside("l126", text="x")),
}


@pytest.fixture
def machine():
    """Require that an image changes nothing of the machine."""

    def found():
        return sorted(os.listdir("/tmp")), Path("/etc/hostname").stat().st_nlink  # noqa: PTH208

    before = {name for name in found()[0] if MARK in name}, found()[1]
    yield
    assert ({name for name in found()[0] if MARK in name}, found()[1]) == before == (set(), 1)


@pytest.mark.usefixtures("machine")
def test_hostile_images_are_refused_and_nothing_is_left(bench):
    for name, (layers, words) in REFUSED.items():
        with pytest.raises(ImageInvalid, match=words), bench.tree(Image(tuple(layers))):
            pytest.fail(name)
        assert [place.name for place in bench.base.iterdir() if place.name != "slot-0"] == [], name


@pytest.mark.usefixtures("machine")
def test_odd_images_are_unpacked_without_their_hostile_parts(bench):
    for name, (layers, check) in UNPACKED.items():
        with bench.tree(Image(tuple(layers))) as tree:
            for path in (tree.path, *tree.path.rglob("*")) if name != "deep" else ():
                found = path.lstat()
                assert (found.st_uid, found.st_gid) == (tree.owner, tree.owner), (name, path)
                assert not found.st_mode & (stat.S_ISUID | stat.S_ISGID), (name, path)
                assert os.listxattr(path, follow_symlinks=False) == [], (name, path)
            check(tree)


def test_an_error_of_the_machine_is_not_one_of_the_image(monkeypatch):
    order = {"blobs": "", "library": "", "layers": [{"name": "", "compression": "none", "diff_id": "sha256:0"}]}
    monkeypatch.setattr(unpack, "Decompressed", Mock())
    for error, is_refused in {
        OSError(errno.EMLINK, "Too many links"): True,
        MemoryError(): True,
        OSError(errno.ENOSPC, "No space left on device"): False,
        OSError(errno.EDQUOT, "Quota exceeded"): False,
        OSError(errno.EFBIG, "File too large"): False,
        OSError(errno.EIO, "Input/output error"): False,
    }.items():
        monkeypatch.setattr(unpack.Layer, "apply", Mock(side_effect=error))
        with pytest.raises(
            unpack.Refused if is_refused else OSError, match="Layer 1" if is_refused else error.strerror
        ):
            unpack.apply_layer(Mock(), order, 0)


def test_the_report_of_the_unpacker_is_not_trusted(bench, monkeypatch):
    """A hostile image may have taken the unpacker over."""
    good = {"refused": None, "named": ["x"], "left_out": 1}
    wrong = [
        {"refused": 1},
        {"named": [1]},
        {"named": 1},
        {"left_out": "1"},
        {"left_out": None},
        {"named": ["x" * 70_000]},
    ]
    for change in ({}, *wrong):
        program = f"print('x' * 200_000); print({json.dumps(good | change)!r})"
        monkeypatch.setattr(engine, "_UNPACKER", program)
        unavailable = pytest.raises(EngineUnavailable, match="unpacker of images failed")
        with unavailable if change else contextlib.nullcontext(), bench.tree(Image((SRV,))) as tree:
            assert (change, tree.left_out, tree.left_out_count) == ({}, ("x",), 1)


def test_a_stop_ends_the_unpacking(bench):
    stop = StopSignal()
    image = Image((layer(*[entry(f"srv/{n}") for n in range(5000)]),))

    def pull(place):
        stop.request(now=True)
        return Image.pull(image, place)

    with pytest.raises(ImageStopped), bench.engine.image("x", 0, bench.base, SMALL, pull=pull, stop=stop):
        pytest.fail("it was unpacked")
    with bench.tree(image, digest="x") as tree:  # a later job begins anew
        assert (tree.path / "srv/4999").exists()
