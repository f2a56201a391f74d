"""Runs Temporal's server on the same PostgreSQL, called over gRPC by its own clients in another process.

One workflow execution is one lifecycle: with one activity, as a job has one task, and without. The server has its
default settings, all its services in one process.

`python -m benchmarks.peers.run_temporal SOCKET_FOLDER FOLDER PROGRAM CLIENTS SECONDS`. Both databases are there, empty.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.running import free_port, listens, part

DATABASES = {"default": "bench_temporal", "visibility": "bench_temporal_visibility"}  # by the name of the store
SERVICES = ("frontend", "matching", "history", "worker")


def config(socket: str, frontend: int) -> dict[str, Any]:
    """Return the server's configuration. `frontend`: the port of its clients."""

    def store(database: str) -> dict[str, Any]:
        return {
            "pluginName": "postgres12_pgx",
            "databaseName": database,
            "connectAddr": "localhost:5432",
            "connectProtocol": "tcp",
            "connectAttributes": {"host": socket},
            "user": "orchestrator",
            "password": "",
            "maxConns": 20,
            "maxIdleConns": 20,
            "maxConnLifetime": "1h",
        }

    ports = {service: free_port() for service in SERVICES} | {"frontend": frontend}
    # Its table of members has 16 bits for a port, with a sign.
    members = {service: free_port(range(21_000 + 100 * place, 32_768)) for place, service in enumerate(SERVICES)}
    return {
        "log": {"stdout": True, "level": "error"},
        "persistence": {
            "defaultStore": "default",
            "visibilityStore": "visibility",
            "numHistoryShards": 4,
            "datastores": {name: {"sql": store(database)} for name, database in DATABASES.items()},
        },
        "global": {"membership": {"maxJoinDuration": "30s", "broadcastAddress": "127.0.0.1"}},
        "services": {
            name: {"rpc": {"grpcPort": port, "membershipPort": members[name], "bindOnLocalHost": True}}
            for name, port in ports.items()
        },
        "clusterMetadata": {
            "enableGlobalNamespace": False,
            "failoverVersionIncrement": 10,
            "masterClusterName": "active",
            "currentClusterName": "active",
            "clusterInformation": {
                "active": {
                    "enabled": True,
                    "initialFailoverVersion": 1,
                    "rpcName": "frontend",
                    "rpcAddress": f"127.0.0.1:{frontend}",
                }
            },
        },
        "dcRedirectionPolicy": {"policy": "noop"},
        "archival": {"history": {"state": "disabled"}, "visibility": {"state": "disabled"}},
        "publicClient": {"hostPort": f"127.0.0.1:{frontend}"},
    }


def main(socket: str, folder: str, program: str, clients: str, seconds: str) -> None:
    home, port = Path(folder), free_port()
    home.mkdir(parents=True, exist_ok=True)
    file = home / "config.yaml"
    file.write_text(json.dumps(config(socket, port)))  # JSON is YAML
    with (home / "server.log").open("ab") as log:
        tables = [program, "schema", socket, *DATABASES.values()]
        subprocess.run(tables, stdout=log, stderr=log, check=True)
    with part([program, "serve", str(file)], home / "server.log", lambda: listens(port)):
        subprocess.run([program, "load", f"127.0.0.1:{port}", clients, seconds], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
