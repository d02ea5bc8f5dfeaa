"""The entry for INSTALLED_APPS, which brings `manage.py evsched`."""

from __future__ import annotations

from django.apps import AppConfig


class EvschedConfig(AppConfig):
    name = "evsched.django"
    label = "evsched"
