"""The page of one operation: what was meant, where it stands, what happened, what may be done."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.log import log_response
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from hub import access, review
from hub.contract import BadPayload
from hub.models import Attempt, Candidate, Decision, Evidence, Operation, ReviewCase
from hub.models.review import Subject
from hub.panel import choices, drift, reveal, there, words
from hub.panel import connection as connection_pages
from hub.panel.errors import Lacks, NotThere
from hub.panel.values import masked, shown, shown_json
from hub.sql import database_now
from hub.states import MOVING, Outcome, Purpose, State

LONGEST_REASON = 2000
"""Characters of a reason; more would be cut without a word."""
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
    text: SafeString | str
    details: tuple[tuple[str, str], ...] = ()
    block: SafeString | str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One field of a candidate beside ours."""

    field: str
    ours: SafeString
    theirs: SafeString
    differs: bool


@dataclass(frozen=True, slots=True)
class Compared:
    """A candidate and its fields, those that differ first."""

    row: Candidate
    cells: tuple[Cell, ...]
    different: int
    equal: int
    read_ago: str
    no_link: str
    """Why a link to it would be refused; empty when it would not be."""


def payload_fields(operation: Operation, *, values: bool) -> list[tuple[str, SafeString]]:
    """What was meant, field by field; masked unless `values`."""
    return [
        (name, _cell(value, values=values)) for name, value in _object(operation.payload).items()
    ]


def _cell(value: Any, *, values: bool) -> SafeString:
    return shown(value if values else masked(value))


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def compare(
    operation: Operation, candidate: Candidate, known: choices.Ties, now: datetime, *, values: bool
) -> Compared:
    """A candidate beside what was meant. What counts as different was judged when it was read, by
    the full values: the sign stays true beside masked ones.
    """
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
                _cell(said.get("ours") if said else ours.get(name), values=values),
                _cell(said.get("theirs") if said else theirs.get(name), values=values),
                said is not None,
            )
        )
    return Compared(
        candidate,
        tuple(cells),
        len(differences),
        len(cells) - len(differences),
        words.ago(candidate.seen_at, now),
        known.why_not(candidate.remote_ref),
    )


def timeline(operation: Operation, *, values: bool, technical: bool) -> tuple[list[Line], bool]:
    """Attempts, evidence and decisions in one order of time; and whether lines were left out.

    What was seen is told raw with `values`, masked with `technical` alone, else not at all.
    """
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
        *(_attempt_line(one, values=values, technical=technical) for one in attempts[:LINES]),
        *(_evidence_line(one, values=values, technical=technical) for one in evidence[:LINES]),
        *(_decision_line(one) for one in decisions[:LINES]),
    ]
    return sorted(lines, key=lambda line: (line.at, line.order)), cut


def _attempt_line(attempt: Attempt, *, values: bool, technical: bool) -> Line:
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
        words.tried(attempt.purpose, attempt.outcome if attempt.settled_at else ""),
        words.in_english(attempt.verdict),
        _filled(details),
        shown_json(attempt.seen, values=values) if attempt.seen and (values or technical) else "",
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


def _evidence_line(fact: Evidence, *, values: bool, technical: bool) -> Line:
    return Line(
        fact.at,
        (2, fact.pk),
        "evidence",
        str(words.EVIDENCE.get(fact.kind, fact.kind)),
        words.in_english(fact.text),
        _filled([(_("by"), fact.actor)]),
        shown_json(fact.data, values=values) if fact.data and (values or technical) else "",
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
        (decision.done and words.decided(decision.action, decision.remote_ref)) or decision.result,
        _filled([(_("reason"), decision.reason), (_("remote id chosen"), decision.remote_ref)]),
    )


def _filled(details: Iterable[tuple[Any, Any]]) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(value)) for name, value in details if value not in (None, ""))


def _moment(moment: datetime | None) -> str:
    return connection_pages.in_words(moment) if moment is not None else ""


def meaning(operation: Operation, stands: connection_pages.Standing) -> str:
    """What its state means for the reader just now: nothing repeats by itself at a closed gate."""
    state = State(operation.state)
    if stands.opens and state in MOVING and state not in (State.RUNNING, State.SENT):
        return f"{words.AT_THE_GATE} {stands.opens}"
    return words.state_means(state, doubt=operation.maybe_executed)


def waits_for(
    operation: Operation, stands: connection_pages.Standing, user: Any
) -> list[SafeString | str]:
    """Why it does not move just now, as far as the user may see it: computed, not stored (protocol
    §4).
    """
    state = State(operation.state)
    if state not in MOVING:
        return []
    waits: list[SafeString | str] = []
    if not stands.is_open:
        waits.append(format_html(_("Its connection: {gate}"), gate=stands.words))
    if operation.parked:
        waits.append(_("It is behind another version of the same object."))
    unmet = operation.after.exclude(state=State.CONFIRMED.value)
    parents = [str(pk) for pk in access.visible(user, unmet).values_list("pk", flat=True)]
    if not parents and unmet.exists():
        waits.append(_("It waits for another operation."))
    if parents:
        waits.append(_("It waits for: %(operations)s.") % {"operations": ", ".join(parents)})
    if operation.lease_until is not None:
        waits.append(_("A worker has it until %(time)s") % {"time": _moment(operation.lease_until)})
    elif not stands.opens:
        waits.append(_("Next run: %(time)s") % {"time": _moment(operation.next_at)})
    return waits


# --- views ----------------------------------------------------------------------------------------


@require_http_methods(["GET", "POST"])
def story(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the operation; a POST carries one decision, with the state and token the person saw."""
    if not request.user.has_perm("hub.view_operation"):
        raise Lacks("hub.view_operation")
    if request.method == "POST" and not reveal.asked(request):
        return _decide(request, pk)
    return _page(request, pk)


def _decide(request: HttpRequest, pk: int) -> HttpResponse:
    if not access.visible(request.user, Operation.objects.filter(pk=pk)).exists():
        raise _not_there(pk)
    action = request.POST.get("action", "")
    try:
        token = int(request.POST.get("seen_token", ""))
    except ValueError:
        token = -1
    chosen = request.POST.get("remote_ref", "").strip()
    typed = request.POST.get("other_ref", "").strip()
    # A browser counts the end of a line as one character and sends two.
    reason = request.POST.get("reason", "").replace("\r\n", "\n")
    given = {"reason": reason, "remote_ref": chosen, "other_ref": typed}
    if action in review.NAMES_ONE and typed and chosen and typed != chosen:
        both = _("You chose %(chosen)s and entered %(typed)s: leave only the one that is meant.")
        trouble = both % {"chosen": chosen, "typed": typed}
        return _page(request, pk, given, trouble, wrong="remote id", status=400)
    if len(given["reason"]) > LONGEST_REASON:
        trouble = _("At most %(most)d characters, not %(count)d: shorten it.") % {
            "most": LONGEST_REASON,
            "count": len(given["reason"]),
        }
        return _page(request, pk, given, trouble, wrong="reason", status=400)
    try:
        decided = review.act(
            pk,
            action,
            user=request.user,
            reason=given["reason"],
            seen_state=request.POST.get("seen_state", ""),
            seen_token=token,
            remote_ref=(typed or chosen) if action in review.NAMES_ONE else "",
            seen_decision=_number(request.POST.get("seen_decision")),
            seen_digest=request.POST.get("seen_digest", ""),
            form_token=request.POST.get("form_token", "")[:64],
            behind=request.POST.get("behind", review.GO_ON),
        )
    except review.Lacking as error:
        raise Lacks(error.permission, recorded=True) from None
    except BadPayload as error:
        field, _colon, _text = str(error).partition(":")
        trouble = {
            "reason": _("Say in a few words why, for those who read it later."),
            "remote id": _("Choose a candidate, or enter the id of the object there."),
        }.get(field, str(error))
        return _page(request, pk, given, trouble, wrong=field, status=400)
    if not decided.done:
        return _page(request, pk, given, decided.text, wrong="refused", status=409)
    if decided.repeated:
        messages.info(request, _("This form came before; it was done once."))
    messages.success(request, decided.text)
    _say_when_it_waits(request, action, decided.operation_id)
    return HttpResponseRedirect(reverse("admin:operation_story", args=[decided.operation_id]))


def _number(text: str | None) -> int | None:
    """A number that a form of ours carries; None where it carries none."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 19 else None


def _say_when_it_waits(request: HttpRequest, action: str, pk: int) -> None:
    """Decided, and yet nothing goes out while only a person can open the connection."""
    if action not in (review.LOOK_AGAIN, review.RETRY, review.SEND_AGAIN):
        return
    row = Operation.objects.select_related("connection__gate").defer("payload").get(pk=pk)
    stands = connection_pages.standing(row.connection)
    if stands.opens:
        messages.warning(request, f"{words.AT_THE_GATE} {stands.opens}")


def _not_there(pk: int) -> NotThere:
    return NotThere(_("There is no operation %(number)s.") % {"number": pk})


def _page(
    request: HttpRequest,
    pk: int,
    given: dict[str, str] | None = None,
    trouble: str = "",
    *,
    wrong: str = "",
    status: int = 200,
) -> HttpResponse:
    rows = Operation.objects.select_related("tenant", "connection__tenant", "connection__gate")
    operation: Operation | None = access.visible(request.user, rows.filter(pk=pk)).first()
    if operation is None:
        raise _not_there(pk)
    now = database_now()
    cases = list(ReviewCase.objects.filter(operation=operation).order_by("-pk")[:20])
    still_open = [one for one in cases if one.closed_at is None]
    case = next((one for one in still_open if one.subject == Subject.OPERATION), None)
    candidates = list(case.candidates.order_by("-matches", "pk")[:20]) if case else []
    values = reveal.shown(request, operation, _revealed(operation, candidates))
    technical = access.may(request.user, access.SEE_TECHNICAL)
    lines, cut = timeline(operation, values=values, technical=technical)
    stands = connection_pages.standing(operation.connection)
    known = choices.ties(operation, candidates)
    if case is not None:
        case.operation, case.connection = operation, operation.connection
        settled = choices.of_case(case, request.user)
        found, advice = settled.buttons, settled.advice
    else:
        found, advice = choices.of_operation(operation, request.user, now=now), None
    context = {
        **admin.site.each_context(request),
        "title": _("Operation %(number)s") % {"number": operation.pk},
        "opts": Operation._meta,
        "operation": operation,
        "since": words.ago(operation.state_since, now),
        "means": meaning(operation, stands),
        "reason_words": words.reason(operation.reason_code) if operation.reason_code else "",
        "reason_text": words.in_english(operation.reason_text),
        "waits": waits_for(operation, stands, request.user),
        "tied_to": known.own,
        "values": values,
        "may_show_values": reveal.offered(request, operation),
        "payload": payload_fields(operation, values=values),
        "case": case,
        "case_reason": words.reason(case.reason_code) if case else "",
        "case_summary": words.in_english(case.summary) if case else "",
        "case_open_for": words.ago(case.opened_at, now) if case else "",
        "advice": advice,
        "may_decide": request.user.has_perm(review.DECIDE),
        "search": there.search(operation, _object(operation.payload), found, values=values),
        "assumption": words.ASSUMPTIONS.get(case.assumption) if case else None,
        "candidates": [compare(operation, one, known, now, values=values) for one in candidates],
        "questions": [_question(one) for one in still_open if one is not case],
        "came_again": drift.came_again(operation, values=values)
        if any(one.subject == Subject.DRIFT for one in still_open)
        else [],
        "older_cases": [one for one in cases if one.closed_at is not None],
        "lines": lines,
        "cut": cut,
        "most": LINES,
        "seen": review.seen(operation),
        "form_token": secrets.token_hex(16),
        "names_one": any(one.needs_remote_ref and not one.why_not for one in found),
        "behind": [
            (review.GO_ON, _("may go on")),
            (review.WAIT, _("wait one hour")),
            (review.DISCARD_TOO, _("are discarded, too")),
        ],
        "buttons": found,
        "can": [one for one in found if not one.why_not],
        "not_now": [one for one in found if one.why_not],
        "newer": operation.superseded_by.order_by("-pk").values_list("pk", flat=True).first(),
        "given": given or {},
        "trouble": trouble,
        # What is wrong is told beside its field, where that is on the page.
        "wrong": wrong
        if wrong != "remote id" or any(one.needs_remote_ref and not one.why_not for one in found)
        else "refused",
        "longest_reason": LONGEST_REASON,
    }
    response = TemplateResponse(request, "hub/panel/operation.html", context, status=status)
    if status != 200:
        # An answer that was meant, told on the page: nothing an operator's terminal has to show.
        log_response(
            "%s: %s", response.reason_phrase, request.path,
            response=response, request=request, level="debug",
        )  # fmt: skip
    return response


def _revealed(operation: Operation, candidates: Iterable[Candidate]) -> list[str]:
    """The names of the fields whose values the page can show."""
    names = dict.fromkeys(_object(operation.payload))
    for one in candidates:
        names |= dict.fromkeys(_object(one.fields))
    return list(names)


@dataclass(frozen=True, slots=True)
class Question:
    """Another open question about this operation."""

    pk: int
    subject: str
    reason: str
    summary: SafeString


def _question(case: ReviewCase) -> Question:
    return Question(
        case.pk,
        case.get_subject_display(),
        words.reason(case.reason_code),
        words.in_english(case.summary),
    )
