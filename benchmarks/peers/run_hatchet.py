"""Runs Hatchet's engine on the same PostgreSQL, which is its message queue, too, called over gRPC by its own clients.

One run of a task is one lifecycle. The engine has its default settings but for what a single machine needs.

`python -m benchmarks.peers.run_hatchet URL FOLDER PROGRAMS CLIENTS SECONDS`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.running import free_port, listens, part


def environment(url: str, grpc: int, api: int) -> dict[str, str]:
    """Return the environment of its programs."""
    return os.environ | {
        "DATABASE_URL": url,
        "SERVER_PORT": str(api),
        "SERVER_URL": f"http://127.0.0.1:{api}",
        "SERVER_AUTH_COOKIE_DOMAIN": "localhost",
        "SERVER_AUTH_COOKIE_INSECURE": "true",
        "SERVER_GRPC_PORT": str(grpc),
        "SERVER_GRPC_BIND_ADDRESS": "127.0.0.1",
        "SERVER_GRPC_BROADCAST_ADDRESS": f"127.0.0.1:{grpc}",
        "SERVER_GRPC_INSECURE": "true",
        "SERVER_MSGQUEUE_KIND": "postgres",
        "SERVER_SECURITY_CHECK_ENABLED": "false",
        "SERVER_LOGGER_LEVEL": "warn",
        "DATABASE_LOGGER_LEVEL": "warn",
    }


def main(url: str, folder: str, programs: str, clients: str, seconds: str) -> None:
    home, port = Path(folder), free_port()
    home.mkdir(parents=True, exist_ok=True)
    own, config = environment(url, port, free_port()), home / "config"
    admin = [f"{programs}/hatchet-admin", "--config", str(config)]
    with (home / "server.log").open("ab") as log:
        subprocess.run([f"{programs}/hatchet-migrate"], env=own, stdout=log, stderr=log, check=True)
        quickstart = [*admin, "quickstart", "--skip", "certs", "--generated-config-dir", str(config)]
        subprocess.run(quickstart, env=own, stdout=log, stderr=log, check=True)
        created = subprocess.run([*admin, "token", "create"], env=own, stdout=subprocess.PIPE, stderr=log, check=True)
    token = created.stdout.decode().splitlines()[-1]
    engine = [f"{programs}/hatchet-engine", "--config", str(config)]
    with part(engine, home / "server.log", lambda: listens(port), own):
        client = os.environ | {
            "HATCHET_CLIENT_TOKEN": token,
            "HATCHET_CLIENT_HOST_PORT": f"127.0.0.1:{port}",
            "HATCHET_CLIENT_TLS_STRATEGY": "none",
            "HATCHET_CLIENT_LOG_LEVEL": "error",
        }
        subprocess.run([f"{programs}/load", clients, seconds], env=client, check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
