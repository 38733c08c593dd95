"""`/health/…`: what a supervisor, a load balancer or a monitor asks. No login, no detail that could
leak.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from django.core.cache import cache
from django.db import DatabaseError
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from hub import health

log = logging.getLogger("hub.health")
MAX_ECHO = 4096
"""Bytes of a probe's body at most."""
READY = "hub.health.ready"


@never_cache
@require_GET
def live(request: HttpRequest) -> JsonResponse:
    """The process answers; nothing else is claimed."""
    return JsonResponse({"live": True})


@never_cache
@require_GET
def ready(request: HttpRequest) -> JsonResponse:
    """200 when requests can be served, else 503 with what is missing. True for a second: anybody
    may ask, and the answer costs a write.
    """
    problems = cache.get(READY)
    if problems is None:
        problems = _not_ready()
        cache.set(READY, problems, 1.0)
    return JsonResponse(
        {"ready": not problems, "problems": problems}, status=503 if problems else 200
    )


def _not_ready() -> list[str]:
    try:
        return health.not_ready()
    except DatabaseError as error:
        log.warning("not ready: %s: %s", type(error).__name__, error)
        return ["the database cannot be reached or written"]


@never_cache
@require_GET
def exchange(request: HttpRequest) -> JsonResponse:
    """200 when a synthetic operation went the whole way in the last three minutes, else 503."""
    try:
        found = health.exchange()
    except DatabaseError as error:
        log.warning("exchange unknown: %s: %s", type(error).__name__, error)
        return JsonResponse({"well": False, "age": None, "at": None}, status=503)
    body = {
        "well": found.well,
        "age": None if found.age is None else round(found.age, 1),
        "at": None if found.at is None else found.at.isoformat(),
        "limit": health.EXCHANGE_LIMIT,
    }
    return JsonResponse(body, status=200 if found.well else 503)


@csrf_exempt  # the caller is the hub's own worker, and an echo changes nothing
@never_cache
@require_POST
def echo(request: HttpRequest) -> JsonResponse:
    """The probe's other end: the nonce and the idempotency key come back, nothing is kept."""
    key = request.headers.get("Idempotency-Key", "")
    nonce = _nonce(request)
    if nonce is None or not 0 < len(key) <= 200:
        return JsonResponse({"error": "A nonce and an Idempotency-Key are needed."}, status=422)
    return JsonResponse({"echo": nonce, "key": key}, headers={"Idempotency-Key": key})


def _nonce(request: HttpRequest) -> str | None:
    raw = request.read(MAX_ECHO + 1)
    try:
        body: Any = json.loads(raw) if len(raw) <= MAX_ECHO else None
    except (ValueError, RecursionError):
        return None
    nonce = body.get("nonce") if isinstance(body, dict) else None
    return nonce if isinstance(nonce, str) and 0 < len(nonce) <= 200 else None


urlpatterns = [
    path("live", live, name="health-live"),
    path("ready", ready, name="health-ready"),
    path("exchange", exchange, name="health-exchange"),
    path("echo", echo, name="health-echo"),
]
