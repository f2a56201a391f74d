"""Applies the layers of an image to a tree. It runs as a job in a sandbox, as a program of its own: `unpack.py ORDER`.

ORDER is a JSON object: `blobs` and `tree` are directories, `library` is where `zstandard` is, `layers` are objects
with `name`, `compression` and `diff_id`. The last line of the output is a JSON object: `left_out`, the number of
entries that are not applied, `named`, the first of them, and `refused`, why the image is invalid, or null.

The layers are hostile. Bytes and inodes are limited by the volume of the tree, memory and time by the sandbox. Here
every name is resolved directory by directory: a link leads to where it would lead with the tree as root. Nothing of
an image becomes a device, a FIFO, or a program with the rights of another user.
"""

import contextlib
import errno
import hashlib
import json
import os
import resource
import stat
import sys
import tarfile
import zlib
from pathlib import Path
from typing import Any

BLOCK = 1 << 16
MAX_DEPTH = 2000  # directories below one another: removing them needs a descriptor for each
MAX_LINKS = 40  # in one name, as in the kernel
MAX_NAMED = 20
MAX_WINDOW = 1 << 27  # of zstd: what its own program accepts without options
OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}  # every other error is one of the image
WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(Exception):
    """The image is invalid; `str()` is the sentence."""


def shown(name: str) -> str:
    """Return a name for people: on one line, without control characters."""
    return ascii(name[-200:])


def refuse_if(condition: bool, what: str) -> None:
    """Raise Refused for an image that has this."""
    if condition:
        raise Refused(f"The image has {what}.")


class Tree:
    """The tree, by the descriptor of its root."""

    def __init__(self, path: str) -> None:
        self.root = os.open(path, DIRECTORY)

    def parent(self, name: str, *, make: bool) -> tuple[int, str]:
        """Return a descriptor of the directory that holds `name`, for the caller to close, and the last component.

        Args:
            name: A path of an entry.
            make: Whether directories that are missing are made.
        """
        parts = [part for part in name.split("/") if part not in ("", ".")]
        refuse_if(".." in parts, f"an entry outside of its root: {shown(name)}")
        if not parts:
            return os.dup(self.root), ""
        return self._directory(parts[:-1], name, make=make), parts[-1]

    def _directory(self, parts: list[str], name: str, *, make: bool) -> int:
        todo, where, links = parts[::-1], list[str](), 0  # the next component is last
        here = os.dup(self.root)
        try:
            while todo:
                part = todo.pop()
                if part in ("", "."):
                    continue
                if part == "..":  # of a link
                    where = where[:-1]
                    here = self._again(here, where)
                    continue
                target = self._link(here, part)
                if target is None:
                    here = self._below(here, part, name, make=make)
                    where.append(part)
                    refuse_if(len(where) > MAX_DEPTH, f"more than {MAX_DEPTH} directories below one another")
                    continue
                links += 1
                refuse_if(links > MAX_LINKS, f"an entry below a circle of links: {shown(name)}")
                if target.startswith("/"):
                    where = []
                    here = self._again(here, where)
                todo += target.split("/")[::-1]
        except BaseException:
            os.close(here)
            raise
        return here

    def _again(self, here: int, where: list[str]) -> int:
        """Return the directory of these components, none of which is a link, and close `here`."""
        found = os.dup(self.root)
        for part in where:
            below = os.open(part, DIRECTORY, dir_fd=found)
            os.close(found)
            found = below
        os.close(here)
        return found

    @staticmethod
    def _link(here: int, part: str) -> str | None:
        try:
            return os.readlink(part, dir_fd=here)
        except OSError:  # it is something else, or missing
            return None

    @staticmethod
    def _below(here: int, part: str, name: str, *, make: bool) -> int:
        try:
            found = os.open(part, DIRECTORY, dir_fd=here)
        except FileNotFoundError:
            if not make:
                raise Refused(f"The image has a hard link to a file that it does not have: {shown(name)}.") from None
            os.mkdir(part, 0o755, dir_fd=here)
            found = os.open(part, DIRECTORY, dir_fd=here)
        except NotADirectoryError:
            raise Refused(f"The image has an entry below a file: {shown(name)}.") from None
        os.close(here)
        return found


def remove(folder: int, name: str) -> None:
    """Remove what has this name, with all that is below it; nothing if there is nothing."""
    try:
        kind = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(kind):
        os.unlink(name, dir_fd=folder)
        return
    inner = os.open(name, DIRECTORY, dir_fd=folder)
    try:
        for child in os.listdir(inner):  # noqa: PTH208  # of a descriptor
            remove(inner, child)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=folder)


class Entry(tarfile.TarInfo):
    """An entry whose header must be valid: without it `tarfile` ends the archive at a bad header, in silence."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> "Entry":
        try:
            return super().fromtarfile(archive)
        except tarfile.HeaderError as error:
            if type(error).__name__ in ("EOFHeaderError", "EmptyHeaderError"):  # an end, with its mark or without
                raise
            raise tarfile.ReadError(str(error)) from None


class Layer:
    """One layer while it is applied."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.made: set[tuple[int, str]] = set()  # inode of the directory, and name, of the entries of this layer
        self.left_out: list[str] = []

    def apply(self, stream: "Decompressed") -> None:
        with tarfile.open(None, "r|", stream, BLOCK, tarinfo=Entry, errorlevel=2) as archive:  # type: ignore[call-overload]  # it only reads
            for entry in archive:
                archive.members = []  # else it keeps all entries in memory
                self._add(archive, entry)

    def _add(self, archive: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        refuse_if(entry.issparse(), f"a sparse file: {shown(entry.name)}")
        folder, name = self.tree.parent(entry.name, make=True)
        try:
            if name == OPAQUE:
                self._empty(folder)
            elif name.startswith(WHITEOUT):
                self._remove_lower(folder, name.removeprefix(WHITEOUT), entry.name)
            elif name:
                self.made.add((os.fstat(folder).st_ino, name))
                self._make(archive, entry, folder, name)
        finally:
            os.close(folder)

    def _remove_lower(self, folder: int, name: str, entry_name: str) -> None:
        refuse_if(name in ("", ".", ".."), f"an invalid whiteout: {shown(entry_name)}")
        if not name.startswith(WHITEOUT):  # else it is metadata of a file system
            remove(folder, name)

    def _empty(self, folder: int) -> None:
        """Remove what lower layers have put into a directory."""
        inode = os.fstat(folder).st_ino
        for child in os.listdir(folder):  # of a descriptor
            if (inode, child) not in self.made:
                remove(folder, child)
                continue
            with contextlib.suppress(NotADirectoryError):
                inner = os.open(child, DIRECTORY, dir_fd=folder)
                try:
                    self._empty(inner)
                finally:
                    os.close(inner)

    def _make(self, archive: tarfile.TarFile, entry: tarfile.TarInfo, folder: int, name: str) -> None:
        mode = entry.mode & 0o1777  # the bits that change the user of a program are left out
        if entry.isdir():
            self._make_directory(folder, name, mode | 0o700)
            return
        if not (entry.isreg() or entry.issym() or entry.islnk()):
            self.left_out.append(f"{shown(entry.name)} ({'FIFO' if entry.isfifo() else 'device'})")
            remove(folder, name)
            return
        if entry.islnk():
            self._link(entry, folder, name)
            return
        remove(folder, name)
        if entry.issym():
            os.symlink(entry.linkname, name, dir_fd=folder)
        else:
            self._write(archive, entry, folder, name, (mode & 0o777) | 0o400)

    @staticmethod
    def _make_directory(folder: int, name: str, mode: int) -> None:
        try:
            is_there = stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            is_there = False
        if not is_there:
            remove(folder, name)
            os.mkdir(name, 0o700, dir_fd=folder)
        os.chmod(name, mode, dir_fd=folder)

    def _link(self, entry: tarfile.TarInfo, folder: int, name: str) -> None:
        source, source_name = self.tree.parent(entry.linkname, make=False)
        try:
            if not source_name or stat.S_ISDIR(os.stat(source_name, dir_fd=source, follow_symlinks=False).st_mode):
                raise Refused(f"The image has a hard link to a directory: {shown(entry.name)}.")
            is_itself = (os.fstat(source).st_ino, source_name) == (os.fstat(folder).st_ino, name)
            if not is_itself:
                remove(folder, name)
                os.link(source_name, name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            raise Refused(
                f"The image has a hard link to a file that it does not have: {shown(entry.linkname)}."
            ) from None
        finally:
            os.close(source)

    @staticmethod
    def _write(archive: tarfile.TarFile, entry: tarfile.TarInfo, folder: int, name: str, mode: int) -> None:
        content = archive.extractfile(entry)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(name, flags, 0o600, dir_fd=folder)
        try:
            while content is not None and (data := content.read(BLOCK)):
                while data:
                    data = data[os.write(file, data) :]
            os.fchmod(file, mode)
            with contextlib.suppress(OSError, OverflowError, ValueError):  # a time that the file system cannot have
                os.utime(file, (entry.mtime, entry.mtime))  # else compilers find what they have made out of date
        finally:
            os.close(file)


class Decompressed:
    """A layer as a stream of its decompressed bytes, which are hashed for the diff id."""

    def __init__(self, path: str, compression: str, algorithm: str, library: str) -> None:
        self.digest = hashlib.new(algorithm)
        self.file = Path(path).open("rb")  # noqa: SIM115  # it ends with the process
        self.inflater = zlib.decompressobj(31) if compression == "gzip" else None
        self.rest = b""  # read, and not decompressed yet
        self.source: Any = self.file
        if compression == "zstd":
            sys.path.append(library)
            import zstandard  # noqa: PLC0415  # only now it can be found

            reader = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
            self.source = reader.stream_reader(self.file, read_across_frames=True)

    def read(self, size: int) -> bytes:
        data = self._inflate(size) if self.inflater else self.source.read(size)
        self.digest.update(data)
        return bytes(data)

    def _inflate(self, size: int) -> bytes:
        assert self.inflater is not None  # noqa: S101  # the only caller checks it
        while True:
            if self.inflater.eof:  # a file may have several members
                self.rest = self.inflater.unused_data or self.file.read(BLOCK)
                if not self.rest:
                    return b""
                self.inflater = zlib.decompressobj(31)
            elif not self.rest:
                self.rest = self.file.read(BLOCK)
                if not self.rest:
                    raise EOFError
            data = self.inflater.decompress(self.rest, size)
            self.rest = self.inflater.unconsumed_tail
            if data:
                return data

    def finish(self) -> str:
        """Read the rest, and return the digest of all."""
        while self.read(BLOCK):
            pass
        return self.digest.hexdigest()


def apply_layer(tree: Tree, order: dict[str, Any], number: int) -> list[str]:
    """Apply a layer. Returns the entries that are left out."""
    ordered = order["layers"][number]
    algorithm, _, expected = ordered["diff_id"].partition(":")
    stream = Decompressed(f"{order['blobs']}/{ordered['name']}", ordered["compression"], algorithm, order["library"])
    layer = Layer(tree)
    try:
        layer.apply(stream)
        found = stream.finish()
    except (tarfile.TarError, zlib.error, EOFError, UnicodeError, ValueError, ArithmeticError) as error:
        raise Refused(f"Layer {number + 1} is no valid archive ({type(error).__name__}).") from None
    except MemoryError:
        raise Refused(f"Layer {number + 1} needs more memory than there is.") from None
    except OSError as error:
        if error.errno in OF_THE_DISK:
            raise
        raise Refused(f"Layer {number + 1} has an entry that cannot be made: {error.strerror}.") from None
    except Exception as error:
        if type(error).__name__ == "ZstdError":  # its module is loaded for such layers only
            raise Refused(f"Layer {number + 1} is no valid archive (zstd).") from None
        raise
    if found != expected:
        raise Refused(f"Layer {number + 1} has another digest (diff id) than the image's configuration says.")
    return layer.left_out


def main() -> None:
    """Apply all layers, and print the report."""
    order = json.loads(sys.argv[1])
    sys.setrecursionlimit(4 * MAX_DEPTH)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.umask(0)
    tree, left_out, refused = Tree(order["tree"]), list[str](), None
    try:
        for number in range(len(order["layers"])):
            left_out += apply_layer(tree, order, number)
    except Refused as refusal:
        refused = str(refusal)
    report = {"left_out": len(left_out), "named": left_out[:MAX_NAMED], "refused": refused}
    sys.stdout.write(f"{json.dumps(report)}\n")


if __name__ == "__main__":
    main()
