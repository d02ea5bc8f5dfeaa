"""The permissions of the console: Django makes them for a model, and this one has no table."""

from __future__ import annotations

from django.db import models


class _NoRows(models.Manager["AdminConsole"]):
    """Reads no table: `dumpdata` and pages of the admin read all models."""

    def get_queryset(self) -> models.QuerySet[AdminConsole]:
        return super().get_queryset().none()


class AdminConsole(models.Model):
    """The console, as the admin lists it. `migrate` makes its permissions, and no table."""

    objects = _NoRows()

    class Meta:
        """A row of `django_content_type` and two of `auth_permission` are all that the database gets."""

        managed = False
        base_manager_name = "objects"
        verbose_name = verbose_name_plural = "console"
        default_permissions = ()
        permissions = (
            ("view_console", "Can view jobs in the console"),
            ("operate_console", "Can act on jobs in the console"),
        )
