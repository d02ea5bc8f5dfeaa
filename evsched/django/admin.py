"""The console in the index of the admin. Its page there says who may see the console, and leads to it.

The page is asked within each request for the console, see site_console.py. So the site decides as for any page of its
admin: by its middleware, its login and its permissions.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import get_script_prefix

from evsched.django.console_ask import ASK, Ask, role_of
from evsched.django.models import AdminConsole
from evsched.django.worker_app import first_backend

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[AdminConsole]
else:
    _ModelAdmin = admin.ModelAdmin


class ConsoleAdmin(_ModelAdmin):
    """The entry in the index. It has one page, and nothing to add, change or delete."""

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Answer the `Ask` of a request for the console, or redirect a browser to the page of the console it names."""
        ask: Ask | None = getattr(request, "scope", {}).get(ASK)
        if ask is not None:
            ask.role = role_of(request.user)
            ask.user = request.user.get_username()
            return HttpResponse()
        if not self.has_view_permission(request):
            raise PermissionDenied
        page = request.GET.get("page", "")
        prefix = get_script_prefix() + (first_backend().console or "/").strip("/")
        return HttpResponseRedirect(prefix + (page if page.startswith("/") else "/"))  # never of another site

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return role_of(request.user) is not None

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


with suppress(ImproperlyConfigured):  # the tests of a site may have another backend
    if first_backend().console is not None:
        admin.site.register(AdminConsole, ConsoleAdmin)
