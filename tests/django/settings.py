"""The settings of the site. Variables name what a test has made for it."""

from __future__ import annotations

import os
from typing import Any

import django

SECRET_KEY = "not a secret"
USE_TZ = True
INSTALLED_APPS = ["evsched.django", "tests.django.polls"]
if django.VERSION < (6, 0):
    INSTALLED_APPS.append("django_tasks")

_OPTIONS: dict[str, Any] = {"ledger": True} if "SITE_LEDGER" in os.environ else {}
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
    "default": _POSTGRES if _POSTGRES["NAME"] else {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

if "SITE_MAILS" in os.environ:
    EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
    EMAIL_FILE_PATH = os.environ["SITE_MAILS"]
