"""Which buttons a case has, and which of them is recommended.

The one place that decides either: the advice table says what is advised, and the button is chosen
among those that can be pressed, so no page and no list names one that is not there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.urls import reverse
from django.utils.translation import gettext as _

from hub import access, review, situation
from hub.advice import Advised, Verb, advise
from hub.models import Candidate, Mapping, Operation, ReviewCase
from hub.models.gate import Breaker
from hub.models.review import Subject
from hub.panel import words
from hub.panel.connection import gate_of
from hub.sql import database_now

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
    """What the advice table says of a case, in words, and the button that carries it out."""

    button: Button | None = None
    row: int = 0
    """The row of the table; 0 where no table speaks of it."""
    said: str = ""
    strength: str = ""
    facts: tuple[str, ...] = ()
    would_change: tuple[str, ...] = ()
    short: str = ""
    """What to do in a word or two, for a list."""
    urgency: str = ""

    def __str__(self) -> str:
        short = self.short or (self.button.label if self.button else "")
        return " · ".join(part for part in (short, self.strength) if part)


@dataclass(frozen=True, slots=True)
class Settled:
    """How a case can be settled: every button, and what is advised."""

    buttons: list[Button]
    advice: Advice


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
    operation: Operation,
    user: Any = None,
    *,
    known: situation.Known | None = None,
    now: datetime | None = None,
    verbs: Sequence[str] = review.ACTIONS,
) -> list[Button]:
    """Every button of an operation's page; without a user, as for one who may everything.

    `known` is what its open case was found to be; without one nothing is recommended.
    """
    stale = known.stale if known is not None else None
    buttons = []
    for choice in review.choices(operation, now, stale=stale, verbs=verbs):
        why_not = choice.why_not
        if not why_not and not _may(user, choice.permission):
            why_not = _("You lack the permission for it.")
        buttons.append(
            Button(
                choice.action,
                words.decision(choice.action),
                choice.effect,
                why_not,
                needs_remote_ref=choice.needs_remote_ref,
            )
        )
    if known is None:
        return buttons
    chosen = _chosen(advise(known.situation), known, buttons)
    return [replace(one, recommended=one.action == chosen) for one in buttons]


STANDS_IN: dict[Verb, tuple[Verb, ...]] = {
    # A repeat in doubt begins with a look; where it cannot be pressed, the look by itself can.
    Verb.RETRY: (Verb.LOOK,),
}
"""What leads the same way as an advised verb that cannot be pressed just now."""


def _chosen(advised: Advised, known: situation.Known, buttons: Iterable[Button]) -> str:
    """The button that carries an advice out; empty where there is none that can be pressed."""
    if advised.verb is None:
        return ""
    pressable = {one.action for one in buttons if not one.why_not}
    in_doubt = known.situation.doubt
    others = STANDS_IN.get(advised.verb, ()) if in_doubt else ()
    return next((one.value for one in (advised.verb, *others) if one.value in pressable), "")


def of_cases(
    cases: Sequence[ReviewCase], user: Any = None, now: datetime | None = None
) -> dict[int, Settled]:
    """Buttons and advice of many cases, by their number, in a constant number of queries."""
    now = now or database_now()
    still_open = [one for one in cases if one.closed_at is None]
    known = situation.situations(still_open, now) if still_open else {}
    found = {}
    for case in cases:
        buttons = _buttons(case, user, known.get(case.pk), now)
        found[case.pk] = Settled(buttons, _advice(case, buttons, known.get(case.pk)))
    return found


def of_case(case: ReviewCase, user: Any = None) -> Settled:
    """The buttons that settle a case, whatever it is about, and the advice; neither once closed."""
    return of_cases([case], user)[case.pk]


def _buttons(
    case: ReviewCase, user: Any, known: situation.Known | None, now: datetime
) -> list[Button]:
    if case.closed_at is not None:
        return []
    if case.subject == Subject.OPERATION:
        operation = case.operation
        if operation is None:
            return []
        address = reverse("admin:operation_story", args=[operation.pk])
        buttons = of_operation(operation, user, known=known, now=now, verbs=review.MOVES)
        return [replace(one, address=address) for one in buttons]
    may = _may(user, review.DECIDE)
    closing = Button(
        CLOSE,
        _("Close this case"),
        _("The question is settled, or needs no answer. Nothing is sent or changed."),
        "" if may else _("You lack the permission for it."),
        recommended=may,
        address=reverse("admin:case_close", args=[case.pk]),
    )
    if case.subject != Subject.CONNECTION:
        return [closing]
    return _of_connection(case, closing, user)


def _of_connection(case: ReviewCase, closing: Button, user: Any) -> list[Button]:
    gate = gate_of(case.connection)
    paused = gate is not None and gate.paused_at is not None
    stopped = paused or (gate is not None and gate.breaker != Breaker.CLOSED)
    may = _may(user, access.PAUSE)
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


def _advice(case: ReviewCase, buttons: Iterable[Button], known: situation.Known | None) -> Advice:
    """The advice of the table, and the button that carries it out among those there are."""
    if known is None:
        return Advice()
    button = next((one for one in buttons if one.recommended and not one.why_not), None)
    advised = advise(known.situation)
    if case.subject == Subject.CONNECTION and known.situation.access_refused_since is None:
        # Paused by a person, stopped by itself, or open again: no row of the table is about that.
        testing = button is not None and button.action == TEST
        said = _("Put right what the connection needs, then test it.") if testing else ""
        return Advice(button=button, said=said)
    return Advice(
        button=button,
        row=advised.row,
        said=words.advice(advised),
        strength=words.strength(advised.strength),
        facts=tuple(words.fact(one) for one in advised.facts),
        would_change=tuple(words.would_change(one) for one in advised.would_change),
        short=button.label if button is not None else words.advice_in_short(advised.row),
        urgency=words.urgency(known.urgency),
    )


def _may(user: Any, *permissions: str) -> bool:
    return user is None or all(user.has_perm(one) for one in permissions)
