"""Logging in: whose address it came from, and what too many failures are answered.

Counting and locking is django-axes' work.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from hub.panel import errors


def client_address(request: HttpRequest) -> str:
    """The address a request came from, seen through `HUB_PROXIES` proxies of ours.

    Each proxy adds at the right end whom it was asked by, so only what our own ones added is
    believed; the rest is what the client claims.
    """
    said = str(request.META.get("HTTP_X_FORWARDED_FOR", ""))
    chain = [part.strip() for part in said.split(",") if part.strip()]
    chain.append(str(request.META.get("REMOTE_ADDR", "")))
    return chain[-1 - min(settings.HUB_PROXIES, len(chain) - 1)]


def locked_out(request: HttpRequest, *args: Any, **options: Any) -> HttpResponse:
    """429: too many failures with this name from this address."""
    return errors.locked_out(int(settings.AXES_COOLOFF_TIME.total_seconds() // 60))
