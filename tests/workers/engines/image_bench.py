"""Runs commands in images of the tests, with the engine `oci`."""

import contextlib
import itertools
from dataclasses import replace

from tests.workers.engines.conftest import SMALL, Bench
from tests.workers.images import Image, base
from workers.engines.contract import StopSignal


class ImageBench(Bench):
    """Runs commands in images."""

    numbers = itertools.count()

    def __init__(self, engine, base):
        super().__init__(engine, base)
        self.entered = contextlib.ExitStack()

    def close(self):
        self.entered.close()
        self.engine.clean(range(4))
        super().close()

    @contextlib.contextmanager
    def tree(self, image, *, slot=0, limits=SMALL, digest=None, stop=None):
        """Unpack an image; each call prepares it anew unless it names a digest."""
        digest = digest or f"image-{next(self.numbers)}"
        stop = stop or StopSignal()
        with self.engine.image(digest, slot, self.base, limits, pull=image.pull, stop=stop) as tree:
            yield tree

    @contextlib.contextmanager
    def rooted(self, tree, *argv, slot=0, directory="/", **details):
        """Yield the spec of a command in the root of an image, and the root."""
        spec = self.spec(*argv, slot=slot, working_directory=directory, **details)
        place = spec.workspace.with_name(f"{spec.workspace.name}.image")
        with self.engine.root(tree, slot, place, directory) as root:
            yield replace(spec, root=root)

    def in_image(self, image, script, *, slot=0, config=None, **details):
        """Run a line of shell in an image of the programs of `base`; returns result, output, error output, trace."""
        image = image if isinstance(image, Image) else Image((base(), *image), config or {})
        with (
            self.tree(image, slot=slot) as tree,
            self.rooted(tree, "/bin/sh", "-c", script, slot=slot, **details) as spec,
        ):
            return self.run_spec(spec)

    def run_spec(self, spec, stop=None):
        output, errors, trace = bytearray(), bytearray(), bytearray()
        result = self.engine.run(
            spec, output=output.extend, errors=errors.extend, trace=trace.extend, stop=stop or StopSignal()
        )
        return result, output.decode(), errors.decode(), trace.decode("utf-8", "replace")


class BenchInImage(ImageBench):
    """Runs every command in an image with the programs of `base`, each in a root of its own, until it is closed."""

    def spec(self, *argv, slot=0, **details):
        tree = self.entered.enter_context(self.tree(Image((base(),)), slot=slot, digest="base"))
        spec = super().spec(*argv, slot=slot, **details)
        place = spec.workspace.with_name(f"{spec.workspace.name}.image")
        root = self.entered.enter_context(self.engine.root(tree, slot, place, "/"))
        return replace(spec, root=root)

    def run(self, *argv, **details):
        try:
            return super().run(*argv, **details)
        finally:
            self.entered.close()
