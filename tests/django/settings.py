"""The settings of the site. Variables name what a test has made for it."""

from __future__ import annotations

import os
from typing import Any

import django

SECRET_KEY = "not a secret"
USE_TZ = True
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "evsched.django",
    "tests.django.polls",
]
if django.VERSION < (6, 0):
    INSTALLED_APPS.append("django_tasks")

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
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
ROOT_URLCONF = "tests.django.urls"
STATIC_URL = "static/"
ALLOWED_HOSTS = ["console", "127.0.0.1"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # quick

_OPTIONS: dict[str, Any] = {"console": "/jobs/"}
if "SITE_LEDGER" in os.environ:
    _OPTIONS["ledger"] = True
TASKS: dict[str, dict[str, Any]] = {
    "default": {"BACKEND": "evsched.django.Backend", "QUEUES": ["default", "mails"], "OPTIONS": _OPTIONS},
    "any": {"BACKEND": "evsched.django.Backend", "QUEUES": []},
}

_POSTGRES = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": os.environ.get("SITE_DATABASE", ""),
    "HOST": os.environ.get("SITE_HOST", ""),
    "USER": "evsched",
}
DATABASES = {
    "default": _POSTGRES
    if _POSTGRES["NAME"]
    else {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("SITE_FILE", ":memory:")}
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

if "SITE_MAILS" in os.environ:
    EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
    EMAIL_FILE_PATH = os.environ["SITE_MAILS"]
