"""A PostgreSQL that accepts TLS only, with a certificate of its own CA, and addresses of it that are wrong."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from django.utils.timezone import now

from config import paths
from tests.live_server import eventually, serving

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))  # the embedded server has no TLS
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PROGRAMS, reason="needs Debian's package postgresql"),
]


def make_certificate(folder: Path, name: str, issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None):
    """Write `name`.crt and `name`.key, signed by the issuer, else by itself as a CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now() - timedelta(days=1))
        .not_valid_after(now() + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    )
    made = builder.sign(issuer[1] if issuer else key, hashes.SHA256())
    (folder / f"{name}.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    formats = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / f"{name}.key").write_bytes(key.private_bytes(*formats))
    (folder / f"{name}.key").chmod(0o600)
    return made, key


class TlsCluster:
    """Accepts connections with TLS and a password on the loopback, and no others."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port

    def url(self, host: str = "localhost", **parameters: str) -> str:
        query = "&".join(f"{name}={value}" for name, value in parameters.items())
        return f"postgres://orchestrator:sesame@{host}:{self.port}/orchestrator?{query}"

    @property
    def trusted(self) -> dict[str, str]:
        """The parameters of docs/operations.md."""
        return {"sslmode": "verify-full", "sslrootcert": str(self.folder / "ca.crt")}


@pytest.fixture(scope="module")
def cluster() -> Iterator[TlsCluster]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="rto-tls-"))
    account = paths.postgres_account(folder)
    issuer = make_certificate(folder, "ca", None)
    make_certificate(folder, "stranger", None)
    make_certificate(folder, "server", issuer)
    (folder / "password").write_text("sesame")
    folder.chmod(0o755)
    if os.geteuid() == 0:
        for path in (folder, folder / "server.key"):
            os.chown(path, account.pw_uid, account.pw_gid)
    drop = [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"] if os.geteuid() == 0 else []
    as_account = ["setpriv", *drop, "--pdeathsig", "INT", "--"]
    data, programs = folder / "data", PROGRAMS[-1]
    options = [
        "--auth=scram-sha-256",
        f"--pwfile={folder / 'password'}",
        "-U",
        "orchestrator",
        "-E",
        "UTF8",
        "--no-sync",
    ]
    subprocess.run([*as_account, programs / "initdb", "-D", data, *options], check=True, capture_output=True, cwd="/")
    (data / "pg_hba.conf").write_text("hostssl all all all scram-sha-256\n")
    settings = {
        "listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": "", "fsync": "off",
        "ssl": "on", "ssl_cert_file": folder / "server.crt", "ssl_key_file": folder / "server.key",
    }  # fmt: skip
    given = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*as_account, programs / "postgres", "-D", data, *given], cwd="/", stderr=log)
    made = TlsCluster(folder, port)
    try:
        administrators = made.url(**made.trusted).replace("/orchestrator?", "/postgres?")
        eventually(lambda: can_create_database(administrators))
        yield made
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
        shutil.rmtree(folder)


def can_create_database(address: str) -> bool:
    try:
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("CREATE DATABASE orchestrator")
    except psycopg.OperationalError:
        return False
    return True


def manage(url: str, state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"DATABASE_URL": url, "STATE_DIR": str(state), "DATABASE_URL_FILE": ""}
    command = [sys.executable, "manage.py", *arguments]
    return subprocess.run(
        command, cwd=paths.BASE_DIR, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def test_the_documented_address_works_for_every_connection(cluster, tmp_path):
    """Migrations, a web process with its pool and its listener, and a dump by PostgreSQL's own program."""
    url = cluster.url(**cluster.trusted)
    found = manage(url, tmp_path, "migrate", "contenttypes", "--verbosity", "0")  # all of them take a minute
    assert (found.returncode, found.stderr) == (0, "")
    with serving(tmp_path, DATABASE_URL=url) as server:
        wrong = requests.get(f"{server.url}/readyz", timeout=30).json()["wrong"]
        assert "migrations" in wrong, "so it has read the table"
        assert "database" not in wrong
    dump = tmp_path / "all.dump"
    found = manage(url, tmp_path, "backup", str(dump))
    assert (found.returncode, found.stderr) == (0, "")
    assert b"django_content_type" in dump.read_bytes()


WRONG = {
    "no CA": ({"sslmode": "verify-full", "sslrootcert": "/nowhere/ca.crt"}, "localhost", "/nowhere/ca.crt"),
    "another CA": ({"sslmode": "verify-full", "sslrootcert": "{folder}/stranger.crt"}, "localhost", "verify failed"),
    "another name": ({"sslmode": "verify-full", "sslrootcert": "{folder}/ca.crt"}, "127.0.0.1", "127.0.0.1"),
    "without TLS": ({"sslmode": "disable"}, "localhost", "no encryption"),
    "an unknown parameter": ({"sslmod": "require"}, "localhost", "sslmod is no parameter of libpq"),
    "an unknown mode": ({"sslmode": "verify"}, "localhost", "sslmode='verify'"),
}
COMMANDS = (["migrate"], ["collectimages"], ["check", "--database", "default"], ["createsuperuser", "--noinput"])


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_address_ends_a_command_with_one_line(cluster, tmp_path, kind):
    parameters, host, reason = WRONG[kind]
    given = {name: value.replace("{folder}", str(cluster.folder)) for name, value in parameters.items()}
    for command in COMMANDS if kind == "another CA" else COMMANDS[:1]:
        found = manage(cluster.url(host, **given), tmp_path, *command)
        assert (found.returncode, found.stdout, len(found.stderr.splitlines())) == (1, "", 1), (command, found.stderr)
        assert found.stderr.startswith("DATABASE_URL: ")
        assert reason in found.stderr
        assert "sesame" not in found.stderr


@pytest.mark.parametrize("command", ["serve", "runclock"])
def test_processes_that_wait_for_the_database_refuse_an_address_that_no_database_can_make_right(tmp_path, command):
    for query, reason in (("sslmod=require", "sslmod"), ("sslmode=verify", "sslmode='verify'")):
        found = manage(f"postgres://u:sesame@127.0.0.1:1/x?{query}", tmp_path, command)
        assert (found.returncode, len(found.stderr.splitlines())) == (1, 1), found.stderr
        assert reason in found.stderr
