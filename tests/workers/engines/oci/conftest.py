"""The engine `oci`, and jobs in images of the tests."""

import contextlib

import pytest

from tests.workers.engines.image_bench import ImageBench


@pytest.fixture
def bench(engines, base):
    with contextlib.closing(ImageBench(engines["oci"], base)) as bench:
        yield bench
