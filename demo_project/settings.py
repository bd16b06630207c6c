"""Settings of the demo: SQLite unless DATABASE_URL says otherwise; see .env.example."""

from pathlib import Path

import django
import environ
from django.core.exceptions import ImproperlyConfigured

BASE_DIR = Path(__file__).resolve().parent.parent
env = environ.Env()
if (BASE_DIR / ".env").is_file():
    env.read_env(BASE_DIR / ".env")

DEBUG = env.bool("DEBUG", default=True)
SECRET_KEY = env.str("SECRET_KEY", default="")
if not SECRET_KEY:
    if not DEBUG:
        raise ImproperlyConfigured("SECRET_KEY is missing and DEBUG is off. Set SECRET_KEY in the environment or .env.")
    SECRET_KEY = "insecure: only for the demo on this machine"
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["127.0.0.1", "localhost"])

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "jobqueue",
    "demo_project.auction",
    "demo_project.demo",
    "demo_project.orders",
    "demo_project.packing",
    "demo_project.billing",
    "demo_project.payments",
    "demo_project.serials",
    "demo_project.sources",
]
if django.VERSION < (6, 0):
    # Since Django 6.0, Tasks are a part of Django.
    INSTALLED_APPS.append("django_tasks")

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
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

DATABASES = {"default": env.db("DATABASE_URL", default=f"sqlite:///{BASE_DIR / 'demo.sqlite3'}")}
_database = DATABASES["default"]
_options = _database.setdefault("OPTIONS", {})
if _database["ENGINE"].endswith("sqlite3"):
    # IMMEDIATE: a transaction waits for the write lock when it begins, instead of failing half-way.
    _options.setdefault("transaction_mode", "IMMEDIATE")
    _options.setdefault("timeout", 20)
    _options.setdefault("init_command", "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL")
elif _database["ENGINE"].endswith("mysql"):
    _options.setdefault("charset", "utf8mb4")

TASKS = {"default": {"BACKEND": "jobqueue.backends.JobQueueBackend", "QUEUES": []}}
# Only the Redis strategies of race_serials and race_auction need it; without it they do not run.
REDIS_URL = env.str("REDIS_URL", default="")
# The events of orders are sent to RabbitMQ, or without it as e-mails to a folder.
BROKER_URL = env.str("BROKER_URL", default="")
ORDERS_QUEUE = "jobqueue-demo-orders"
MAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
# How many times slower than two quiet cores the machine is, as the demo has measured: its short spans are longer then.
_slowness = max(1.0, env.float("DEMO_SLOWNESS", default=1.0))
# What `make demo` makes: its own database and the e-mails.
DEMO_DIR = Path(env.str("DEMO_DIR", default=str(BASE_DIR / ".demo")))
MAIL_DIR = DEMO_DIR / "mail"
JOBQUEUE = {
    "REDIS_URL": REDIS_URL or None,
    "OUTBOX": {
        "ROUTES": {"order.*": {"URL": BROKER_URL, "QUEUE": ORDERS_QUEUE}} if BROKER_URL else {},
        # Short, so that the demo does not wait long for events that a killed relay had claimed.
        "LEASE_SECONDS": min(3.0 * _slowness, 8.0),
    },
    # The service that the demo switches off: few failures open its breaker, and probes come often, so that it is short.
    "DEPENDENCIES": {"payment-service": {"FAILURES": 3, "PROBE": f"{min(500 * _slowness, 2000):.0f}ms"}},
    # Every worker fires all schedules, so only the stage of the demo that shows one has it.
    "SCHEDULES": {
        "month end": {
            "TASK": "demo_project.billing.tasks.close_month",
            "EVERY": f"{min(_slowness, 2):.0f}s",
            "OVERLAP": "skip",
            "ARGS": [env.str("DEMO_MONTH"), env.int("DEMO_CUSTOMERS", default=100)],
        }
    }
    if env.str("DEMO_MONTH", default="")
    else {},
}

ROOT_URLCONF = "demo_project.urls"
WSGI_APPLICATION = "demo_project.wsgi.application"
ASGI_APPLICATION = "demo_project.asgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-us"
