"""Pages for what cannot be done: which permission is missing and who gives it, what is not there.

Each says the next step and is logged in one line: an answer that was meant is no defect, so no
traceback belongs in the terminal.
"""

from __future__ import annotations

import logging
from typing import Any

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseServerError
from django.template.loader import render_to_string
from django.utils.log import log_response
from django.utils.translation import gettext as _

from hub import access
from hub.panel import words

log = logging.getLogger("hub.panel")
NAMED = 5
"""Most names of people who give rights."""
_RIGHT_FOR = {
    "changelist": "view",
    "change": "view",
    "history": "view",
    "add": "add",
    "delete": "delete",
}


class Lacks(PermissionDenied):
    """Refused because this permission is missing."""

    def __init__(self, permission: str, *, recorded: bool = False) -> None:
        super().__init__(permission)
        self.permission = permission
        self.recorded = recorded
        """Whether a decision on record says so already."""


class NotThere(Http404):
    """What was asked for is not there; the text is for the reader."""


def denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    """403: which permission is missing, and whom to ask for it. A refused change is recorded."""
    permission = _missing(request, exception)
    if (
        request.method not in ("GET", "HEAD", "OPTIONS", "TRACE")
        and request.user.is_authenticated
        and not getattr(exception, "recorded", False)
    ):
        access.refused(request.user, permission, str(request.method), request.path)
    if permission:
        title = _("You lack the permission for this")
        text = _("Nothing was changed. You need this permission: %(permission)s.") % {
            "permission": words.permission(permission)
        }
        names = _who_gives_rights()
        todo = (
            _("Ask one of those who give rights here: %(names)s.") % {"names": ", ".join(names)}
            if names
            else _("Ask an administrator of this hub for it.")
        )
    else:
        title = _("Nobody may do this here")
        text = _("Nothing was changed. What the hub has recorded is neither edited nor deleted.")
        todo = _("A case is settled by the buttons on the page of its operation.")
    response = _page(request, 403, title, text, todo, code=permission)
    said = f"{request.user} lacks {permission}" if permission else f"{request.user}, by anybody"
    log_response("Forbidden: %s (%s)", request.path, said, response=response, request=request)
    return response


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """404: nothing is at this address."""
    text = str(exception) if isinstance(exception, NotThere) else _("Nothing is at this address.")
    return _page(
        request,
        404,
        _("Not found"),
        text,
        _("Search for it by its number, its id here or its id over there, in the operations."),
    )


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """400: what the browser sent cannot be read, or came for another host."""
    return _bare(
        400,
        _("This request cannot be read"),
        _("Nothing was changed. The browser sent something a page of ours never sends."),
        _("Go back, load the page again, and repeat what you did."),
    )


def locked_out(minutes: int) -> HttpResponse:
    """429: too many failures to log in."""
    return _bare(
        429,
        _("Too many attempts to log in"),
        _("Nobody can log in with this name from here for a while."),
        _(
            "Wait %(minutes)s minutes, then try again. If you forgot your password, ask an "
            "administrator of this hub for a new one."
        )
        % {"minutes": minutes},
    )


def server_error(request: HttpRequest) -> HttpResponse:
    """500: a defect of the hub; touches no database, which may be what is missing."""
    try:
        return _bare(
            500,
            _("A defect of the hub"),
            _("This page failed. What was to be saved may not be saved; nothing is sent twice."),
            _("Load the page again and look. If it fails again, tell whoever operates this hub."),
        )
    except Exception:
        log.exception("the page for a defect has one itself")
        return HttpResponseServerError("A defect of the hub. Its log says more.")


def _missing(request: HttpRequest, exception: Exception) -> str:
    """The permission that is missing, or empty when none would help."""
    if isinstance(exception, Lacks):
        return exception.permission
    # Django's own pages of a model are named APP_MODEL_VIEW and refuse without saying why.
    match = request.resolver_match
    app, _line, rest = (match.url_name or "").partition("_") if match else ("", "", "")
    model, _line, view = rest.replace("_password_change", "_change").rpartition("_")
    right = _RIGHT_FOR.get(view, "")
    if view == "change" and request.method == "POST":
        right = "change"
    permission = f"{app}.{right}_{model}"
    # Nobody deletes here, and whoever has the right was refused for what the row is.
    if not right or right == "delete" or request.user.has_perm(permission):
        return ""
    return permission


def _who_gives_rights() -> list[str]:
    found = get_user_model().objects.filter(is_active=True, is_superuser=True)
    return [one.get_username() for one in found.order_by("pk")[:NAMED]]


def _page(request: HttpRequest, status: int, title: str, text: str, todo: str, **more: Any) -> Any:
    context = {
        **admin.site.each_context(request),
        "title": title,
        "text": text,
        "todo": todo,
        "status": status,
        **more,
    }
    return HttpResponse(render_to_string("hub/error.html", context, request), status=status)


def _bare(status: int, title: str, text: str, todo: str) -> HttpResponse:
    """The same without asking who it is: neither the request nor the database can be relied on."""
    context = {
        "title": title,
        "text": text,
        "todo": todo,
        "status": status,
        "site_title": admin.site.site_title,
        "site_header": admin.site.site_header,
    }
    return HttpResponse(render_to_string("hub/error.html", context), status=status)
