"""Reads every setting of the product from the environment, once, and rejects bad values by name.

Any variable may also be given as NAME_FILE: the path of a file with the value.
"""

from pathlib import Path

from config.admin_theme import ADMIN_THEME
from config.artifact_storage import artifact_storages
from config.databases import database
from config.env import Env, is_loopback_url
from config.logging_config import logging_config
from config.paths import home, state_dir, work_dir
from config.retention import retention_days
from runtime_jobs.secret_files import load_or_create_secret

ROOT = Path(__file__).resolve().parent.parent
env = Env()

# --- Paths and addresses ----------------------------------------------------------------------------------------------
STATE_DIR = state_dir()
PUBLIC_URL = env.str("PUBLIC_URL", default="http://127.0.0.1:8000").rstrip("/")

# --- Django -----------------------------------------------------------------------------------------------------------
DEBUG = env.bool("DEBUG", default=False)
SECRET_KEY = env.str("SECRET_KEY", default="") or load_or_create_secret(STATE_DIR / "secret_key")
SECRET_KEY_FALLBACKS = env.list("SECRET_KEY_FALLBACKS", default=[])
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
STATIC_ROOT = env.str("STATIC_ROOT", default="") or None  # for collectstatic, if another web server serves the files
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
# Seconds of waiting that raise a job's priority by one point; 0: never.
AGING_SECONDS = env.float("AGING_SECONDS", default=72)
# A breaker stops an organization's jobs of one type when more than this share of the last ones failed.
BREAKER = {
    "failures": env.float("BREAKER_FAILURES", default=0.5),
    "least_jobs": env.int("BREAKER_LEAST_JOBS", default=10),  # with fewer it never opens
    "window_seconds": env.int("BREAKER_WINDOW_SECONDS", default=600),
    "cool_down_seconds": env.int("BREAKER_COOL_DOWN_SECONDS", default=60),  # then one job may start
    # Job types whose own failures count, too: a failing command, a repository that cannot be checked out.
    "job_failures": env.list("BREAKER_JOB_FAILURES", default=[]),
    # An organization whose breaker opens is in incident mode for so long; 0: it is not.
    "incident_mode_seconds": env.int("BREAKER_INCIDENT_MODE_SECONDS", default=0),
}

# --- Results of jobs (orchestrator.results) ---------------------------------------------------------------------------
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},  # unused: there are no uploaded files
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    "outputs": {
        "BACKEND": "orchestrator.core.durable_files.DurableFileStorage",
        "OPTIONS": {"location": env.str("OUTPUT_DIR", default=str(STATE_DIR / "outputs"))},
    },
    "images": {
        "BACKEND": "orchestrator.images.storage.ImageFileStorage",
        "OPTIONS": {"location": env.str("IMAGE_DIR", default=str(STATE_DIR / "images"))},
    },
}
STORAGES |= artifact_storages(env, STATE_DIR)
# Of the bucket for artifacts, caches and finalized logs; empty: a folder (`config/artifact_storage.py`).
ARTIFACTS_BUCKET = env.str("ARTIFACTS_BUCKET", default="")
ARTIFACTS_ENDPOINT_URL = env.str("ARTIFACTS_ENDPOINT_URL", default="")
ARTIFACTS_REGION = env.str("ARTIFACTS_REGION", default="")
ARTIFACT_UPLOAD_SECONDS = env.float("ARTIFACT_UPLOAD_SECONDS", default=3600.0)  # until a body has arrived, under ASGI
ARTIFACT_SPOOL_BYTES = env.int("ARTIFACT_SPOOL_BYTES", default=32 << 30)  # that one process is receiving at a time
OUTPUT_LIMIT_BYTES = env.int("OUTPUT_LIMIT_BYTES", default=64 << 20)  # of the stored output of one job
# Branches, testbeds, benchmarks and measures of one project, of each kind; 0: unlimited. Nothing deletes benchmarks,
# and every result may name new ones.
RESOURCES_PER_PROJECT = env.int("RESOURCES_PER_PROJECT", default=100_000)

# --- Registry of images (orchestrator.images) -------------------------------------------------------------------------
IMAGE_QUOTA_BYTES = env.int("IMAGE_QUOTA_BYTES", default=20 << 30)  # of all images of an organization; 0: unlimited
IMAGE_MAX_UPLOADS = env.int("IMAGE_MAX_UPLOADS", default=200)  # of an organization that are not complete
IMAGE_UPLOAD_LIMIT_BYTES = env.int(
    "IMAGE_UPLOAD_LIMIT_BYTES", default=1 << 30
)  # of one request; a blob may have several
IMAGE_UPLOAD_SECONDS = env.float("IMAGE_UPLOAD_SECONDS", default=3600.0)  # until its body has arrived, under ASGI
IMAGE_SPOOL_BYTES = env.int("IMAGE_SPOOL_BYTES", default=8 << 30)  # that one process is receiving at a time

# --- Keys of workflow jobs (orchestrator.core.sealing) ----------------------------------------------------------------
# 32 bytes in base64; empty: a file of STATE_DIR, which the first use creates. All processes need the same key.
ACTIONS_ROOT_KEY = env.str("ACTIONS_ROOT_KEY", default="")
# Former keys: they verify and open, and neither sign nor seal. `manage.py reseal` makes them unnecessary.
ACTIONS_ROOT_KEYS_OLD = env.list("ACTIONS_ROOT_KEYS_OLD", default=[])

# --- Evidence (orchestrator.evidence) ---------------------------------------------------------------------------------
# A private key (Ed25519, PEM) that signs evidence. Empty: the newest file of SIGNING_KEY_DIR (`manage.py signingkey`).
SIGNING_KEY = env.str("SIGNING_KEY", default="")
SIGNING_KEY_DIR = env.str("SIGNING_KEY_DIR", default=str(STATE_DIR / "signing_keys"))
CHECKPOINT_SECONDS = env.float("CHECKPOINT_SECONDS", default=3600.0)
# Copies of checkpoints. The scheduler process writes them and the audit reads them; take them off the machine.
CHECKPOINT_DIR = env.str("CHECKPOINT_DIR", default=str(STATE_DIR / "checkpoints"))
EXPORT_POOL = env.str("EXPORT_POOL", default="exports")  # of the jobs that write audit bundles: dispatchers serve it
SNAPSHOT_SECONDS = env.float("SNAPSHOT_SECONDS", default=1800.0)  # of an audit bundle, an audit, a backup

# --- Git repositories of workflows (orchestrator.repositories) --------------------------------------------------------
# The folder of the mirrors. All web and housekeeping processes need the same one. REPOSITORY_HOSTS applies, too.
MIRROR_DIR = env.str("MIRROR_DIR", default=str(STATE_DIR / "mirrors"))
REPOSITORY_ROOT = env.str("REPOSITORY_ROOT", default="")  # bare repositories below it may be an origin; empty: none
MIRROR_SECONDS = env.float("MIRROR_SECONDS", default=300.0)  # between two updates that no event causes
MIRROR_TIMEOUT_SECONDS = env.float("MIRROR_TIMEOUT_SECONDS", default=900.0)  # of one update
MIRROR_LIMIT_BYTES = env.int("MIRROR_LIMIT_BYTES", default=8 << 30)  # of one mirror
# Processes of `git upload-pack` at a time, in each web process. Further fetches wait for GIT_QUEUE_SECONDS, then 503.
GIT_PROCESSES = env.int("GIT_PROCESSES", default=8)
GIT_QUEUE_SECONDS = env.float("GIT_QUEUE_SECONDS", default=30.0)
GIT_REQUEST_LIMIT_BYTES = env.int("GIT_REQUEST_LIMIT_BYTES", default=16 << 20)  # of a fetch's request, decompressed
GIT_TRANSFER_SECONDS = env.float("GIT_TRANSFER_SECONDS", default=3600.0)  # of one response
# Days after which housekeeping replaces the key that signs identity tokens (orchestrator.identity); 0: never.
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
# Largest request body in bytes, by path; a path that ends with `/` includes those below it. GET and HEAD: 4 KiB.
BODY_LIMIT_BYTES = env.int("BODY_LIMIT_BYTES", default=1 << 20)
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
BODY_SECONDS = env.float("BODY_SECONDS", default=30.0)  # until the whole body has arrived, under ASGI
BODY_SPOOL_BYTES = env.int("BODY_SPOOL_BYTES", default=256 << 20)  # all bodies that one process keeps at a time
HEADER_SECONDS = env.float("HEADER_SECONDS", default=10.0)  # until the request line and all headers have arrived
# A client that reads nothing of its response for so long is disconnected.
RESPONSE_STALL_SECONDS = env.float("RESPONSE_STALL_SECONDS", default=40.0)
MAX_CONNECTIONS = env.int("MAX_CONNECTIONS", default=4096)  # per process; a new connection replaces an idle one
# Per client address, or IPv6 /64. Not counted: loopback, and all connections with BEHIND_PROXY.
MAX_CONNECTIONS_PER_ADDRESS = env.int("MAX_CONNECTIONS_PER_ADDRESS", default=512)
WEBSOCKET_MESSAGE_BYTES = env.int("WEBSOCKET_MESSAGE_BYTES", default=1 << 20)
# Of a message of a Bencher runner, which contains the output of all iterations: up to 25 MiB of each stream.
RUNNER_MESSAGE_LIMIT_BYTES = env.int("RUNNER_MESSAGE_LIMIT_BYTES", default=4 << 20)
REQUEST_THREADS = env.int("REQUEST_THREADS", default=40)  # requests in progress at a time, under ASGI
REQUEST_QUEUE = env.int("REQUEST_QUEUE", default=256)  # requests that wait for a thread; further ones are answered 503
LOGIN_THREADS = env.int("LOGIN_THREADS", default=12)  # for forms with a password: two hash at a time, the others wait
LOGIN_QUEUE = env.int("LOGIN_QUEUE", default=64)
# Streamed responses (job logs), counted per process.
STREAMS_PER_CALLER = env.int("STREAMS_PER_CALLER", default=100)  # of one API token or person
STREAMS_PER_ORGANIZATION = env.int("STREAMS_PER_ORGANIZATION", default=300)
STREAMS_PER_PROCESS = env.int("STREAMS_PER_PROCESS", default=2000)
# A client that reads nothing is disconnected: before RESPONSE_STALL_SECONDS, so that the metric has the cause.
STREAM_STALL_SECONDS = env.float("STREAM_STALL_SECONDS", default=30.0)
STREAM_MAX_SECONDS = env.float("STREAM_MAX_SECONDS", default=3600.0)
STREAM_AUTH_SECONDS = env.float("STREAM_AUTH_SECONDS", default=15.0)  # between two re-checks of their credentials
STREAM_READERS = env.int("STREAM_READERS", default=2)  # threads, and database connections, that read for all streams
DATA_UPLOAD_MAX_NUMBER_FIELDS = 200
# Invalid tokens that a client address may send within a minute before it gets 429.
BAD_TOKENS_PER_MINUTE = env.int("BAD_TOKENS_PER_MINUTE", default=200)
# How long a process may use what it read about a valid token; 0: each request reads it. At most 1 (orchestrator.E011).
AUTH_CACHE_SECONDS = env.float("AUTH_CACHE_SECONDS", default=1.0)

# --- Security ---------------------------------------------------------------------------------------------------------
HTTPS = env.bool("HTTPS", default=PUBLIC_URL.startswith("https://"))
# One proxy of the operator sets X-Forwarded-Proto and appends to X-Forwarded-For. Otherwise both are ignored.
BEHIND_PROXY = env.bool("BEHIND_PROXY", default=False)
# The header in which that proxy writes the client's address; of a list the last entry. Ignored without BEHIND_PROXY.
CLIENT_ADDRESS_HEADER = env.str("CLIENT_ADDRESS_HEADER", default="X-Forwarded-For")
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if BEHIND_PROXY else None
# Workers with client certificates: a proxy verifies the certificate and sends the subject in this header. The header
# is accepted from these addresses or networks only. Both settings or neither are needed (orchestrator.E001).
CERTIFICATE_HEADER = env.str("CERTIFICATE_HEADER", default="")
CERTIFICATE_PROXIES = env.list("CERTIFICATE_PROXIES", default=[])
CSRF_FAILURE_VIEW = "orchestrator.http.errors.error_views.cross_site"
# The signing secret of a GitHub App for all projects; empty: only the projects' own secrets are valid.
GITHUB_WEBHOOK_SECRET = env.str("GITHUB_WEBHOOK_SECRET", default="")
METRICS_TOKEN = env.str("METRICS_TOKEN", default="")  # for /metrics; empty: loopback only
# Organizations with a label of their own in /metrics, at most 50; `*`: the 50 oldest ones; empty: none.
METRICS_TENANTS = env.list("METRICS_TENANTS", default=["*"])
SESSION_COOKIE_SECURE = HTTPS
CSRF_COOKIE_SECURE = HTTPS
SECURE_SSL_REDIRECT = HTTPS and env.bool("SSL_REDIRECT", default=True)
SECURE_REDIRECT_EXEMPT = [r"^(healthz|readyz|metrics)$"]  # requested over plain HTTP by the machine itself
SECURE_HSTS_SECONDS = 31536000 if HTTPS else 0
# Both affect more than this server: every name below the public one, and with preload every browser, for years.
SECURE_HSTS_INCLUDE_SUBDOMAINS = HTTPS and env.bool("HSTS_INCLUDE_SUBDOMAINS", default=False)
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

# --- Policy of jobs: read once at submit; operations read the job's own columns ---------------------------------------
LEASE_TTL_SECONDS = env.int("LEASE_TTL_SECONDS", default=120)
HEARTBEAT_INTERVAL_SECONDS = env.int("HEARTBEAT_INTERVAL_SECONDS", default=20)  # leases.E001: 3 times this < TTL
ACKNOWLEDGE_WITHIN_SECONDS = env.int("ACKNOWLEDGE_WITHIN_SECONDS", default=30)
CANCEL_DEADLINE_SECONDS = env.int("CANCEL_DEADLINE_SECONDS", default=30)
MAX_REQUEUES = env.int("MAX_REQUEUES", default=5)
# New attempts that the server makes itself after a failure of the infrastructure, by job type; 0: none.
AUTOMATIC_RETRIES = {
    "runtime": env.int("AUTOMATIC_RETRIES_RUNTIME", default=1),
    "steps": env.int("AUTOMATIC_RETRIES_STEPS", default=1),
}
# A worker stops its command at the time limit. After this many seconds more the scheduler process fails the job.
TIMEOUT_GRACE_SECONDS = env.int("TIMEOUT_GRACE_SECONDS", default=60)
# Of the job types of document 004, whose workers learn of the limit with a heartbeat.
PAYLOAD_TIMEOUT_GRACE_SECONDS = env.int("PAYLOAD_TIMEOUT_GRACE_SECONDS", default=60)
REPOSITORY_HOSTS = env.list("REPOSITORY_HOSTS", default=["github.com"])
DEFAULT_POOL = env.str("DEFAULT_POOL", default="shared-linux")

# --- Workflow jobs (orchestrator.protocols.shithub) -------------------------------------------------------------------
# A runner that is silent for so long has lost its job; one that never began the job gives it back to the queue.
ACTIONS_LEASE_SECONDS = env.int("ACTIONS_LEASE_SECONDS", default=60)  # from 5 to 900 (orchestrator.E016)

# --- Runners of Bencher (orchestrator.protocols.bencher) --------------------------------------------------------------
RUNNER_POOL = env.str("RUNNER_POOL", default="bare-metal")
# A runner that sends no valid message for so long has lost its job. From 1 to 900 (orchestrator.E012), as the next.
RUNNER_HEARTBEAT_TIMEOUT_SECONDS = env.int("RUNNER_HEARTBEAT_TIMEOUT_SECONDS", default=90)
RUNNER_TIMEOUT_GRACE_SECONDS = env.int("RUNNER_TIMEOUT_GRACE_SECONDS", default=60)
# A result that arrives so long after the runner lost the job still counts.
RUNNER_LATE_RESULT_SECONDS = env.int("RUNNER_LATE_RESULT_SECONDS", default=3600)
# Connects and claims of one runner, over all processes; 0: unlimited.
RUNNER_CONNECTS_PER_MINUTE = env.int("RUNNER_CONNECTS_PER_MINUTE", default=0)
RUNNER_CONNECTS_PER_HOUR = env.int("RUNNER_CONNECTS_PER_HOUR", default=0)
RUNNER_CONNECTS_PER_DAY = env.int("RUNNER_CONNECTS_PER_DAY", default=0)
# Whether a run without authentication is accepted. It creates an organization without an owner.
ANONYMOUS_RUNS = env.bool("ANONYMOUS_RUNS", default=is_loopback_url(PUBLIC_URL))
# Such runs of one address, or IPv6 /64, counted over all processes; 0: unlimited.
ANONYMOUS_RUNS_PER_MINUTE = env.int("ANONYMOUS_RUNS_PER_MINUTE", default=64)
ANONYMOUS_RUNS_PER_HOUR = env.int("ANONYMOUS_RUNS_PER_HOUR", default=128)
ANONYMOUS_RUNS_PER_DAY = env.int("ANONYMOUS_RUNS_PER_DAY", default=256)
# Runs of one person and of one project, and all requests of one person or of a project's keys to the API of Bencher,
# counted over all processes; 0: unlimited. Bencher limits them on its own cloud only, to 64, 1024, 4096 and to 2048,
# 8192, 16384.
AUTHENTICATED_RUNS_PER_MINUTE = env.int("AUTHENTICATED_RUNS_PER_MINUTE", default=0)
AUTHENTICATED_RUNS_PER_HOUR = env.int("AUTHENTICATED_RUNS_PER_HOUR", default=0)
AUTHENTICATED_RUNS_PER_DAY = env.int("AUTHENTICATED_RUNS_PER_DAY", default=0)
CALLER_REQUESTS_PER_MINUTE = env.int("CALLER_REQUESTS_PER_MINUTE", default=0)
CALLER_REQUESTS_PER_HOUR = env.int("CALLER_REQUESTS_PER_HOUR", default=0)
CALLER_REQUESTS_PER_DAY = env.int("CALLER_REQUESTS_PER_DAY", default=0)

# --- Scheduler --------------------------------------------------------------------------------------------------------
CLOCK_PERIOD_SECONDS = env.float("CLOCK_PERIOD_SECONDS", default=1.0)
# Seconds without a beat of the leader after which a stand-by takes over; below CLOCK_SILENT_AFTER_SECONDS.
CLOCK_TAKEOVER_SECONDS = env.float("CLOCK_TAKEOVER_SECONDS", default=6.0)
CLOCK_SILENT_AFTER_SECONDS = env.float("CLOCK_SILENT_AFTER_SECONDS", default=15.0)
RETENTION_DAYS = retention_days(env)

# --- Housekeeping (orchestrator.housekeeping) -------------------------------------------------------------------------
HOUSEKEEPING_THREADS = env.int("HOUSEKEEPING_THREADS", default=4)  # tasks that one process executes at a time

# --- Schedules and bulk actions (orchestrator.schedules, orchestrator.bulk_actions) ----------------------------------
SCHEDULES_PER_ORGANIZATION = env.int("SCHEDULES_PER_ORGANIZATION", default=200)
BULK_ACTION_TARGETS = env.int("BULK_ACTION_TARGETS", default=20_000)  # jobs or incidents of one bulk action
BULK_ACTIONS_PER_ORGANIZATION = env.int("BULK_ACTIONS_PER_ORGANIZATION", default=10)  # that have not ended

# --- Outgoing webhooks and mail (orchestrator.webhooks, orchestrator.dispatching) -------------------------------------
# Networks of the operator to which webhooks may be sent besides public addresses, there also over http.
WEBHOOK_NETWORKS = env.list("WEBHOOK_NETWORKS", default=[])
WEBHOOKS_PER_ORGANIZATION = env.int("WEBHOOKS_PER_ORGANIZATION", default=50)
DISPATCHER_CONNECTIONS = env.int("DISPATCHER_CONNECTIONS", default=500)  # deliveries that one process sends at a time
# Without a host no mail is sent, and no notification rule may name addresses.
EMAIL_HOST = env.str("EMAIL_HOST", default="")
EMAIL_PORT = env.int("EMAIL_PORT", default=25)
EMAIL_HOST_USER = env.str("EMAIL_HOST_USER", default="")
EMAIL_HOST_PASSWORD = env.str("EMAIL_HOST_PASSWORD", default="")
EMAIL_USE_TLS = env.bool("EMAIL_USE_TLS", default=False)
EMAIL_USE_SSL = env.bool("EMAIL_USE_SSL", default=False)
EMAIL_TIMEOUT = env.int("EMAIL_TIMEOUT", default=15)
DEFAULT_FROM_EMAIL = env.str("EMAIL_FROM", default="runtime-orchestrator@localhost")
# Domains to whose addresses notifications may be sent, besides the addresses of an organization's members.
NOTIFICATION_DOMAINS = env.list("NOTIFICATION_DOMAINS", default=[])

# --- The worker (manage.py runworker reads these; it never opens the database) ----------------------------------------
INGEST_URL = env.str("INGEST_URL", default="")  # empty: the reference ingest of the server
_ingest_token = env.str("INGEST_TOKEN_FILE", default="")
INGEST_TOKEN_FILE = Path(_ingest_token) if _ingest_token else None  # the worker's token at another ingest
# The folder of the repository of `seed` and `demo`, and the URL under which workers of this installation find it.
DEMO_REPOSITORY = home(STATE_DIR) / "demo.git"
DEMO_REPOSITORY_URL = "https://github.com/runtime-orchestrator/demo.git"
_demo = {DEMO_REPOSITORY_URL: str(DEMO_REPOSITORY)} if DEMO_REPOSITORY.is_dir() else {}
GIT_MIRRORS = _demo | env.json("GIT_MIRRORS", default={})  # URL prefix -> mirror, as git's insteadOf
WORKER_DIR = Path(env.str("WORKER_DIR", default="") or work_dir(STATE_DIR))
_engine = {
    # Where the worker is root, slot n runs its jobs as this uid + n. No account may have one of the 184 uids.
    "first_uid": env.int("WORKER_FIRST_UID", default=61000),
    # A file system per slot, if the worker is root and the kernel has loop devices; otherwise the disk use is measured.
    "use_volumes": env.bool("WORKER_DISK_VOLUMES", default=True),
    # Free space of the work directory's file system. Below it running jobs are stopped, the largest first.
    "reserve_bytes": env.int("WORKER_RESERVE_BYTES", default=1 << 30),
    "reserve_inodes": env.int("WORKER_RESERVE_INODES", default=10_000),
}
# The log of a job keeps the beginning and the end of its output. The server stores 50 MiB of a log.
WORKER_LOG_HEAD_BYTES = env.int("WORKER_LOG_HEAD_BYTES", default=8 << 20)
WORKER_LOG_TAIL_BYTES = env.int("WORKER_LOG_TAIL_BYTES", default=8 << 20)
ENGINES = {
    "bubblewrap": {"BACKEND": "workers.engines.bubblewrap.engine.BubblewrapEngine", "OPTIONS": _engine},
    "restricted": {"BACKEND": "workers.engines.restricted.engine.RestrictedEngine", "OPTIONS": _engine},
    "null": {"BACKEND": "workers.engines.null.NullEngine", "OPTIONS": {}},
}

# --- Logs -------------------------------------------------------------------------------------------------------------
LOGGING = logging_config(env.str("LOG_LEVEL", default="INFO"))
