"""The first requests of the README work as they are printed, with the data that `make up` creates."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from tests.live_server import eventually

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.timeout(300)
def test_the_first_requests_end_at_the_findings_and_the_address_of_the_run(migrated):
    served = migrated.manage("up", "--port", "0", "--workers", "1")
    eventually(lambda: served.printed("/admin/"))
    address = re.search(r"http://127\.0\.0\.1:\d+", served.everything()).group()
    snippet = re.search(
        r"^\.venv/bin/python - <<'EOF'\n(.*?\n)EOF$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    program = snippet.group(1).replace("http://127.0.0.1:8000", address)
    (migrated.state / ".state").symlink_to(migrated.state)
    found = subprocess.run(
        [sys.executable, "-"],
        input=program,
        cwd=migrated.state,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert (found.returncode, found.stderr) == (0, ""), served.everything()
    *_, result, last = [line for line in found.stdout.splitlines() if not re.match(r"(high|medium|low) ", line)]
    assert result.endswith("uploaded exit code 0")
    assert re.search(r"^high +credential_read +~/\.ssh/id_ed25519$", found.stdout, re.MULTILINE)
    assert re.fullmatch(rf"{address}/runs/run_\w+/", last)
    assert requests.get(last, timeout=30).status_code == 200
