"""`make evidence`: runs a pack, replays it sealed, exports an audit bundle and lets two programs verify it.

All of it on this machine, in an installation of its own: server, scheduler, dispatcher, worker, and a receiver of
webhooks. The commands are those of `docs/cli.md`, and displayed. The last line is one JSON object; the exit code is 0 if
everything was proven.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import requests

from config import paths
from config.paths import BASE_DIR
from tests.chaos.processes import Part, manage
from tests.chaos.webhook_receiver import NETWORK, WebhookReceiver

STELLA = BASE_DIR / ".venv" / "bin" / "stella"
STARTS_WITHIN = 180.0  # migrations included, on a machine under load
ENDS_WITHIN = 180.0  # each step
# Variables of the caller that would change where the installation is, or which server and token the commands have.
FOREIGN = (
    *("DATABASE_URL", "DATABASE_URL_FILE", "DATABASE_ROLE", "PUBLIC_URL", "ALLOWED_HOSTS", "HOST", "PORT"),
    *("STELLA_SERVER", "STELLA_TOKEN", "STELLA_TOKEN_FILE"),
)
TENANT, PACK, VERSION = "demo", "vuln-scan-and-report", "1.2.0"
PLAN = {
    "steps": [
        'echo "scanning $INPUT_IMAGEREF"; sleep 1; echo "3 findings"',
        'printf \'{"image":"%s","findings":3}\\n\' "$INPUT_IMAGEREF" > report.json; cat report.json',
    ],
    "inputs": {"imageRef": {"required": True}},
    "artifacts": [{"path_glob": "report.json"}],
}
_SCRIPT = re.compile(r"```python\n(\"\"\"Verifies an audit bundle.*?)```", re.DOTALL)


class NotProven(Exception):
    """A step did not have the expected outcome."""


def say(line: str) -> None:
    """Write a line at once, whoever reads it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def eventually(condition: Callable[[], Any], what: str, seconds: float = ENDS_WITHIN) -> Any:
    """Wait for a condition, and return its value."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise NotProven(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.1)
    return found


@dataclass
class Scene:
    """The installation, its receiver, and the commands of one run. `events` has the envelopes of the stream by id."""

    folder: Path
    receiver: WebhookReceiver
    variables: dict[str, str] = field(default_factory=dict)
    events: dict[str, dict[str, Any]] = field(default_factory=dict)

    # --- processes ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def installation(self) -> Iterator[None]:
        """Start everything, and end it with the block."""
        state = self.folder / "state"
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = found.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        kept = {name: value for name, value in os.environ.items() if name not in FOREIGN}
        environment = kept | {"STATE_DIR": str(state), "WEBHOOK_NETWORKS": NETWORK, "NO_COLOR": "1"}
        command = manage("up", "--port", str(port), "--workers", "1")
        up = Part("up", command, environment, self.folder / "up.log")
        say(f"server, scheduler, housekeeping, dispatcher and worker at {self.url}")
        up.start()
        try:
            eventually(lambda: self._is_healthy(up), "the server responds", STARTS_WITHIN)
            seeded = json.loads((state / "seed.json").read_text())
            token = self.folder / "token"
            token.touch(mode=0o600)
            token.write_text(seeded["api_token"])
            self.api = requests.Session()
            self.api.headers["Authorization"] = f"Bearer {seeded['api_token']}"
            self.variables = kept | {"STELLA_SERVER": self.url, "STELLA_TOKEN_FILE": str(token)}
            yield
        except BaseException:
            say((self.folder / "up.log").read_text()[-4000:])
            raise
        finally:
            up.end(60)
            with contextlib.suppress(paths.PathError):
                paths.remove_home(state)

    def _is_healthy(self, up: Part) -> bool:
        if not up.lives:
            raise NotProven("the installation has ended")
        with contextlib.suppress(requests.RequestException):
            return requests.get(f"{self.url}/healthz", timeout=5).status_code == 200
        return False

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """Display events as they happen, until the end of the block."""
        place = json.loads(self.stella("events", "-o", "json", is_quiet=True))["place"]
        process = self._start("events", "--follow", "--after", place, "-o", "json")
        reader = threading.Thread(target=self._read_events, args=[process], daemon=True)
        reader.start()
        try:
            yield
        finally:
            process.terminate()
            process.wait()
            reader.join()

    def _read_events(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            envelope = json.loads(line)
            self.events[envelope["eventId"]] = envelope
            say(f"  event  {envelope['eventType']} {envelope['jobId'] or ''}")

    # --- commands -----------------------------------------------------------------------------------------------------

    def _start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [STELLA, *words],
            cwd=self.folder,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def stella(self, *words: str, code: int = 0, is_quiet: bool = False) -> str:
        """Run a command, display it with its output, and return its output. `code`: the exit code that it must have."""
        if not is_quiet:
            say(f"$ {shlex.join(['stella', *words])}")
        process = self._start(*words)
        out, err = process.communicate(timeout=ENDS_WITHIN)
        if not is_quiet or process.returncode != code:
            for line in (out + err).splitlines():
                say(f"  {line}")
        if process.returncode != code:
            raise NotProven(f"stella {words[0]} {words[1]} has ended with {process.returncode}, not {code}")
        return out

    def follow_submit(self, payload: dict[str, Any]) -> str:
        """Submit a pack run, display its log while it grows, and return the id of the job."""
        words = ["job", "submit", "--type", "pack-run", "--payload", json.dumps(payload), "--follow"]
        say(f"$ {shlex.join(['stella', *words])}")
        process = self._start(*words, "--timeout", f"{ENDS_WITHIN:.0f}")
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            say(f"  log    {line.rstrip()}")
        notes = process.stderr.read().splitlines()
        for note in notes:
            say(f"  {note}")
        if process.wait() != 0:
            raise NotProven(f"the pack run has ended with {process.returncode}")
        return notes[0]

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call the API where the command line has no command, and return the parsed response."""
        found = self.api.request(method, self.url + path, json=body, timeout=60)
        if not found.ok:
            raise NotProven(f"{method} {path}: {found.status_code} {found.text[:500]}")
        return found.json()


# --- the story --------------------------------------------------------------------------------------------------------


def run(scene: Scene) -> dict[str, Any]:
    """Play the whole story, and return its last line."""
    since = datetime.now(UTC).isoformat()
    webhook = scene.call("POST", "/v1/webhooks", {"org_slug": TENANT, "url": scene.receiver.url})
    scene.receiver.secret = webhook["secret"]
    with scene.stream():
        say(f"PUT /v1/packs/{PACK}/versions/{VERSION}")
        pack = scene.call("PUT", f"/v1/packs/{PACK}/versions/{VERSION}", {"org_slug": TENANT, "plan": PLAN})
        payload = {
            "packId": PACK,
            "packVersion": VERSION,
            "planHash": pack["plan_hash"],
            "inputs": {"imageRef": "nginx:latest"},
            "heartbeatCadence": 30,
        }
        original = scene.follow_submit(payload)
        replay = json.loads(
            scene.stella("job", "replay", "--id", original, "--sealed", "--bundle", "replay.tar.gz", "-o", "json")
        )
        bundle = scene.folder / "b.tar.gz"
        exported = json.loads(
            scene.stella(
                *("orch", "export", "--tenant", TENANT, "--since", since, "--output", str(bundle), "-o", "json")
            )
        )
        verified_by, refused = verify(scene, bundle, original)
        deliveries, dead = wait_for_deliveries(scene, webhook["webhook_id"])
    return {
        "job_id": replay["jobId"],
        "replay_of": replay["replayOf"],
        "verdict": replay["verdict"],
        "bundle_sha256": exported["sha256"],
        "verified_by": verified_by,
        "tampered_refused": refused,
        "events": len(scene.events),
        "deliveries": deliveries,
        "dead_letters": dead,
    }


def verify(scene: Scene, bundle: Path, original: str) -> tuple[list[str], bool]:
    """Verify the bundle, and a copy of which one byte was changed, with both programs.

    Returns:
        The programs that have verified it, and whether both have refused the copy.
    """
    key = scene.folder / "k.pem"
    key.write_text(scene.call("GET", "/v1/keys")["keys"][0]["public_key"])
    changed = scene.folder / "changed.tar.gz"
    content = bytearray(bundle.read_bytes())
    content[len(content) // 2] ^= 1
    changed.write_bytes(content)
    script = scene.folder / "verify_bundle.py"
    printed = _SCRIPT.search((BASE_DIR / "docs" / "evidence.md").read_text())
    if printed is None:
        raise NotProven("docs/evidence.md has no script")
    script.write_text(printed[1])

    scene.stella("orch", "verify", "--bundle", str(bundle), "--key", str(key))
    scene.stella("job", "verify", "--bundle", "replay.tar.gz", "--job-id", original, "--key", str(key))
    if (code := independent(script, bundle, key)) != 0:
        raise NotProven(f"the script of docs/evidence.md has ended with {code}")
    say("one byte of a copy is changed")
    scene.stella("orch", "verify", "--bundle", str(changed), "--key", str(key), code=1)
    refused = independent(script, changed, key) != 0
    return ["stella", "securesystemslib"], refused


def independent(script: Path, bundle: Path, key: Path) -> int:
    """Run the script that uses no code of this project. Returns its exit code."""
    say(f"$ python {script.name} {bundle.name} {key.name}")
    found = subprocess.run(
        [sys.executable, "-I", script, bundle, key], capture_output=True, text=True, check=False, timeout=ENDS_WITHIN
    )
    for line in (found.stdout + found.stderr).splitlines()[-1:]:
        say(f"  {line}")
    return found.returncode


def wait_for_deliveries(scene: Scene, webhook_id: str) -> tuple[int, int]:
    """Wait until the receiver has each event of the stream. Returns the deliveries and the dead letters."""

    def all_received() -> bool:
        listed = json.loads(scene.stella("events", "--limit", "1000", "-o", "json", is_quiet=True))["results"]
        after_begin = {event["eventId"] for event in listed if event["eventId"] in scene.events}
        return after_begin == set(scene.events) <= set(scene.receiver.accepted) and not pending()

    def pending() -> list[Any]:
        found: list[Any] = scene.call("GET", f"/v1/webhooks/{webhook_id}/deliveries?status=pending")["results"]
        return found

    eventually(all_received, "each event is delivered")
    if scene.receiver.wrong:
        raise NotProven(scene.receiver.wrong[0])
    dead = scene.call("GET", f"/v1/webhooks/{webhook_id}/deliveries?status=dead&limit=200")["results"]
    return len(scene.receiver.accepted), len(dead)


def main() -> int:
    """Run the story in a folder of its own, and remove the folder."""
    if not STELLA.exists():
        say(f"{STELLA} is missing: run `make setup`")
        return 2
    folder = Path(tempfile.mkdtemp(prefix="rto-evidence-"))
    try:
        with WebhookReceiver(seed=0, failed=0.0) as receiver:
            scene = Scene(folder, receiver)
            with scene.installation():
                found = run(scene)
    except (NotProven, subprocess.TimeoutExpired) as error:
        say(f"not proven: {error}")
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    say(json.dumps(found))
    is_proven = found["verdict"] == "match" and found["tampered_refused"] and found["dead_letters"] == 0
    return 0 if is_proven else 1


if __name__ == "__main__":
    sys.exit(main())
