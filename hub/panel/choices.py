"""Which buttons a case has, and which of them is recommended.

The one place that decides either: a recommendation is chosen among the buttons that can be pressed,
so no page and no list names one that is not there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from django.urls import reverse
from django.utils.translation import gettext as _

from hub import review
from hub.models import Candidate, Mapping, Operation, ReviewCase
from hub.models.gate import Breaker
from hub.models.review import Subject
from hub.panel import words
from hub.panel.connection import gate_of

TEST, RESUME, CLOSE = "test", "resume", "close"


@dataclass(frozen=True, slots=True)
class Button:
    """One choice, and whether this person may press it; `address` is the page it stands on."""

    action: str
    label: str
    effect: str
    why_not: str
    recommended: bool = False
    needs_remote_ref: bool = False
    address: str = ""


@dataclass(frozen=True, slots=True)
class Advice:
    """What is recommended: what to do first, if anything, and the button; either may be empty."""

    first: str = ""
    button: Button | None = None

    def __str__(self) -> str:
        return ": ".join(
            part.rstrip(".") for part in (self.first, self.button.label if self.button else "")
            if part
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ties:
    """What an operation's record and its candidates are tied to already."""

    own: str
    """The object there that this record is tied to, or empty."""
    taken: dict[str, str]
    """Candidates that are tied to another record, and to which."""

    def why_not(self, remote_ref: str) -> str:
        """Why a link to this object would be refused; empty when it would not be."""
        if remote_ref in self.taken:
            return _("tied to %(record)s already") % {"record": self.taken[remote_ref]}
        if self.own and self.own != remote_ref:
            return _("this record is tied to %(ref)s already") % {"ref": self.own}
        return ""


def ties(operation: Operation, candidates: Collection[Candidate]) -> Ties:
    """What would refuse a link, by the rows a link itself is held to."""
    rows = Mapping.objects.filter(
        connection_id=operation.connection_id, object_type=operation.object_type
    )
    entity = {
        "tenant_id": operation.tenant_id,
        "source_system": operation.source_system,
        "source_id": operation.source_id,
    }
    own = (
        rows.filter(**entity, deleted_at__isnull=True).values_list("remote_ref", flat=True).first()
    )
    others = rows.filter(remote_ref__in=[one.remote_ref for one in candidates]).exclude(**entity)
    return Ties(
        own or "",
        {ref: f"{system}/{pk}" for ref, system, pk in others.values_list(
            "remote_ref", "source_system", "source_id"
        )} if candidates else {},
    )  # fmt: skip


def of_operation(
    operation: Operation, user: Any = None, candidates: Iterable[Candidate] = ()
) -> list[Button]:
    """Every button of an operation's page; without a user, as for one who may everything.

    The candidates of its case are asked for only where they matter: a list has many cases.
    """
    buttons = []
    for choice in review.choices(operation):
        why_not = choice.why_not
        if not why_not and not _may(user, review.DECIDE, choice.permission):
            why_not = _("You lack the permission for it.")
        buttons.append(
            Button(
                choice.action,
                words.decision(choice.action),
                choice.effect,
                why_not,
                choice.recommended and not why_not,
                choice.needs_remote_ref,
            )
        )
    advised = next((one for one in buttons if one.recommended), None)
    if advised is not None and advised.action == review.LINK:
        named = list(candidates)
        known = ties(operation, named)
        if named and all(known.why_not(one.remote_ref) for one in named):
            # A link would be refused: it can be tried with another id, but not be recommended.
            buttons = [replace(one, recommended=False) for one in buttons]
    return buttons


def of_case(case: ReviewCase, user: Any = None) -> list[Button]:
    """The buttons that settle a case, whatever it is about; none once it is closed."""
    if case.closed_at is not None:
        return []
    if case.subject == Subject.OPERATION:
        operation = case.operation
        if operation is None:
            return []
        operation.connection = case.connection
        address = reverse("admin:operation_story", args=[operation.pk])
        buttons = of_operation(operation, user, case.candidates.only("remote_ref")[:20])
        return [replace(one, address=address) for one in buttons]
    closing = Button(
        CLOSE,
        _("Close this case"),
        _("The question is settled, or needs no answer. Nothing is sent or changed."),
        "" if _may(user, review.DECIDE) else _("You lack the permission for it."),
        recommended=_may(user, review.DECIDE),
        address=reverse("admin:case_close", args=[case.pk]),
    )
    if case.subject != Subject.CONNECTION:
        return [closing]
    return _of_connection(case, closing, user)


def _of_connection(case: ReviewCase, closing: Button, user: Any) -> list[Button]:
    gate = gate_of(case.connection)
    paused = gate is not None and gate.paused_at is not None
    stopped = paused or (gate is not None and gate.breaker != Breaker.CLOSED)
    may = _may(user, "hub.change_connection")
    lacking = "" if may else _("You lack the permission for it.")
    address = reverse("admin:hub_connection_change", args=[case.connection_id])
    asking = Button(
        TEST,
        _("Test connection"),
        _("Asks only; creates nothing there."),
        lacking,
        recommended=stopped and may,
        address=address,
    )
    if not paused:
        return [asking, replace(closing, recommended=closing.recommended and not stopped)]
    resuming = Button(
        RESUME,
        _("Resume"),
        _("What waited goes out, as fast as the limits allow."),
        lacking,
        address=address,
    )
    # Closed while the pause stays, it would hide why work does not go on.
    still = _("Its connection is still paused: this case closes when an administrator resumes it.")
    return [asking, resuming, replace(closing, why_not=still, recommended=False)]


def advice(case: ReviewCase, buttons: Iterable[Button]) -> Advice:
    """What is recommended for a case, among its buttons; empty when nothing is."""
    button = next((one for one in buttons if one.recommended and not one.why_not), None)
    if button is None:
        return Advice()
    return Advice(_first(case, button), button)


def _first(case: ReviewCase, button: Button) -> str:
    """What to do before the button is pressed."""
    if case.subject == Subject.DRIFT:
        return _(
            "Compare both. If the new data is right, have it submitted under a new version; then"
        )
    if case.subject == Subject.DUPLICATE:
        return _("Compare both objects there and remove the one too many; then")
    if case.subject == Subject.CONNECTION and button.action == TEST:
        return _("Put right what the connection needs; then")
    if case.subject == Subject.OPERATION and case.advice == "correct":
        return _("Correct the cause; then")
    return ""


def _may(user: Any, *permissions: str) -> bool:
    return user is None or all(user.has_perm(one) for one in permissions)
