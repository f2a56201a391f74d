"""A real S3 server on loopback: `nanio`, as a process of its own."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
from botocore.config import Config

ACCESS_KEY, SECRET_KEY, REGION, BUCKET = "testaccesskey", "testsecretkey-of-nanio", "us-east-1", "artifacts"


class S3Server:
    """A server whose process can be stopped and started again, with the same address and the same objects.

    Attributes:
        url: The address.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, and return once it accepts connections."""
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(self.folder),
            "NANIO_ACCESS_KEY": ACCESS_KEY, "NANIO_SECRET_KEY": SECRET_KEY,
        }  # fmt: skip
        command = [str(Path(sys.executable).with_name("nanio")), "serve", "--data-dir", str(self.folder / "data")]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        with (self.folder / "nanio.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder
            )
        _wait_for(self.port, self._process, self.folder / "nanio.log")

    def stop(self) -> None:
        """Kill the process. Connections are refused from now on."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None


@contextmanager
def stoppable_s3_server(folder: Path) -> Iterator[S3Server]:
    """Yields a server with an empty bucket. The process ends with the block."""
    server = S3Server(folder)
    try:
        server.start()
        client_of(server.url).create_bucket(Bucket=BUCKET)
        yield server
    finally:
        server.stop()


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """Yields the address of a server with an empty bucket. The process ends with the block."""
    with stoppable_s3_server(folder) as server:
        yield server.url


def client_of(url: str):
    """A client of the bucket's owner."""
    config = Config(signature_version="s3v4", s3={"addressing_style": "path"})
    return boto3.client(
        "s3", endpoint_url=url, region_name=REGION, aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
        config=config,
    )  # fmt: skip


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int, process: subprocess.Popen, log: Path) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(f"nanio does not listen: {log.read_text()}")
