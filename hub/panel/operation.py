"""The page of one operation: what was meant, where it stands, what happened, what may be done."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from hub import review
from hub.contract import BadPayload
from hub.models import Attempt, Candidate, Decision, Evidence, Operation, ReviewCase
from hub.models.review import Subject
from hub.panel import connection as connection_pages
from hub.panel import words
from hub.states import MOVING, Outcome, Purpose, State

SEE_VALUES = "hub.decide_case"
"""Who settles cases must compare values; nobody else sees payloads and what was read at remotes."""
LINES = 200
"""Lines of each kind a timeline shows, the newest."""


# --- plain data of the page -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the timeline."""

    at: datetime
    order: tuple[int, int]
    kind: str
    title: str
    text: str
    details: tuple[tuple[str, str], ...] = ()
    block: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One field of a candidate beside ours."""

    field: str
    ours: str
    theirs: str
    differs: bool


@dataclass(frozen=True, slots=True)
class Compared:
    """A candidate and its fields, those that differ first."""

    row: Candidate
    cells: tuple[Cell, ...]
    different: int
    equal: int


@dataclass(frozen=True, slots=True)
class Button:
    """One choice, and whether this person may press it."""

    action: str
    label: str
    effect: str
    why_not: str
    recommended: bool
    needs_remote_ref: bool


def shown(value: Any) -> str:
    """A JSON value as a person reads it; what is not there is a dash."""
    if value is None or value == "":
        return "–"
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def payload_fields(operation: Operation) -> list[tuple[str, str]]:
    """What was meant, field by field."""
    return [(name, shown(value)) for name, value in _object(operation.payload).items()]


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def compare(operation: Operation, candidate: Candidate) -> Compared:
    """A candidate beside what was meant. What counts as different was judged when it was read."""
    ours, theirs = _object(operation.payload), _object(candidate.fields)
    try:
        differences = {one["field"]: one for one in json.loads(candidate.differences or "[]")}
    except (ValueError, KeyError, TypeError):
        differences = {}
    cells = []
    for name in [*differences, *(n for n in ours if n not in differences)]:
        said = differences.get(name)
        cells.append(
            Cell(
                name,
                shown(said.get("ours") if said else ours.get(name)),
                shown(said.get("theirs") if said else theirs.get(name)),
                said is not None,
            )
        )
    return Compared(candidate, tuple(cells), len(differences), len(cells) - len(differences))


def timeline(operation: Operation, *, values: bool) -> tuple[list[Line], bool]:
    """Attempts, evidence and decisions in one order of time; and whether lines were left out."""
    attempts = list(operation.attempt_set.order_by("-token")[: LINES + 1])
    evidence = list(operation.evidence_set.order_by("-at", "-id")[: LINES + 1])
    decisions = list(operation.decisions.order_by("-at", "-id")[: LINES + 1])
    cut = max(len(attempts), len(evidence), len(decisions)) > LINES
    lines = [
        Line(
            operation.created_at,
            (0, 0),
            "made",
            _("Recorded"),
            _("It was written together with the change that caused it."),
        ),
        *(_attempt_line(one, values=values) for one in attempts[:LINES]),
        *(_evidence_line(one, values=values) for one in evidence[:LINES]),
        *(_decision_line(one) for one in decisions[:LINES]),
    ]
    return sorted(lines, key=lambda line: (line.at, line.order)), cut


def _attempt_line(attempt: Attempt, *, values: bool) -> Line:
    purpose = words.PURPOSES.get(attempt.purpose, attempt.purpose)
    ended = words.OUTCOMES.get(attempt.outcome, "") if attempt.settled_at else _("under way")
    details: list[tuple[str | Promise, Any]] = [
        (_("how far it got"), _reached(attempt)),
        (_("marked"), _moment(attempt.marked_at)),
        (_("settled"), _moment(attempt.settled_at)),
        (_("HTTP status"), attempt.status),
        (_("milliseconds"), attempt.duration_ms),
        (_("their request id"), attempt.remote_request_id),
        (_("worker"), attempt.worker),
        (_("token"), attempt.token),
    ]
    if attempt.stale:
        details.insert(0, (_("note"), _("came too late to count; it settled nothing")))
    return Line(
        attempt.claimed_at,
        (1, attempt.token),
        "attempt",
        f"{purpose}: {ended}",
        attempt.verdict,
        _filled(details),
        _pretty(attempt.seen) if values else "",
    )


def _reached(attempt: Attempt) -> str:
    if attempt.purpose != Purpose.SEND:
        return _("asked only; nothing was written there")
    if attempt.marked_at is None:
        return _("prepared; nothing was sent")
    if attempt.left == "no" or attempt.outcome == Outcome.NOTHING_LEFT:
        return _("about to be sent; no byte left")
    if attempt.outcome in (Outcome.UNKNOWN, ""):
        return _("sent, or partly sent; no answer was recorded")
    return _("sent and answered")


def _evidence_line(fact: Evidence, *, values: bool) -> Line:
    return Line(
        fact.at,
        (2, fact.pk),
        "evidence",
        str(words.EVIDENCE.get(fact.kind, fact.kind)),
        fact.text,
        _filled([(_("by"), fact.actor)]),
        fact.data if values else "",
    )


def _decision_line(decision: Decision) -> Line:
    title = _("%(who)s decided: %(what)s") % {
        "who": decision.by_name,
        "what": words.decision(decision.action),
    }
    if not decision.done:
        title += " " + _("(not carried out)")
    return Line(
        decision.at,
        (3, decision.pk),
        "decision",
        title,
        decision.result,
        _filled([(_("reason"), decision.reason), (_("remote id chosen"), decision.remote_ref)]),
    )


def _filled(details: Iterable[tuple[Any, Any]]) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(value)) for name, value in details if value not in (None, ""))


def _moment(moment: datetime | None) -> str:
    return connection_pages.in_words(moment) if moment is not None else ""


def _pretty(text: str) -> str:
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, indent=2) if text else ""
    except ValueError:
        return text


def waits_for(operation: Operation) -> list[str]:
    """Why it does not move just now: computed, not stored (protocol §4)."""
    state = State(operation.state)
    if state not in MOVING:
        return []
    waits = []
    gate = connection_pages.gate_words(operation.connection)
    if gate != _("open"):
        waits.append(_("Its connection: %(gate)s.") % {"gate": gate})
    if operation.parked:
        waits.append(_("It is behind another version of the same object."))
    parents = [
        str(pk)
        for pk in operation.after.exclude(state=State.CONFIRMED.value).values_list("pk", flat=True)
    ]
    if parents:
        waits.append(_("It waits for: %(operations)s.") % {"operations": ", ".join(parents)})
    if operation.lease_until is not None:
        waits.append(
            _("A worker has it until %(time)s.") % {"time": _moment(operation.lease_until)}
        )
    else:
        waits.append(_("Next run: %(time)s.") % {"time": _moment(operation.next_at)})
    return waits


def buttons(operation: Operation, user: Any) -> list[Button]:
    """Every choice; one that may not be pressed stays in place and says why."""
    found = []
    for choice in review.choices(operation):
        why_not = choice.why_not
        if not why_not and not (user.has_perm(review.DECIDE) and user.has_perm(choice.permission)):
            why_not = _("You lack the permission for it.")
        found.append(
            Button(
                choice.action,
                words.decision(choice.action),
                choice.effect,
                why_not,
                choice.recommended and not why_not,
                choice.needs_remote_ref,
            )
        )
    return found


# --- views ----------------------------------------------------------------------------------------


@require_http_methods(["GET", "POST"])
def story(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the operation; a POST carries one decision, with the state and token the person saw."""
    if not request.user.has_perm("hub.view_operation"):
        raise PermissionDenied
    if request.method == "POST":
        return _decide(request, pk)
    return _page(request, pk)


def _decide(request: HttpRequest, pk: int) -> HttpResponse:
    action = request.POST.get("action", "")
    try:
        token = int(request.POST.get("seen_token", ""))
    except ValueError:
        token = -1
    chosen = request.POST.get("remote_ref", "").strip()
    typed = request.POST.get("other_ref", "").strip()
    given = {
        "reason": request.POST.get("reason", ""),
        "remote_ref": typed or chosen,
    }
    if action == review.LINK and typed and chosen and typed != chosen:
        both = _("You chose %(chosen)s and entered %(typed)s: leave only the one that is meant.")
        trouble = both % {"chosen": chosen, "typed": typed}
        return _page(request, pk, given, trouble, wrong="remote id", status=400)
    try:
        decided = review.act(
            pk,
            action,
            user=request.user,
            reason=given["reason"],
            seen_state=request.POST.get("seen_state", ""),
            seen_token=token,
            remote_ref=given["remote_ref"] if action == review.LINK else "",
        )
    except PermissionError as error:
        raise PermissionDenied(str(error)) from None
    except BadPayload as error:
        field, _colon, _text = str(error).partition(":")
        trouble = {
            "reason": _("Say in a few words why, for those who read it later."),
            "remote id": _("Choose a candidate, or enter the id of the object there."),
        }.get(field, str(error))
        return _page(request, pk, given, trouble, wrong=field, status=400)
    if not decided.done:
        return _page(request, pk, given, decided.text, wrong="refused", status=409)
    messages.success(request, decided.text)
    return HttpResponseRedirect(reverse("admin:operation_story", args=[decided.operation_id]))


def _page(
    request: HttpRequest,
    pk: int,
    given: dict[str, str] | None = None,
    trouble: str = "",
    *,
    wrong: str = "",
    status: int = 200,
) -> HttpResponse:
    operation = (
        Operation.objects.select_related("tenant", "connection__tenant", "connection__gate")
        .filter(pk=pk)
        .first()
    )
    if operation is None:
        raise Http404(_("There is no operation %(number)s.") % {"number": pk})
    values = request.user.has_perm(SEE_VALUES)
    cases = list(ReviewCase.objects.filter(operation=operation).order_by("-pk")[:20])
    still_open = [one for one in cases if one.closed_at is None]
    case = next((one for one in still_open if one.subject == Subject.OPERATION), None)
    candidates = list(case.candidates.order_by("-matches", "pk")[:20]) if case else []
    lines, cut = timeline(operation, values=values)
    context = {
        **admin.site.each_context(request),
        "title": _("Operation %(number)s") % {"number": operation.pk},
        "opts": Operation._meta,
        "operation": operation,
        "means": words.state_means(operation.state, doubt=operation.maybe_executed),
        "reason_words": words.reason(operation.reason_code) if operation.reason_code else "",
        "waits": waits_for(operation),
        "values": values,
        "payload": payload_fields(operation) if values else [],
        "case": case,
        "case_reason": words.reason(case.reason_code) if case else "",
        "advice": words.decision(case.advice) if case and case.advice else "",
        "assumption": words.ASSUMPTIONS.get(case.assumption) if case else None,
        "candidates": [compare(operation, one) for one in candidates] if values else [],
        "hidden_candidates": 0 if values else len(candidates),
        "questions": [one for one in still_open if one is not case],
        "older_cases": [one for one in cases if one.closed_at is not None],
        "lines": lines,
        "cut": cut,
        "most": LINES,
        "buttons": buttons(operation, request.user),
        "newer": operation.superseded_by.order_by("-pk").values_list("pk", flat=True).first(),
        "given": given or {},
        "trouble": trouble,
        "wrong": wrong,
    }
    return TemplateResponse(request, "hub/panel/operation.html", context, status=status)
