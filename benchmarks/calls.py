"""Measures what one call of each kind costs in this checkout, without a network: `python -m benchmarks.calls`.

`compare` measures two checkouts in turns. Milliseconds of one run depend on the load of the machine; its counts do not.
"""

from __future__ import annotations

import json
import sys

from benchmarks.compare import lines, measured, parsed, run
from config.paths import BASE_DIR


def main() -> int:
    result = measured([BASE_DIR], parsed(folders=0))
    sys.stdout.write("\n".join([*lines(result, ["this"]), ""]))
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
