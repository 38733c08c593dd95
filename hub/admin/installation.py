"""The installation and its drains."""

from __future__ import annotations

from django.contrib import admin

from hub.admin.base import ReadOnlyAdmin
from hub.models import Heartbeat, Installation


@admin.register(Installation)
class InstallationAdmin(ReadOnlyAdmin):
    list_display = ("mark", "epoch", "restored_at", "clock_jumped_at", "clock_note", "exchange_at")


@admin.register(Heartbeat)
class HeartbeatAdmin(ReadOnlyAdmin):
    list_display = (
        "drain",
        "host",
        "pid",
        "epoch",
        "started_at",
        "beat_at",
        "in_flight",
        "settled",
    )
