"""The only settings file. It reads the environment and says what it misses in plain words.

A **local run** (`HUB_LOCAL=1`: `make run`, the tests, a look around) needs nothing: the database,
the files and generated keys live in `HUB_HOME`. Without `HUB_LOCAL` the hub takes a run for local
when no `HUB_ALLOWED_HOSTS` is set and either no `DATABASE_URL` is set or `HUB_HOME` already holds
the keys of an earlier local run, so that a command typed beside `make run` finds the same database
and keys. Everything else is **production**: `HUB_SECRET_KEY`, `HUB_CREDENTIAL_KEYS` and
`HUB_ALLOWED_HOSTS` are required, cookies are secure, and plain HTTP is redirected.
"""

import math
import os
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import environ
from cryptography.fernet import Fernet
from django.core.exceptions import ImproperlyConfigured

BASE_DIR = Path(__file__).resolve().parent.parent
env = environ.Env()


def _number(name: str, default: float, *, least: float = 0.0) -> float:
    """Return the number in the variable `name`; raise `ImproperlyConfigured` when it is none."""
    text = env.str(name, default="").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < least:
        raise ImproperlyConfigured(
            f"{name} is {text!r}: set it to a number, at least {least:g}, or leave it out "
            f"for the default {default:g}."
        )
    return value


def _whole(name: str, default: int, *, least: int = 1) -> int:
    """Return the whole number in the variable `name`; raise `ImproperlyConfigured` otherwise."""
    value = _number(name, default, least=least)
    if value != int(value):
        raise ImproperlyConfigured(f"{name} is {value:g}: set it to a whole number.")
    return int(value)


def _switch(name: str, *, default: bool) -> bool:
    """Return the variable `name` as yes or no; raise `ImproperlyConfigured` for other words."""
    text = env.str(name, default="").strip().lower()
    if text in {"1", "true", "yes", "on"}:
        return True
    if text in {"0", "false", "no", "off"}:
        return False
    if text:
        raise ImproperlyConfigured(f"{name} is {text!r}: set it to 1 or 0.")
    return default


def _words(name: str) -> list[str]:
    return [word.strip() for word in env.str(name, default="").split(",") if word.strip()]


def _kept(path: Path, make: Callable[[], str]) -> str:
    """Return the secret kept in `path`, made once and readable by its owner only.

    Web and worker start at the same moment: the file appears whole or not at all, and the first
    one wins.
    """
    if not path.exists():
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # mode 0600
        try:
            with os.fdopen(handle, "w") as stream:
                stream.write(make() + "\n")
                stream.flush()
                os.fsync(stream.fileno())
            try:
                os.link(draft, path)
            except FileExistsError:
                pass
        finally:
            os.unlink(draft)
    text = path.read_text().strip()
    if not text:
        raise ImproperlyConfigured(f"{path} is empty: put its key back from a backup.")
    return text


# --- where this run lives -------------------------------------------------------------------------

HUB_HOME = Path(env.str("HUB_HOME", default="") or BASE_DIR / ".hub").expanduser().resolve()
_SECRET_KEY_FILE = HUB_HOME / "secret_key"
_CREDENTIAL_KEYS_FILE = HUB_HOME / "credential_keys"
_DATABASE_URL = env.str("DATABASE_URL", default="").strip()

HUB_LOCAL = _switch(
    "HUB_LOCAL",
    default=not _words("HUB_ALLOWED_HOSTS") and (not _DATABASE_URL or _SECRET_KEY_FILE.exists()),
)
DEBUG = HUB_LOCAL and _switch("HUB_DEBUG", default=False)

if HUB_LOCAL or not _DATABASE_URL:
    HUB_HOME.mkdir(mode=0o700, parents=True, exist_ok=True)


def _secret(name: str, path: Path, make: Callable[[], str], hint: str) -> str:
    text = env.str(name, default="").strip()
    if text:
        return text
    if HUB_LOCAL:
        return _kept(path, make)
    raise ImproperlyConfigured(
        f"{name} is not set. {hint} For a run on this machine only, set HUB_LOCAL=1: the hub then "
        f"makes its keys in {HUB_HOME}."
    )


SECRET_KEY = _secret(
    "HUB_SECRET_KEY",
    _SECRET_KEY_FILE,
    lambda: secrets.token_urlsafe(64),
    "Set it to 50 or more random characters, the same on every web and worker host.",
)
# The first key seals, all of them open: put a new key in front to rotate.
HUB_CREDENTIAL_KEYS: list[str] = [
    key.strip()
    for key in _secret(
        "HUB_CREDENTIAL_KEYS",
        _CREDENTIAL_KEYS_FILE,
        lambda: Fernet.generate_key().decode(),
        "Set it to one or more Fernet keys, separated by commas, the same on every host.",
    ).split(",")
    if key.strip()
]
for _place, _key in enumerate(HUB_CREDENTIAL_KEYS, start=1):
    try:
        Fernet(_key)
    except ValueError:
        # The key itself must not be shown, and the original error is dropped with it.
        raise ImproperlyConfigured(
            f"Key {_place} of HUB_CREDENTIAL_KEYS is no Fernet key (32 bytes in URL-safe base64)."
        ) from None

# --- database -------------------------------------------------------------------------------------

_database: dict[str, Any] = dict(
    env.db_url_config(_DATABASE_URL)
    if _DATABASE_URL
    else {"ENGINE": "django.db.backends.sqlite3", "NAME": str(HUB_HOME / "hub.sqlite3")}
)
_SQLITE = _database["ENGINE"] == "django.db.backends.sqlite3"
if _SQLITE:
    _database["ENGINE"] = "hub.sqlite"
_options: dict[str, Any] = dict(_database.get("OPTIONS") or {})
if _SQLITE:
    # FULL: a marker forgotten on power loss would mean a duplicate. IMMEDIATE: a transaction that
    # reads first and then writes would otherwise fail with "database is locked" instead of waiting.
    _database["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": (
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; "
            "PRAGMA cache_size=-32000; PRAGMA temp_store=MEMORY;"
        ),
    } | _options
    # A file, because the drain's database thread is a second connection, which memory cannot serve.
    _database["TEST"] = {"NAME": str(HUB_HOME / "test.sqlite3")}
elif _database["ENGINE"] == "django.db.backends.postgresql":
    _application = env.str("HUB_APPLICATION_NAME", default="hub")
    _database["OPTIONS"] = {"application_name": _application} | _options
    _database["CONN_HEALTH_CHECKS"] = True
else:
    raise ImproperlyConfigured(
        "DATABASE_URL must begin with postgresql:// or sqlite:///: the hub keeps its promises on "
        "PostgreSQL and SQLite only."
    )
# Django-Q2 drops old connections around each broker call: an age of 0 would mean a new one each.
_database["CONN_MAX_AGE"] = 300
DATABASES: dict[str, dict[str, Any]] = {"default": _database}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- addresses ------------------------------------------------------------------------------------

HUB_PORT = _whole("HUB_PORT", 8000)
HUB_INTERNAL_URL = env.str("HUB_INTERNAL_URL", default="") or f"http://127.0.0.1:{HUB_PORT}"
ALLOWED_HOSTS = _words("HUB_ALLOWED_HOSTS")
if HUB_LOCAL:
    ALLOWED_HOSTS = [*ALLOWED_HOSTS, "127.0.0.1", "localhost", "[::1]"]
elif not ALLOWED_HOSTS:
    raise ImproperlyConfigured(
        "HUB_ALLOWED_HOSTS is not set. Set it to the names this hub is reached by, "
        "separated by commas."
    )
# The end-to-end probe comes to the web process by this name.
_internal_host = urlsplit(HUB_INTERNAL_URL).hostname
if _internal_host and _internal_host not in ALLOWED_HOSTS:
    ALLOWED_HOSTS.append(_internal_host)
CSRF_TRUSTED_ORIGINS = _words("HUB_CSRF_TRUSTED_ORIGINS")
ROOT_URLCONF = "hub.urls"
WSGI_APPLICATION = "hub.wsgi.application"

# --- apps -----------------------------------------------------------------------------------------

# One line switches an integration on; nothing else in the hub names one.
INTEGRATIONS: list[str] = ["integrations.bitrix24", "integrations.probe"]
INSTALLED_APPS = [
    "hub",
    "hub.site.HubAdminConfig",  # Django's admin, with our site
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "django_q",
    "csp",
    "django_htmx",  # for its copy of htmx alone
    *INTEGRATIONS,
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
LOGIN_URL = "admin:login"
# A report says where it happened, never with which values: some of them are credentials.
DEFAULT_EXCEPTION_REPORTER_FILTER = "hub.panel.reports.NoValues"

# --- language and time ----------------------------------------------------------------------------

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("es", "Español")]
LOCALE_PATHS = [BASE_DIR / "hub" / "locale"]
USE_I18N = True
USE_TZ = True
TIME_ZONE = "UTC"

# --- static files ---------------------------------------------------------------------------------

STATIC_URL = "/static/"
STATIC_ROOT = Path(env.str("HUB_STATIC_ROOT", default="") or BASE_DIR / "staticfiles")
# A local run serves straight from the apps, so nobody has to collect first.
WHITENOISE_USE_FINDERS = HUB_LOCAL
if HUB_LOCAL:
    STATIC_ROOT = HUB_HOME / "static"
    STATIC_ROOT.mkdir(exist_ok=True)
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if HUB_LOCAL
        else "whitenoise.storage.CompressedManifestStaticFilesStorage"
    },
}
MEDIA_ROOT = HUB_HOME / "files"

# --- what the browser is told ---------------------------------------------------------------------

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'none'"],
        "script-src": ["'self'"],
        "style-src": ["'self'"],
        "img-src": ["'self'", "data:"],
        "font-src": ["'self'"],
        "connect-src": ["'self'"],
        "form-action": ["'self'"],
        "base-uri": ["'none'"],
        "frame-ancestors": ["'none'"],
        "object-src": ["'none'"],
    }
}
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CONTENT_TYPE_NOSNIFF = True
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = not HUB_LOCAL
SECURE_SSL_REDIRECT = not HUB_LOCAL and _switch("HUB_SSL_REDIRECT", default=True)
# Health checks and the hub's own probe come from inside, over plain HTTP.
SECURE_REDIRECT_EXEMPT = [r"^health/", r"^probe/"]
SECURE_HSTS_SECONDS = 0 if HUB_LOCAL else _whole("HUB_HSTS_SECONDS", 31_536_000, least=0)
# Whether sub-domains take part is for the owner of the domain to say, not for one of its hosts.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]
if _switch("HUB_BEHIND_PROXY", default=False):
    # Only where a proxy of ours sets this header and drops a client's: else anyone claims HTTPS.
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")

# --- mail -----------------------------------------------------------------------------------------

HUB_EMAIL_CONFIGURED = bool(env.str("EMAIL_URL", default=""))
globals().update(env.email_url("EMAIL_URL", default="consolemail://"))
DEFAULT_FROM_EMAIL = SERVER_EMAIL = env.str("HUB_MAIL_FROM", default="hub@localhost")

# --- cache ----------------------------------------------------------------------------------------

# Django-Q2 writes its status there about twice a second, so never into the database.
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}

# --- the engine -----------------------------------------------------------------------------------
# Seconds unless said otherwise. `hub.checks` compares the values in force with each other.

HUB_MARGIN = _number(
    "HUB_MARGIN", 10.0
)  # clocks, network and settle, on top of every call's own time
HUB_LEASE_ADDEND = _number("HUB_LEASE_ADDEND", 60.0)  # lease = longest call + this
HUB_DRAIN_BUDGET = _number(
    "HUB_DRAIN_BUDGET", 45.0, least=1
)  # a resident drain stops claiming then
HUB_CLAIM_DEPTH = _whole("HUB_CLAIM_DEPTH", 80)  # operations claimed ahead by one drain
HUB_SENDERS = _whole("HUB_SENDERS", 50)  # calls in flight of one drain
HUB_SWEEP_EVERY = _number("HUB_SWEEP_EVERY", 5.0, least=0.05)
HUB_UNCERTAIN_MAX = _number(
    "HUB_UNCERTAIN_MAX", 86_400.0
)  # then an unknown outcome goes to a person
HUB_ACCEPTED_MAX = _number("HUB_ACCEPTED_MAX", 86_400.0)  # then an unfinished job goes to a person
HUB_RETRY_BASE = _number("HUB_RETRY_BASE", 5.0, least=0.001)
HUB_RETRY_CAP = _number("HUB_RETRY_CAP", 900.0, least=0.001)
HUB_MAX_ATTEMPTS = _whole("HUB_MAX_ATTEMPTS", 8)
HUB_MAX_AGE = _number("HUB_MAX_AGE", 86_400.0)  # retries end then
HUB_MAX_LAPSES = _whole("HUB_MAX_LAPSES", 3)  # lost leases before a person looks
HUB_WATCHDOG_DUE_AGE = _number("HUB_WATCHDOG_DUE_AGE", 90.0)
HUB_WATCHDOG_BEAT_AGE = _number("HUB_WATCHDOG_BEAT_AGE", 30.0)
HUB_POLL_INTERVAL = _number("HUB_POLL_INTERVAL", 0.05 if _SQLITE else 1.0, least=0.001)


def _schedule(name: str, default: str) -> tuple[float, ...]:
    text = env.str(name, default="") or default
    try:
        steps = tuple(float(step) for step in text.split(","))
    except ValueError:
        steps = ()
    if not steps or not all(math.isfinite(step) and step > 0 for step in steps):
        raise ImproperlyConfigured(
            f"{name} is {text!r}: set it to positive seconds separated by commas, "
            f"such as {default}."
        )
    return steps


HUB_LOOK_SCHEDULE = _schedule("HUB_LOOK_SCHEDULE", "5,20,60,300,900")  # the last step repeats

# --- Django-Q2: it hosts the drains and rings them; it keeps no score -----------------------------

HUB_WORKERS = _whole("HUB_WORKERS", 1 if _SQLITE else max(1, min(os.cpu_count() or 1, 4)))
Q_CLUSTER: dict[str, Any] = {
    "name": "hub",
    "orm": "default",
    "workers": HUB_WORKERS,
    "queue_limit": HUB_WORKERS,  # its retry clock runs from dequeue, so nothing may be hoarded
    "bulk": 1,
    "timeout": _whole("HUB_TASK_TIMEOUT", 150),
    "retry": _whole("HUB_TASK_RETRY", 480),
    "max_attempts": 1,  # a drain is never repeated by Django-Q2; operations are, by the hub
    "ack_failures": True,
    "save_limit": -1,
    "recycle": 200,
    "max_rss": 400_000,
    "poll": 0.5 if _SQLITE else 0.2,
    "guard_cycle": 0.5,  # 0.5 or 1 only: its countdown must reach 0 exactly
    "catch_up": False,
    "scheduler": True,
    "label": "Django-Q2",
}

# --- logging --------------------------------------------------------------------------------------

LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {
            "()": "hub.logs.ScrubbedFormatter",
            "format": "{asctime} {levelname} {name} {message}",
            "style": "{",
        }
    },
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
    "loggers": {
        # Replaces Django's own handlers: one of them mails whole requests to the administrators.
        "django": {"handlers": ["console"], "level": "INFO", "propagate": False},
        # At DEBUG this logger writes every statement with its parameters.
        "django.db.backends": {"level": "INFO"},
        "django-q": {"level": "WARNING"},
        "hub": {"level": env.str("HUB_LOG_LEVEL", default="INFO").upper()},
        "integrations": {"level": env.str("HUB_LOG_LEVEL", default="INFO").upper()},
        # These write full addresses at INFO, and some addresses carry their credential in the path.
        "httpx": {"level": "WARNING"},
        "httpcore": {"level": "WARNING"},
    },
}
