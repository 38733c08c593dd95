"""Tenants: added and renamed, never deleted. Their short name is part of every operation key."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from hub.models import Tenant


@admin.register(Tenant)
class TenantAdmin(admin.ModelAdmin):
    list_display = ("slug", "name", "created_at")
    search_fields = ("slug__startswith", "name__startswith")
    fields = ("slug", "name")
    actions = None
    sortable_by = ()
    show_full_result_count = False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("slug",) if obj is not None else ()
