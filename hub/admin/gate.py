"""Pauses, breakers and rates: to be read here; paused and resumed on the connection's page."""

from __future__ import annotations

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from hub.admin.base import ReadOnlyAdmin
from hub.models import Bucket, Gate


@admin.register(Gate)
class GateAdmin(ReadOnlyAdmin):
    list_display = (
        "connection", "pause_kind", "pause_reason", "paused_by", "paused_until", "breaker",
        "failures", "breaker_until", "throttled_until", "lost",
    )  # fmt: skip
    list_filter = ("pause_kind", "breaker")
    list_select_related = ("connection",)
    heavy = ("connection__secrets",)
    exclude = ("degraded",)
    readonly_fields = ("lost",)

    @admin.display(description=_("actions that dropped a class"))
    def lost(self, row: Gate) -> str:
        return ", ".join(sorted(row.degraded)) or "–"


@admin.register(Bucket)
class BucketAdmin(ReadOnlyAdmin):
    list_display = ("scope", "group", "rate", "burst", "level", "refreshed_at", "slowed_until")
