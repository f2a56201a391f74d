"""Reads every setting of the product from the environment, once, and rejects bad values by name.

Any variable may also be given as NAME_FILE: the path of a file with the value.
Comments that begin with `#:` are for operators: `config/settings_reference.py` makes docs/settings.md of them.
"""

from pathlib import Path

from config.admin_theme import ADMIN_THEME
from config.artifact_storage import artifact_storage
from config.databases import database
from config.env import Env, is_loopback_url
from config.logging_config import logging_config
from config.paths import home, state_dir, work_dir
from config.retention import retention_days
from runtime_jobs.secret_files import load_or_create_secret

ROOT = Path(__file__).resolve().parent.parent
env = Env()

# --- Paths and addresses ----------------------------------------------------------------------------------------------
#: The folder of everything that a process keeps, such as keys and the embedded PostgreSQL. A relative path begins in
#: the project's folder, spaces are allowed. It is the only variable without a `NAME_FILE`.
STATE_DIR = state_dir()
#: The server's public address. An `https` address turns on HSTS for that host, secure cookies, redirects for browsers
#: and refusals (`https_required`) for programs; probes (`/healthz`, `/readyz`, `/metrics`) may use either scheme.
PUBLIC_URL = env.str("PUBLIC_URL", default="http://127.0.0.1:8000").rstrip("/")

# --- Django -----------------------------------------------------------------------------------------------------------
#: Django's pages with tracebacks. Never in production: they show settings to anybody.
DEBUG = env.bool("DEBUG", default=False)
#: Signs sessions, cursors and webhook secrets: 50 or more random characters, the same in all processes. Empty: made
#: once and kept as `STATE_DIR/secret_key`. Former keys go into the second setting, separated by commas.
SECRET_KEY = env.str("SECRET_KEY", default="") or load_or_create_secret(STATE_DIR / "secret_key")
SECRET_KEY_FALLBACKS = env.list("SECRET_KEY_FALLBACKS", default=[])
#: Host names that the server answers to, and other origins whose forms it accepts. Both are lists, separated by commas.
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["127.0.0.1", "localhost", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])
ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
ASGI_APPLICATION = "config.asgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-us"
USE_I18N = False

INSTALLED_APPS = [
    "unfold.apps.BasicAppConfig",  # `config.admin_app` names the site of its theme
    "unfold.contrib.filters",
    "config.admin_app.AdminAppConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "django_filters",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "runtime_jobs",
    "workers",
    "leases",
    "orchestrator",
]
MIDDLEWARE = [
    "orchestrator.http.middleware.arrival",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "orchestrator.http.auth.login.LoginThrottleMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "orchestrator.http.csp.ContentPolicyMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [ROOT / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "static/"
#: The folder that `manage.py collectstatic` fills, if another web server serves the static files. Empty: web processes
#: serve them.
STATIC_ROOT = env.str("STATIC_ROOT", default="") or None
WHITENOISE_USE_FINDERS = True  # otherwise whitenoise serves the files of the packages
LOGIN_URL = "login"  # the admin has its own login page
LOGIN_REDIRECT_URL = "runs"
LOGOUT_REDIRECT_URL = "login"
PASSWORD_HASHERS = ["orchestrator.http.auth.password_hashing.BoundedArgon2"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

# --- Scheduling -------------------------------------------------------------------------------------------------------
#: Seconds of waiting that raise a job's priority by one point; 0: waiting never raises it.
AGING_SECONDS = env.float("AGING_SECONDS", default=72)
# A breaker stops an organization's jobs of one type when more than this share of the last ones failed.
BREAKER = {
    #: A [breaker](glossary.md) opens when more than this share (0 to 1) of the recent ends of an organization's jobs of
    #: one type were failures.
    "failures": env.float("BREAKER_FAILURES", default=0.5),
    #: With fewer recent ends the breaker never opens.
    "least_jobs": env.int("BREAKER_LEAST_JOBS", default=10),
    #: The period of the ends that count.
    "window_seconds": env.int("BREAKER_WINDOW_SECONDS", default=600),
    #: After this time one job may start, to test whether the cause is gone.
    "cool_down_seconds": env.int("BREAKER_COOL_DOWN_SECONDS", default=60),
    #: Job types, separated by commas, whose own failures count, too: `command_failed`, `checkout_failed`,
    #: `command_not_found`, `image_pull_failed`, `image_invalid`, `result_unreadable`. Otherwise only failures
    #: of the classes `worker`, `infrastructure` and `policy` count.
    "job_failures": env.list("BREAKER_JOB_FAILURES", default=[]),
    #: An organization whose breaker opens is in incident mode for so long; 0: it is not.
    "incident_mode_seconds": env.int("BREAKER_INCIDENT_MODE_SECONDS", default=0),
}

# --- Results, artifacts and caches (orchestrator.results, orchestrator.artifacts) -------------------------------------
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},  # unused: there are no uploaded files
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    "outputs": {
        "BACKEND": "orchestrator.core.durable_files.DurableFileStorage",
        #: The folder of the output of jobs of Bencher's runners. All web processes and the scheduler need the same one:
        #: with several machines a folder on a shared file system. [Back it up](backup-and-upgrade.md#backup).
        "OPTIONS": {"location": env.str("OUTPUT_DIR", default=str(STATE_DIR / "outputs"))},
    },
    "images": {
        "BACKEND": "orchestrator.images.storage.ImageFileStorage",
        #: The folder of the registry's images. All web processes and the scheduler, which deletes unused ones, need the
        #: same one, on a file system with `flock`.
        "OPTIONS": {"location": env.str("IMAGE_DIR", default=str(STATE_DIR / "images"))},
    },
}
#: The folder of artifacts, caches and finished logs. All web, housekeeping and dispatcher processes need the same one.
#: [Back it up](backup-and-upgrade.md#backup).
_artifacts_dir = env.str("ARTIFACTS_DIR", default=str(STATE_DIR / "artifacts"))
#: Empty: artifacts, caches and finished logs are stored in `ARTIFACTS_DIR`. A bucket of S3, or of a compatible server
#: at the endpoint, stores them instead, and clients send objects to it and receive them from it. Credentials:
#: `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, or those of the machine. An incomplete set is refused at the start
#: (`orchestrator.E017`).
ARTIFACTS_BUCKET = env.str("ARTIFACTS_BUCKET", default="")
ARTIFACTS_ENDPOINT_URL = env.str("ARTIFACTS_ENDPOINT_URL", default="")
ARTIFACTS_REGION = env.str("ARTIFACTS_REGION", default="")
STORAGES["artifacts"] = artifact_storage(_artifacts_dir, ARTIFACTS_BUCKET, ARTIFACTS_ENDPOINT_URL, ARTIFACTS_REGION)
#: Until the body of an upload to the folder has arrived, under ASGI.
ARTIFACT_UPLOAD_SECONDS = env.float("ARTIFACT_UPLOAD_SECONDS", default=3600.0)
#: All uploads to the folder that one process is receiving at a time.
ARTIFACT_SPOOL_BYTES = env.int("ARTIFACT_SPOOL_BYTES", default=32 << 30)
#: The stored output of one job of a Bencher runner. A larger output is not stored, and one that exceeds a lowered limit
#: is not read.
OUTPUT_LIMIT_BYTES = env.int("OUTPUT_LIMIT_BYTES", default=64 << 20)
#: Branches, testbeds, benchmarks and measures of one project of the Bencher API, of each kind; 0: unlimited. Nothing
#: deletes benchmarks, and every result may name new ones. A result that names more fails as `result_unreadable`, a run
#: is answered 400.
RESOURCES_PER_PROJECT = env.int("RESOURCES_PER_PROJECT", default=100_000)

# --- Registry of images (orchestrator.images) -------------------------------------------------------------------------
#: All images of an organization, each content counted once, with the parts of its uploads; one byte more is refused
#: with 403. 0: unlimited.
IMAGE_QUOTA_BYTES = env.int("IMAGE_QUOTA_BYTES", default=20 << 30)
#: Uploads of an organization that are not complete; one more is answered 429.
IMAGE_MAX_UPLOADS = env.int("IMAGE_MAX_UPLOADS", default=200)
#: The body of one upload request; docker sends a layer in one request, other clients send a blob in several.
IMAGE_UPLOAD_LIMIT_BYTES = env.int("IMAGE_UPLOAD_LIMIT_BYTES", default=1 << 30)
#: Until that body has arrived, under ASGI. A pause of `BODY_SECONDS` ends the upload.
IMAGE_UPLOAD_SECONDS = env.float("IMAGE_UPLOAD_SECONDS", default=3600.0)
#: All upload bodies that one process is receiving. One organization may have half of them, and less while others
#: upload; 1 MiB of each upload is always received.
IMAGE_SPOOL_BYTES = env.int("IMAGE_SPOOL_BYTES", default=8 << 30)

# --- Keys of workflow jobs (orchestrator.core.sealing) ----------------------------------------------------------------
#: 32 bytes in base64, such as from `openssl rand -base64 32`. The keys of job tokens and of sealed values are derived
#: from it, so all processes need the same one. Empty: made once and kept as `STATE_DIR/actions_root_key`. Former keys,
#: separated by commas, verify and open, and neither sign nor seal; `manage.py reseal` makes them
#: [unnecessary](runbooks.md#replace-a-key).
ACTIONS_ROOT_KEY = env.str("ACTIONS_ROOT_KEY", default="")
ACTIONS_ROOT_KEYS_OLD = env.list("ACTIONS_ROOT_KEYS_OLD", default=[])

# --- Evidence (orchestrator.evidence) ---------------------------------------------------------------------------------
#: A private key (Ed25519, PEM) that signs evidence, usually a mounted secret (`SIGNING_KEY_FILE`). Empty: the newest
#: key of `SIGNING_KEY_DIR`.
SIGNING_KEY = env.str("SIGNING_KEY", default="")
#: The private keys of `manage.py signingkey new`, mode 0600. The first signature creates one.
SIGNING_KEY_DIR = env.str("SIGNING_KEY_DIR", default=str(STATE_DIR / "signing_keys"))
#: From one pass that signs [checkpoints](operations.md#checkpoints) to the next.
CHECKPOINT_SECONDS = env.float("CHECKPOINT_SECONDS", default=3600.0)
#: Copies of checkpoints, a folder for each organization. The scheduler process writes them and the audit reads them;
#: take them off the machine.
CHECKPOINT_DIR = env.str("CHECKPOINT_DIR", default=str(STATE_DIR / "checkpoints"))
#: The pool of the jobs that write audit bundles; dispatchers serve it.
EXPORT_POOL = env.str("EXPORT_POOL", default="exports")
#: The longest time that an audit bundle, `manage.py backup` or `manage.py audit` keeps a snapshot open; one that takes
#: longer is stopped. Meanwhile [claims become dearer](runbooks.md#orchestratorsnapshotopen).
SNAPSHOT_SECONDS = env.float("SNAPSHOT_SECONDS", default=1800.0)

# --- Git repositories of workflows (orchestrator.repositories) --------------------------------------------------------
#: The folder of the mirrors, the same one for all web and housekeeping processes.
MIRROR_DIR = env.str("MIRROR_DIR", default=str(STATE_DIR / "mirrors"))
#: The bare repositories below this folder may be the origin of a mirror. Empty: no local repository may.
REPOSITORY_ROOT = env.str("REPOSITORY_ROOT", default="")
#: Between two updates of a mirror that no event causes.
MIRROR_SECONDS = env.float("MIRROR_SECONDS", default=300.0)
#: The longest update of a mirror.
MIRROR_TIMEOUT_SECONDS = env.float("MIRROR_TIMEOUT_SECONDS", default=900.0)
#: The largest mirror. It needs twice as much while its packs are joined.
MIRROR_LIMIT_BYTES = env.int("MIRROR_LIMIT_BYTES", default=8 << 30)
#: Fetches that one web process serves at a time, and how long a further one waits before its 503.
GIT_PROCESSES = env.int("GIT_PROCESSES", default=8)
GIT_QUEUE_SECONDS = env.float("GIT_QUEUE_SECONDS", default=30.0)
#: The request of a fetch, after decompression.
GIT_REQUEST_LIMIT_BYTES = env.int("GIT_REQUEST_LIMIT_BYTES", default=16 << 20)
#: The longest response to a fetch.
GIT_TRANSFER_SECONDS = env.float("GIT_TRANSFER_SECONDS", default=3600.0)
#: After so many days housekeeping replaces the key that signs identity tokens; 0: never. `manage.py rotateidentitykey
#: --urgent --reason TEXT` withdraws a key that has leaked.
IDENTITY_KEY_DAYS = env.int("IDENTITY_KEY_DAYS", default=90)

# --- PostgreSQL -------------------------------------------------------------------------------------------------------
DATABASES = {"default": database(env, STATE_DIR, {"orchestrator.aging_seconds": AGING_SECONDS})}

# --- HTTP -------------------------------------------------------------------------------------------------------------
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "orchestrator.http.auth.authentication.BearerToken",
        "orchestrator.http.auth.authentication.BrowserSession",
    ],
    # Every view names its own permissions.
    "DEFAULT_PERMISSION_CLASSES": ["orchestrator.http.auth.permissions.DenyAll"],
    "DEFAULT_PARSER_CLASSES": ["orchestrator.http.api.json_parser.StrictJSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PAGINATION_CLASS": "orchestrator.http.api.pagination.NewestFirst",
    "DEFAULT_FILTER_BACKENDS": ["orchestrator.http.api.query_parameters.StrictFilters"],
    "DEFAULT_SCHEMA_CLASS": "orchestrator.http.api.openapi.ProblemSchema",
    "EXCEPTION_HANDLER": "orchestrator.http.errors.problems.exception_handler",
    "UNAUTHENTICATED_USER": None,
    "DEFAULT_METADATA_CLASS": None,  # OPTIONS is 405: the OpenAPI document describes the endpoints
    "URL_FORMAT_OVERRIDE": None,  # only Accept selects it; `?format=` is an unknown parameter
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
# Protocols with their own format of errors, by a regular expression for the begin of the path; the first that matches
# counts. All others answer with problem documents. Two protocols have runs: one names them by ids with a prefix, the
# other by whole numbers.
ERROR_DIALECTS = {
    r"/api/v1/(?:(?:runners|jobs)(?:/|$)|runs/[0-9]+(?:/|$))": "orchestrator.protocols.shithub.errors.error_response",
    r"/api/v1/": "orchestrator.protocols.delta.errors.error_response",
    r"/v0/": "orchestrator.protocols.bencher.errors.error_response",
    r"/v2/": "orchestrator.protocols.oci_registry.errors.error_response",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Runtime Orchestrator",
    "DESCRIPTION": "Takes jobs over HTTP, decides which worker runs which next, and sees each through to one result.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVERS": [{"url": "/", "description": "This server."}],
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "SERVE_AUTHENTICATION": [],
    "SCHEMA_PATH_PREFIX": "/v1",
    "COMPONENT_SPLIT_REQUEST": True,
    # Enumerations stay where they are used, so the hook of drf-spectacular that moves them is not listed.
    "POSTPROCESSING_HOOKS": [
        "orchestrator.http.api.openapi.merge_identical_paths",
        "orchestrator.protocols.native.identity.openapi.add_scheme",
        "orchestrator.protocols.shithub.openapi.add_schemes",
    ],
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
}
#: The largest request body on paths for which `BODY_LIMITS` in `config/settings.py` has no other limit ([all of
#: them](operations.md#the-proxy)).
BODY_LIMIT_BYTES = env.int("BODY_LIMIT_BYTES", default=1 << 20)
# Largest request body in bytes, by path; a path that ends with `/` includes those below it. GET and HEAD: 4 KiB.
BODY_LIMITS = {
    "/login/": 8 << 10,
    "/admin/login/": 8 << 10,
    "/admin/password_change/": 8 << 10,
    "/logout/": 8 << 10,
    "/admin/logout/": 8 << 10,
    "/v1/runtime/leases": 64 << 10,  # kept in memory while a claim waits
    "/api/v1/internal/lease": 64 << 10,
    "/api/v1/runners/": 768 << 10,  # document 003; a chunk of a log has 512 KiB before base64
    "/api/v1/jobs/": 768 << 10,
    "/v0/runners/": 64 << 10,
    "/v0/run": 4 << 20,  # the output of benchmarks
    "/v0/auth/": 16 << 10,
    "/v2/": 10_000_000,  # a manifest; uploads of blobs: IMAGE_UPLOAD_LIMIT_BYTES
    "/healthz": 4 << 10,  # a POST is answered 405, with any small body
    "/readyz": 4 << 10,
    "/metrics": 4 << 10,
}
DATA_UPLOAD_MAX_MEMORY_SIZE = max(BODY_LIMIT_BYTES, *BODY_LIMITS.values())
#: Until the whole body has arrived, under ASGI.
BODY_SECONDS = env.float("BODY_SECONDS", default=30.0)
#: All bodies that one process keeps at a time, beyond 64 KiB of each in a temporary file.
BODY_SPOOL_BYTES = env.int("BODY_SPOOL_BYTES", default=256 << 20)
#: Until the request line and all headers have arrived.
HEADER_SECONDS = env.float("HEADER_SECONDS", default=10.0)
#: A client that reads nothing of its response for so long is disconnected.
RESPONSE_STALL_SECONDS = env.float("RESPONSE_STALL_SECONDS", default=40.0)
#: Client connections of one process. A new one replaces the one that has been idle for longest.
MAX_CONNECTIONS = env.int("MAX_CONNECTIONS", default=4096)
#: Of one client address, or IPv6 /64. Not counted: loopback, and all connections with `BEHIND_PROXY`. Workers behind
#: one NAT share an address, and each needs a handful of connections: 5 times their number is enough.
MAX_CONNECTIONS_PER_ADDRESS = env.int("MAX_CONNECTIONS_PER_ADDRESS", default=512)
#: One WebSocket message.
WEBSOCKET_MESSAGE_BYTES = env.int("WEBSOCKET_MESSAGE_BYTES", default=1 << 20)
#: One message of a Bencher runner. It contains the output of all iterations, up to 25 MiB of each stream: of a larger
#: result the beginning is kept, and the job fails with a message that names the limit. Raise it for jobs with more
#: output.
RUNNER_MESSAGE_LIMIT_BYTES = env.int("RUNNER_MESSAGE_LIMIT_BYTES", default=4 << 20)
#: Requests that one process answers at a time, and those that may wait for a thread; one more is answered 503
#: `overloaded`. Claims that wait for work do not count.
REQUEST_THREADS = env.int("REQUEST_THREADS", default=40)
REQUEST_QUEUE = env.int("REQUEST_QUEUE", default=256)
#: The same for forms with a password, which have threads of their own; at most 2 of them hash at a time.
LOGIN_THREADS = env.int("LOGIN_THREADS", default=12)
LOGIN_QUEUE = env.int("LOGIN_QUEUE", default=64)
#: Streams open at the same time in one process: of a token or person (429), of an organization (429), and of all (503).
STREAMS_PER_CALLER = env.int("STREAMS_PER_CALLER", default=100)
STREAMS_PER_ORGANIZATION = env.int("STREAMS_PER_ORGANIZATION", default=300)
STREAMS_PER_PROCESS = env.int("STREAMS_PER_PROCESS", default=2000)
#: A client that reads nothing of a stream is disconnected after this time. Below `RESPONSE_STALL_SECONDS`, so that the
#: metric has the cause.
STREAM_STALL_SECONDS = env.float("STREAM_STALL_SECONDS", default=30.0)
#: The longest stream.
STREAM_MAX_SECONDS = env.float("STREAM_MAX_SECONDS", default=3600.0)
#: Between two checks that the token or session of a stream is still valid.
STREAM_AUTH_SECONDS = env.float("STREAM_AUTH_SECONDS", default=15.0)
#: Threads, each with a database connection while it reads, for all streams of one process.
STREAM_READERS = env.int("STREAM_READERS", default=2)
DATA_UPLOAD_MAX_NUMBER_FIELDS = 200
#: Invalid tokens that a client address may send within a minute before it gets 429.
BAD_TOKENS_PER_MINUTE = env.int("BAD_TOKENS_PER_MINUTE", default=200)
#: How long a web process may use what it read about a valid token; 0: each request reads it, and at most 1
#: (`orchestrator.E011`). A revocation reaches the revoking process at once, a process that listens to PostgreSQL's
#: notifications with the next one, and every other process after this time.
AUTH_CACHE_SECONDS = env.float("AUTH_CACHE_SECONDS", default=1.0)

# --- Security ---------------------------------------------------------------------------------------------------------
#: Whether the public address has TLS. By default `PUBLIC_URL` says it.
HTTPS = env.bool("HTTPS", default=PUBLIC_URL.startswith("https://"))
#: One proxy of yours sets `X-Forwarded-Proto` and appends to `X-Forwarded-For`. Without this setting both headers are
#: ignored.
BEHIND_PROXY = env.bool("BEHIND_PROXY", default=False)
#: The header in which that proxy writes the client's address, for example `Fly-Client-IP`; of a list the last entry
#: counts. Ignored without `BEHIND_PROXY`.
CLIENT_ADDRESS_HEADER = env.str("CLIENT_ADDRESS_HEADER", default="X-Forwarded-For")
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if BEHIND_PROXY else None
#: Workers with client certificates: a proxy verifies the certificate and sends the subject in this header, which is
#: accepted from these addresses or networks only ([delta.md](protocols/delta.md)). Both settings or neither are needed
#: (`orchestrator.E001`).
CERTIFICATE_HEADER = env.str("CERTIFICATE_HEADER", default="")
CERTIFICATE_PROXIES = env.list("CERTIFICATE_PROXIES", default=[])
CSRF_FAILURE_VIEW = "orchestrator.http.errors.error_views.cross_site"
#: What a GitHub App signs with, for the repositories of all projects; 32 random characters or more. Empty: only the
#: projects' own secrets are valid.
GITHUB_WEBHOOK_SECRET = env.str("GITHUB_WEBHOOK_SECRET", default="")
#: The bearer token of `/metrics`. Empty: only requests from the machine itself.
METRICS_TOKEN = env.str("METRICS_TOKEN", default="")
#: `*`: the 50 oldest organizations have a label `tenant` in `/metrics`; a list names others, at most 50; empty: none
#: has. All further organizations share the empty label.
METRICS_TENANTS = env.list("METRICS_TENANTS", default=["*"])
SESSION_COOKIE_SECURE = HTTPS
CSRF_COOKIE_SECURE = HTTPS
#: With `https`, whether browsers that use plain HTTP are redirected.
SECURE_SSL_REDIRECT = HTTPS and env.bool("SSL_REDIRECT", default=True)
SECURE_REDIRECT_EXEMPT = [r"^(healthz|readyz|metrics)$"]  # requested over plain HTTP by the machine itself
SECURE_HSTS_SECONDS = 31536000 if HTTPS else 0
#: With `https`, whether HSTS applies to every name below the public one. It takes long to undo: the owner of the domain
#: decides.
SECURE_HSTS_INCLUDE_SUBDOMAINS = HTTPS and env.bool("HSTS_INCLUDE_SUBDOMAINS", default=False)
#: Whether the domain may enter the browsers' preload lists. It takes long to undo, too.
SECURE_HSTS_PRELOAD = HTTPS and env.bool("HSTS_PRELOAD", default=False)
# The warnings of `check --deploy` about these two: the operator decides.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_AGE = 8 * 3600
X_FRAME_OPTIONS = "DENY"
CONTENT_SECURITY_POLICY = {
    "EXCLUDE_URL_PREFIXES": [],
    "DIRECTIVES": {
        "default-src": ["'self'"],
        "img-src": ["'self'", "data:"],
        "style-src": ["'self'", "'unsafe-inline'"],  # inline style attributes of the admin theme
        "script-src": ["'self'", "'unsafe-eval'"],  # the theme's Alpine.js evaluates attributes; no inline scripts
        "object-src": ["'none'"],
        "base-uri": ["'self'"],
        "form-action": ["'self'"],
        "frame-ancestors": ["'none'"],
    },
}

# --- Admin (orchestrator.admin) ---------------------------------------------------------------------------------------
UNFOLD = ADMIN_THEME

# --- Policy of jobs (read once at submit; operations read the job's own columns) --------------------------------------
#: How soon a silent worker is noticed; three heartbeats must fit into a lease (`leases.E001`).
LEASE_TTL_SECONDS = env.int("LEASE_TTL_SECONDS", default=120)
HEARTBEAT_INTERVAL_SECONDS = env.int("HEARTBEAT_INTERVAL_SECONDS", default=20)
#: A worker that says nothing about a new lease for so long loses it, and the job is queued again. After so many times
#: it fails as `never_acknowledged`.
ACKNOWLEDGE_WITHIN_SECONDS = env.int("ACKNOWLEDGE_WITHIN_SECONDS", default=30)
MAX_REQUEUES = env.int("MAX_REQUEUES", default=5)
#: A job is canceled so long after the request even if its worker has not confirmed it.
CANCEL_DEADLINE_SECONDS = env.int("CANCEL_DEADLINE_SECONDS", default=30)
# New attempts that the server makes itself after a failure of the infrastructure, by job type; 0: none.
AUTOMATIC_RETRIES = {
    #: New attempts that the server makes of a job of this type after `lease_expired`, `worker_lost` or
    #: `worker_shutdown`; 0: none. Jobs that exist keep the number of their submit.
    "runtime": env.int("AUTOMATIC_RETRIES_RUNTIME", default=1),
    "steps": env.int("AUTOMATIC_RETRIES_STEPS", default=1),
}
#: So long after the time limit of a job that still executes the server ends it as timed out; the second setting is that
#: of the job types of document 004, whose workers learn of the limit with a heartbeat.
TIMEOUT_GRACE_SECONDS = env.int("TIMEOUT_GRACE_SECONDS", default=60)
PAYLOAD_TIMEOUT_GRACE_SECONDS = env.int("PAYLOAD_TIMEOUT_GRACE_SECONDS", default=60)
#: The hosts from which jobs may take a repository, and that a mirror may follow.
REPOSITORY_HOSTS = env.list("REPOSITORY_HOSTS", default=["github.com"])
#: The pool of projects that name none.
DEFAULT_POOL = env.str("DEFAULT_POOL", default="shared-linux")

# --- Workflow jobs (orchestrator.protocols.shithub) -------------------------------------------------------------------
#: A runner of workflow jobs that is silent for so long has lost its job (`lease_expired`, or `timed_out` if the time
#: limit has passed); one that never began it gives it back to the queue. From 5 to 900 (`orchestrator.E016`).
ACTIONS_LEASE_SECONDS = env.int("ACTIONS_LEASE_SECONDS", default=60)

# --- Runners of Bencher (orchestrator.protocols.bencher) --------------------------------------------------------------
#: The pool of Bencher's runners, in which all jobs of type `oci` wait. The first runner creates it if it is missing.
RUNNER_POOL = env.str("RUNNER_POOL", default="bare-metal")
#: A Bencher runner that sends no valid message for so long has lost its job. From 1 to 900 (`orchestrator.E012`).
RUNNER_HEARTBEAT_TIMEOUT_SECONDS = env.int("RUNNER_HEARTBEAT_TIMEOUT_SECONDS", default=90)
#: A job of a Bencher runner that runs longer than its time limit and this ends as timed out. From 1 to 900.
RUNNER_TIMEOUT_GRACE_SECONDS = env.int("RUNNER_TIMEOUT_GRACE_SECONDS", default=60)
#: A result that arrives so long after the runner lost the job still counts; 0: it never does.
RUNNER_LATE_RESULT_SECONDS = env.int("RUNNER_LATE_RESULT_SECONDS", default=3600)
#: Connections and claims of one Bencher runner, counted over all processes; one more is answered 429. 0: unlimited.
#: Bencher's own limits are 16, 256 and 4096.
RUNNER_CONNECTS_PER_MINUTE = env.int("RUNNER_CONNECTS_PER_MINUTE", default=0)
RUNNER_CONNECTS_PER_HOUR = env.int("RUNNER_CONNECTS_PER_HOUR", default=0)
RUNNER_CONNECTS_PER_DAY = env.int("RUNNER_CONNECTS_PER_DAY", default=0)
#: Whether `POST /v0/run` is accepted without authentication. Such a run creates an organization without an owner on the
#: plan `unclaimed`. By default yes if `PUBLIC_URL` is a loopback address.
ANONYMOUS_RUNS = env.bool("ANONYMOUS_RUNS", default=is_loopback_url(PUBLIC_URL))
#: Such runs of one address, or IPv6 /64, counted over all processes; 0: unlimited.
ANONYMOUS_RUNS_PER_MINUTE = env.int("ANONYMOUS_RUNS_PER_MINUTE", default=64)
ANONYMOUS_RUNS_PER_HOUR = env.int("ANONYMOUS_RUNS_PER_HOUR", default=128)
ANONYMOUS_RUNS_PER_DAY = env.int("ANONYMOUS_RUNS_PER_DAY", default=256)
#: Runs (`POST /v0/run`) of one person, and of one project, counted over all processes; one more is answered 429 with
#: `Retry-After`. 0: unlimited. Bencher's own limits are 64, 1024 and 4096.
AUTHENTICATED_RUNS_PER_MINUTE = env.int("AUTHENTICATED_RUNS_PER_MINUTE", default=0)
AUTHENTICATED_RUNS_PER_HOUR = env.int("AUTHENTICATED_RUNS_PER_HOUR", default=0)
AUTHENTICATED_RUNS_PER_DAY = env.int("AUTHENTICATED_RUNS_PER_DAY", default=0)
#: Requests of one person, or of the keys of one project, to the Bencher API, counted over all processes. Each counted
#: request costs a statement. 0: unlimited. Bencher's own limits are 2048, 8192 and 16384.
CALLER_REQUESTS_PER_MINUTE = env.int("CALLER_REQUESTS_PER_MINUTE", default=0)
CALLER_REQUESTS_PER_HOUR = env.int("CALLER_REQUESTS_PER_HOUR", default=0)
CALLER_REQUESTS_PER_DAY = env.int("CALLER_REQUESTS_PER_DAY", default=0)

# --- Scheduler --------------------------------------------------------------------------------------------------------
#: From one [round](operations.md#the-scheduler-and-its-stand-by) of the scheduler process to the next.
CLOCK_PERIOD_SECONDS = env.float("CLOCK_PERIOD_SECONDS", default=1.0)
#: A stand-by takes over from a scheduler process that was silent for so long; 2 or more, and less than
#: `CLOCK_SILENT_AFTER_SECONDS`.
CLOCK_TAKEOVER_SECONDS = env.float("CLOCK_TAKEOVER_SECONDS", default=6.0)
#: `/readyz` fails when no scheduler process has written a beat for so long.
CLOCK_SILENT_AFTER_SECONDS = env.float("CLOCK_SILENT_AFTER_SECONDS", default=15.0)

# --- Retention (orchestrator.maintenance.pruning) ---------------------------------------------------------------------
RETENTION_DAYS = retention_days(env)

# --- Housekeeping (orchestrator.housekeeping) -------------------------------------------------------------------------
#: Tasks that one housekeeping process executes at a time.
HOUSEKEEPING_THREADS = env.int("HOUSEKEEPING_THREADS", default=4)

# --- Schedules and bulk actions (orchestrator.schedules, orchestrator.bulk_actions) ----------------------------------
#: Schedules of one organization ([schedules.md](schedules.md)).
SCHEDULES_PER_ORGANIZATION = env.int("SCHEDULES_PER_ORGANIZATION", default=200)
#: Jobs or incidents of one bulk action.
BULK_ACTION_TARGETS = env.int("BULK_ACTION_TARGETS", default=20_000)
#: Bulk actions of an organization that have not ended.
BULK_ACTIONS_PER_ORGANIZATION = env.int("BULK_ACTIONS_PER_ORGANIZATION", default=10)

# --- Outgoing webhooks and mail (orchestrator.webhooks, orchestrator.processes) ---------------------------------------
#: Webhooks go to public addresses only, over https. Networks such as `10.20.0.0/16`, separated by commas, are allowed
#: besides, there also over http.
WEBHOOK_NETWORKS = env.list("WEBHOOK_NETWORKS", default=[])
#: Webhooks of one organization.
WEBHOOKS_PER_ORGANIZATION = env.int("WEBHOOKS_PER_ORGANIZATION", default=50)
#: Deliveries that one dispatcher sends at a time.
DISPATCHER_CONNECTIONS = env.int("DISPATCHER_CONNECTIONS", default=500)
#: The mail server for notifications: its name, port and credentials, STARTTLS, TLS, the longest wait in seconds, and
#: the sender. Without a host no mail is sent, and no notification rule may name addresses.
EMAIL_HOST = env.str("EMAIL_HOST", default="")
EMAIL_PORT = env.int("EMAIL_PORT", default=25)
EMAIL_HOST_USER = env.str("EMAIL_HOST_USER", default="")
EMAIL_HOST_PASSWORD = env.str("EMAIL_HOST_PASSWORD", default="")
EMAIL_USE_TLS = env.bool("EMAIL_USE_TLS", default=False)
EMAIL_USE_SSL = env.bool("EMAIL_USE_SSL", default=False)
EMAIL_TIMEOUT = env.int("EMAIL_TIMEOUT", default=15)
DEFAULT_FROM_EMAIL = env.str("EMAIL_FROM", default="runtime-orchestrator@localhost")
#: Domains, separated by commas, to whose addresses notifications may be mailed besides the members of the organization.
NOTIFICATION_DOMAINS = env.list("NOTIFICATION_DOMAINS", default=[])

# --- The worker (manage.py runworker reads these; it never opens the database) ----------------------------------------
#: Where a worker sends its runs. Empty: the reference ingest of the server ([an ingest of your
#: own](operations.md#an-ingest-of-your-own)).
INGEST_URL = env.str("INGEST_URL", default="")
#: The file with the token by which the ingest at `INGEST_URL` knows the worker. The worker's own token is sent to the
#: server only.
_ingest_token = env.str("INGEST_TOKEN_FILE", default="")
INGEST_TOKEN_FILE = Path(_ingest_token) if _ingest_token else None  # the worker's token at another ingest
# The folder of the repository of `seed` and `demo`, and the URL under which workers of this installation find it.
DEMO_REPOSITORY = home(STATE_DIR) / "demo.git"
DEMO_REPOSITORY_URL = "https://github.com/runtime-orchestrator/demo.git"
_demo = {DEMO_REPOSITORY_URL: str(DEMO_REPOSITORY)} if DEMO_REPOSITORY.is_dir() else {}
#: A map from URL prefix to mirror, as JSON, like git's `insteadOf`.
GIT_MIRRORS = _demo | env.json("GIT_MIRRORS", default={})
#: Checkouts and spool of a worker. Other accounts must be able to reach it. Empty: `STATE_DIR/work`.
WORKER_DIR = Path(env.str("WORKER_DIR", default="") or work_dir(STATE_DIR))
_engine = {
    #: Where the worker is root, slot n runs its jobs as this uid + n, of 184 uids. One that an account or another
    #: worker has is left out, also if that worker is in another network namespace. A worker in a container that runs
    #: beside a worker outside of containers needs a range of its own: it cannot see the other one, whose jobs would end
    #: its own.
    "first_uid": env.int("WORKER_FIRST_UID", default=61000),
    #: Whether a worker that is root gives each slot a [file system of its own](operations.md#disk-of-a-worker), if the
    #: kernel has loop devices. Otherwise the disk use is measured.
    "use_volumes": env.bool("WORKER_DISK_VOLUMES", default=True),
    #: What the file system of `WORKER_DIR` [keeps free](operations.md#disk-of-a-worker). Below it running jobs are
    #: stopped, the largest first.
    "reserve_bytes": env.int("WORKER_RESERVE_BYTES", default=1 << 30),
    "reserve_inodes": env.int("WORKER_RESERVE_INODES", default=10_000),
}
#: The log of a job keeps so much from the beginning and from the end of its output; at most 48 MiB together.
WORKER_LOG_HEAD_BYTES = env.int("WORKER_LOG_HEAD_BYTES", default=8 << 20)
WORKER_LOG_TAIL_BYTES = env.int("WORKER_LOG_TAIL_BYTES", default=8 << 20)
ENGINES = {
    "bubblewrap": {"BACKEND": "workers.engines.bubblewrap.engine.BubblewrapEngine", "OPTIONS": _engine},
    "oci": {"BACKEND": "workers.engines.oci.engine.OciEngine", "OPTIONS": _engine},
    "restricted": {"BACKEND": "workers.engines.restricted.engine.RestrictedEngine", "OPTIONS": _engine},
    "null": {"BACKEND": "workers.engines.null.NullEngine", "OPTIONS": {}},
}

# --- Logs -------------------------------------------------------------------------------------------------------------
#: The lowest level that is written, on standard error, one line each: `DEBUG`, `INFO`, `WARNING`, `ERROR` or
#: `CRITICAL`.
LOGGING = logging_config(env.str("LOG_LEVEL", default="INFO"))
