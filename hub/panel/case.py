"""Closing a question that is no operation's: drift, a possible duplicate, a refusing connection.

A case about an operation closes when the operation moves; these have nothing that would move.
"""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from hub import cases, review
from hub.models import Decision, ReviewCase
from hub.models.review import Subject
from hub.panel.choices import CLOSE, of_case
from hub.panel.connection import ReasonForm, page
from hub.panel.errors import Lacks
from hub.sql import database_now


def closable(case: ReviewCase) -> bool:
    """Whether a person closes it by saying why."""
    return case.closed_at is None and case.subject != Subject.OPERATION


def close_with(case: ReviewCase, *, user: Any, reason: str) -> bool:
    """Close a case and record who did and why; False when somebody was faster."""
    now = database_now()
    with transaction.atomic():
        done = cases.close_case(case.subject, case.subject_id, by=user.get_username(), now=now)
        if done:
            Decision.objects.create(
                case=case,
                operation_id=case.operation_id,
                action=CLOSE,
                by=user,
                by_name=user.get_username(),
                reason=reason,
                at=now,
                done=True,
                result=_("The question is closed; nothing was sent or changed."),
            )
    return done


@require_http_methods(["GET", "POST"])
def close(request: HttpRequest, pk: int) -> HttpResponse:
    """Ask for the reason, then close."""
    if not request.user.has_perm(review.DECIDE):
        raise Lacks(review.DECIDE)
    case = get_object_or_404(ReviewCase.objects.select_related("connection__gate"), pk=pk)
    back = HttpResponseRedirect(reverse("admin:hub_reviewcase_change", args=[case.pk]))
    if not closable(case):
        messages.warning(request, _("This case is closed already, or closes with its operation."))
        return back
    closing = next(one for one in of_case(case, request.user).buttons if one.action == CLOSE)
    if closing.why_not:
        messages.warning(request, closing.why_not)
        return back
    form = ReasonForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        if close_with(case, user=request.user, reason=form.cleaned_data["reason"]):
            messages.success(request, _("The question is closed; nothing was sent or changed."))
        else:
            messages.warning(request, _("Somebody else has closed it. Nothing was changed."))
        return back
    return page(
        request,
        "hub/panel/connection_reason.html",
        case.connection,
        _("Close case %(number)s") % {"number": case.pk},
        form=form,
        button=closing.label,
        effect=closing.effect,
        back=back.url,
    )
