"""The entry for INSTALLED_APPS, which brings `manage.py evsched`, and the console to the admin."""

from __future__ import annotations

from django.apps import AppConfig


class EvschedConfig(AppConfig):
    name = "evsched.django"
    label = "evsched"
    default_auto_field = "django.db.models.BigAutoField"
