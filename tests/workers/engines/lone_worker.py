"""A process that runs one command with one engine, for tests that kill it: `ENGINE FIRST_UID WORKSPACE TRACE COMMAND...`."""

import os
import sys
from pathlib import Path

from workers.engines import engine_named
from workers.engines.contract import RunSpec, StopSignal, TraceLevel


def main(name, first_uid, workspace, trace, *argv):
    # Unchecked, it measures: the small volume that the test has made is no machine that runs low.
    engine = engine_named(name, first_uid=int(first_uid), reserve_bytes=0, reserve_inodes=0)
    level = TraceLevel(trace)
    spec = RunSpec(argv=argv, workspace=Path(workspace), slot=0, timeout_seconds=60, trace=level)
    result = engine.run(spec, output=lambda data: os.write(1, data), trace=lambda _: None, stop=StopSignal())
    os.write(1, f"{result.kind}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
