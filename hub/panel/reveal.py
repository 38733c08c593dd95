"""Personal values are masked on every page; whoever may has them shown for one request, on record.

The form is `hub/panel/reveal.html`: a POST of the page to itself. So no address shows values, and
no page that was left open shows more than it did.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import Model
from django.http import HttpRequest

from hub import access
from hub.panel.errors import Lacks

SHOW = "show_values"


def asked(request: HttpRequest) -> bool:
    """Whether this request asks for values to be shown."""
    return request.method == "POST" and SHOW in request.POST


def shown(request: HttpRequest, subject: Model, fields: Iterable[str] = ()) -> bool:
    """Whether this request shows the values of a row; recorded before it does, `Lacks` for those
    who may not.
    """
    if not asked(request):
        return False
    if not access.may(request.user, access.SEE_VALUES, subject):
        raise Lacks(access.SEE_VALUES)
    access.reveal(request.user, subject, fields)
    return True


def offered(request: HttpRequest, subject: Model) -> bool:
    """Whether the page has the button for it."""
    return access.may(request.user, access.SEE_VALUES, subject)
