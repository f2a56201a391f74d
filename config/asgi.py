"""Defines the ASGI application: all HTTP requests, long polls and streams included.

`manage.py serve` runs it with limits on connections and request heads, which ASGI leaves to the server. With another
ASGI server the operator configures those limits.
"""

import gc
import os
import sys

import django

from config.gc_freeze import freeze_server
from config.postgres.embedded import ensure_unless_given

gc.disable()  # until `freeze_server`
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
ensure_unless_given()
django.setup(set_prefix=False)

from orchestrator.http.asgi.body_limit import Application  # noqa: E402 - likewise
from orchestrator.http.asgi.long_poll import LongPollMiddleware  # noqa: E402 - likewise
from orchestrator.http.asgi.router import Router  # noqa: E402 - likewise
from orchestrator.http.asgi.sync_handler import SyncASGIHandler  # noqa: E402 - needs the settings
from orchestrator.http.asgi.upload_body import Uploads  # noqa: E402 - likewise
from orchestrator.http.fast_path import FastPath  # noqa: E402 - likewise
from orchestrator.images.storage import UploadPart  # noqa: E402 - likewise
from orchestrator.protocols.bencher.channel.endpoints import RunnerSockets  # noqa: E402 - likewise
from orchestrator.protocols.git_http import wire as git_wire  # noqa: E402 - likewise
from orchestrator.protocols.git_http.endpoints import GitServer  # noqa: E402 - likewise
from orchestrator.protocols.native.artifacts.receiver import object_uploads  # noqa: E402 - likewise
from orchestrator.protocols.native.fast_routes import ROUTES as NATIVE_ROUTES  # noqa: E402 - likewise
from orchestrator.protocols.oci_registry.access import share_of_upload  # noqa: E402 - likewise
from orchestrator.protocols.shithub.fast_routes import ROUTES as SHITHUB_ROUTES  # noqa: E402 - likewise
from orchestrator.protocols.stella.graph.sockets import GraphQLSockets  # noqa: E402 - likewise

django_requests = SyncASGIHandler(FastPath([*NATIVE_ROUTES, *SHITHUB_ROUTES]))
runner_sockets = RunnerSockets(django_requests.threads, django_requests.identities)
graphql_sockets = GraphQLSockets(django_requests.threads, django_requests.identities)
git = GitServer(django_requests.threads, django_requests.identities)
# WebSocket applications by path.
WEBSOCKETS: dict[str, Application] = {
    "/v0/runners/{runner}/channel": runner_sockets.channel,
    "/v0/runners/{runner}/jobs/{job}": runner_sockets.job,
    "/api/graphql": graphql_sockets.connect,
}
# Applications by path that receive and send bodies of any size.
STREAMS: dict[str, Application] = {
    git_wire.INFO_REFS: git.info_refs,
    git_wire.UPLOAD_PACK: git.upload_pack,
    git_wire.RECEIVE_PACK: git.receive_pack,
}
application = Router(
    requests=django_requests,
    long_polls=LongPollMiddleware(django_requests),
    websockets=WEBSOCKETS,
    uploads=[Uploads(share_of_upload, UploadPart), object_uploads()],
    streams=STREAMS,
)
freeze_server()
# The event loop needs the interpreter's lock after each network event. With Python's 5 ms and eight busy threads it
# waited 10 to 14 ms for that in the median, with 1 ms 6 to 10 ms; the threads did 3 to 7 % less work meanwhile.
sys.setswitchinterval(0.001)
