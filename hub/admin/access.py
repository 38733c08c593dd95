"""Users and groups. A user who decided something has history, so users are switched off, not
deleted.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.http import HttpRequest

admin.site.unregister([User, Group])


@admin.register(User)
class HubUserAdmin(UserAdmin):
    """As Django's, without deleting."""

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Group)
class HubGroupAdmin(GroupAdmin):
    """As Django's, without deleting: who had which right belongs to the history of decisions."""

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
