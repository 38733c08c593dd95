"""Decisions of a person about one operation: `choices()` says what may be done and why not,
`plan()` what it would do, `act()` does it.

`act` is the one way in for page, bulk and API. Every decision takes a reason and what the person
saw, and is recorded, refused ones too; a stale page changes nothing, and one form is one decision
however often it is sent (protocol §16).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from hub import access, bell, cases, keys, moves, outbox, remote
from hub import effects as told
from hub.contract import (
    BadPayload,
    CallFailed,
    CallRefused,
    Candidate,
    Done,
    Kind,
    Looked,
    SafetyClass,
    Write,
)
from hub.credentials import CannotOpen
from hub.effects import Call, Change, Effects
from hub.http import Wire
from hub.models import Candidate as CandidateRow
from hub.models import Decision, Evidence, Installation, Note, Operation, ReviewCase
from hub.models import Mapping as MappingRow
from hub.models.review import Subject as CaseSubject
from hub.policy import Verdict
from hub.redaction import Scrubber, clean
from hub.registry import UnknownAction, UnknownIntegration
from hub.remote import Remote
from hub.sql import database_now
from hub.states import RESTING, Actor, Outcome, State
from hub.sweep import facts_of, subject_of
from hub.work import fit

LOOK_AGAIN, RETRY, SEND_AGAIN, LINK, CONFIRM, DISCARD, TAKE_OVER = (
    "look_again",
    "retry",
    "send_again",
    "link",
    "confirm",
    "discard",
    "take_over",
)
NOT_SAME, MAY_BE, TAKE, NOTE = "not_same", "may_be", "take", "note"
MOVES = (LOOK_AGAIN, RETRY, SEND_AGAIN, LINK, CONFIRM, DISCARD, TAKE_OVER)
"""Decisions that move the operation; the others change only what people see of its case."""
ACTIONS = (*MOVES, NOT_SAME, MAY_BE, TAKE, NOTE)
HARMLESS = (TAKE, NOTE)
"""What another person may have done meanwhile without making a page stale."""
NAMES_ONE = (LINK, CONFIRM, NOT_SAME, MAY_BE)
"""Decisions about one object there."""
SENDS = (RETRY, SEND_AGAIN)
BY_HAND = 30
"""Sends by hand of one person on one connection in a minute; more is work for a bulk decision."""
GO_ON, WAIT, DISCARD_TOO = "go_on", "wait", "discard_too"
BEHIND = (GO_ON, WAIT, DISCARD_TOO)
"""What becomes of those that wait behind a discarded operation."""
WAITING = timedelta(hours=1)
"""How long those behind it wait when a person wants to look at them first."""
WEIGHTY = ("late_result", "follow_up_failed", "marker_unknown", "drift")
"""Kinds of evidence that can change an advice; what else is added to a timeline cannot."""
DECIDE = access.DECIDE


@dataclass(frozen=True, slots=True)
class Choice:
    """One button: whether it may be pressed, why not, and what exactly it would do."""

    action: str
    enabled: bool
    why_not: str
    effect: str
    needs_remote_ref: bool = False
    permission: str = DECIDE


@dataclass(frozen=True, slots=True)
class Decided:
    """What came of a decision. `operation_id` is the new generation's where one was made."""

    done: bool
    text: str
    operation_id: int
    repeated: bool = field(default=False, compare=False)
    """The same form came before; nothing was done for this one."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a page shows of an operation, to come back with the form: a decision is carried out only
    on what was seen.
    """

    state: str
    token: int
    decision: int
    digest: str


@dataclass(frozen=True, slots=True)
class _Given:
    """What a decision was given besides the operation."""

    who: str
    user: Any = None
    text: str = ""
    remote_ref: str = ""
    behind: str = GO_ON
    assignee: Any = None


@dataclass(frozen=True, slots=True)
class _Plan:
    """What `act` carries out, and the effects that are told of it: made together, so that they
    cannot differ.
    """

    effects: Effects
    text: str
    moves: tuple[moves.Settlement, ...] = ()
    sooner: bool = False
    anew: bool = False
    later: tuple[int, ...] = ()
    candidate: int | None = None
    assign: Any = None
    note: str = ""


class Lacking(PermissionError):
    """The user lacks a permission; `permission` names it."""

    def __init__(self, permission: str, text: str) -> None:
        super().__init__(text)
        self.permission = permission


class _Refused(Exception):
    """The decision cannot be carried out; the text says why and what to do."""


# --- what may be done
# ------------------------------------------------------------------------------


def choices(
    operation: Operation,
    now: datetime | None = None,
    *,
    stale: bool | None = None,
    verbs: Sequence[str] = ACTIONS,
) -> list[Choice]:
    """Every button of the operation's page, in the order they are shown.

    A list of many asks for `MOVES` alone: the others take a look at each case's candidates.

    `stale` says whether a newer version has been sent, where the caller knows it already; a list
    of many has asked that for all of them at once.
    """
    now = now or database_now()
    action = _declared(operation)
    found = []
    for name in verbs:
        why, effect = _ASKED[name](operation, action, now, stale)
        found.append(
            Choice(
                name,
                not why,
                why,
                effect,
                needs_remote_ref=name in NAMES_ONE,
                permission=access.needed(name, doubt=operation.maybe_executed),
            )
        )
    return found


def _declared(operation: Operation) -> Write | None:
    try:
        return remote.declared(operation.connection, operation.action)
    except (UnknownIntegration, UnknownAction):
        return None


def _not_here(operation: Operation) -> str:
    if (
        operation.state in (State.RUNNING.value, State.SENT.value)
        and operation.lease_until is not None
    ):
        return _("It is being sent; possible again at %(time)s at the latest.") % {
            "time": f"{operation.lease_until:%Y-%m-%d %H:%M:%S}"
        }
    return _("Its state is: %(state)s.") % {"state": operation.get_state_display()}


_Asked = Callable[[Operation, Write | None, datetime, bool | None], tuple[str, str]]


def _ask_look(
    operation: Operation, action: Write | None, now: datetime, stale: bool | None
) -> tuple[str, str]:
    effect = _("The remote is asked again whether it happened. Nothing is sent.")
    if operation.state not in (State.REVIEW.value, State.UNCERTAIN.value):
        return _not_here(operation), effect
    if action is None or not action.can_look:
        return _("This action offers nothing to look it up by."), effect
    if operation.state == State.UNCERTAIN.value and operation.lease_until is not None:
        return _("Somebody is looking right now."), effect
    return "", effect


def _ask_retry(
    operation: Operation, action: Write | None, now: datetime, stale: bool | None
) -> tuple[str, str]:
    effect = _("The same request is sent again, with the same key.")
    if action is None:
        return _("The code of this action is not installed."), effect
    if _is_other_data(operation):
        return _("These are no longer the data it was recorded with. Send them as new."), effect
    if operation.state == State.FAILED.value:
        if _is_stale(operation, action, stale):
            return _("A newer version has been sent; this one is no longer wanted."), effect
        return "", _("The same request is sent again, because its cause has been corrected.")
    if operation.state != State.REVIEW.value:
        return _not_here(operation), effect
    if _is_stale(operation, action, stale):
        return _("A newer version has been sent; this one is no longer wanted."), effect
    if operation.maybe_executed and not _harmless(operation, action, now):
        if not action.can_look:
            return (
                _(
                    "It may have happened already, and the hub cannot look. Look over there "
                    "yourself, then link it, send it again or discard it."
                ),
                effect,
            )
        return (
            _(
                "It may have happened already, and a repeat could make a second one. "
                "Look again first."
            ),
            effect,
        )
    return "", effect


def _ask_send_again(
    operation: Operation, action: Write | None, now: datetime, stale: bool | None
) -> tuple[str, str]:
    effect = _(
        "This operation is closed with its doubt on record, and a new one of the same content "
        "is sent. If the first one did happen, there will be two."
    )
    if operation.state != State.REVIEW.value:
        return _not_here(operation), effect
    if action is None:
        return _("The code of this action is not installed."), effect
    if not operation.maybe_executed:
        return _("Nothing is in doubt: an ordinary retry is enough."), effect
    if _harmless(operation, action, now):
        return _("Repeating it is harmless: an ordinary retry is enough."), effect
    if _is_stale(operation, action, stale):
        return _("A newer version has been sent; this one is no longer wanted."), effect
    return "", effect


def _ask_link(
    operation: Operation, action: Write | None, now: datetime, stale: bool | None
) -> tuple[str, str]:
    effect = _(
        "The object you name is read; the operation is then confirmed with it. Nothing is sent."
    )
    if operation.state != State.REVIEW.value:
        return _not_here(operation), effect
    if action is None:
        return _("The code of this action is not installed."), effect
    if action.kind is Kind.DELETE:
        return _("A deletion leaves nothing to link."), effect
    return "", effect


def _ask_confirm(
    operation: Operation, action: Write | None, now: datetime, stale: bool | None
) -> tuple[str, str]:
    effect = _(
        "It counts as done on your word. What can be read there is read first; nothing is sent."
    )
    if operation.state == State.UNCERTAIN.value:
        return _("The hub is still checking. Take over to decide yourself."), effect
    if operation.state != State.REVIEW.value:
        return _not_here(operation), effect
    if action is None:
        return _("The code of this action is not installed."), effect
    return "", effect


def _candidates(operation: Operation) -> list[CandidateRow]:
    return list(
        CandidateRow.objects.filter(
            case__subject=CaseSubject.OPERATION,
            case__subject_id=operation.pk,
            case__closed_at__isnull=True,
        )
    )


def is_proven(operation: Operation, candidate: CandidateRow) -> bool:
    """Whether an object carries our own reference: it is ours, whatever anybody says."""
    return bool(operation.reference) and candidate.reference == operation.reference


def _ask_not_same(
    operation: Operation, action: Write | None, now: datetime, stale: bool | None
) -> tuple[str, str]:
    effect = _("The object is hidden from the choice. That proves nothing, and can be undone.")
    if operation.state != State.REVIEW.value:
        return _not_here(operation), effect
    found = [one for one in _candidates(operation) if one.refused_at is None]
    if not found:
        return _("No object there has been found that could be it."), effect
    if all(is_proven(operation, one) for one in found):
        return _("It carries our reference: it is ours."), effect
    return "", effect


def _ask_may_be(
    operation: Operation, action: Write | None, now: datetime, stale: bool | None
) -> tuple[str, str]:
    effect = _("The object is shown among the choices again.")
    if operation.state != State.REVIEW.value:
        return _not_here(operation), effect
    if not any(one.refused_at is not None for one in _candidates(operation)):
        return _("No object has been hidden."), effect
    return "", effect


def _ask_take(
    operation: Operation, action: Write | None, now: datetime, stale: bool | None
) -> tuple[str, str]:
    effect = _("The case is assigned to you. That changes nothing of the exchange.")
    return ("" if _open_case(operation) else _("It has no open case.")), effect


def _ask_note(
    operation: Operation, action: Write | None, now: datetime, stale: bool | None
) -> tuple[str, str]:
    effect = _("What you write is kept with the case. That changes nothing of the exchange.")
    return ("" if _open_case(operation) else _("It has no open case.")), effect


def _open_case(operation: Operation) -> ReviewCase | None:
    return cases.open_one(CaseSubject.OPERATION, operation.pk)


def _is_other_data(operation: Operation) -> bool:
    """Whether the payload is not the one that was recorded: its key must never go with it.

    A list loads no payloads, and asks nothing for this; what is carried out has loaded it.
    """
    if "payload" in operation.get_deferred_fields():
        return False
    return keys.fingerprint(operation.payload) != operation.fingerprint


def _ask_discard(
    operation: Operation, action: Write | None, now: datetime, stale: bool | None
) -> tuple[str, str]:
    effect = (
        _(
            "The operation is closed without sending anything. Its doubt stays on record: "
            "the next create of this object looks first, or goes to a person where it cannot."
        )
        if operation.maybe_executed
        else _("The operation is closed without sending anything.")
    )
    if operation.state in (State.REVIEW.value, State.FAILED.value):
        return "", effect
    if operation.state in (State.PENDING.value, State.RETRY.value):
        if operation.maybe_executed:
            return _("It may have happened already: take it over first."), effect
        return "", effect
    return _not_here(operation), effect


def _ask_take_over(
    operation: Operation, action: Write | None, now: datetime, stale: bool | None
) -> tuple[str, str]:
    effect = _("The machine stops working on it, and the case is yours.")
    if operation.state in (State.UNCERTAIN.value, State.ACCEPTED.value):
        return "", effect
    if operation.state == State.RETRY.value:
        if operation.maybe_executed:
            return "", effect
        return _("Nothing is in doubt: discard it, or let it be retried."), effect
    return _not_here(operation), effect


_ASKED: dict[str, _Asked] = {
    LOOK_AGAIN: _ask_look,
    RETRY: _ask_retry,
    SEND_AGAIN: _ask_send_again,
    LINK: _ask_link,
    CONFIRM: _ask_confirm,
    DISCARD: _ask_discard,
    TAKE_OVER: _ask_take_over,
    NOT_SAME: _ask_not_same,
    MAY_BE: _ask_may_be,
    TAKE: _ask_take,
    NOTE: _ask_note,
}


def _harmless(operation: Operation, action: Write, now: datetime) -> bool:
    """Whether a repeat adds nothing: a key alive, a condition, or a full state by id (protocol
    §16).
    """
    facts = facts_of(operation, action, now)
    if operation.reason_code == "key_stores_error":
        return False  # the remote answers the old error for ever: only a new key helps
    if action.safety in (SafetyClass.A, SafetyClass.A_LOOK):
        return facts.key_alive() and operation.first_sent_at is not None
    if action.safety is SafetyClass.B_PRIME:
        return action.max_exec is not None
    return action.safety is SafetyClass.B


def _is_stale(operation: Operation, action: Write, known: bool | None) -> bool:
    if known is not None:
        return known
    return (
        action.is_full_state
        and Operation.objects.filter(
            connection_id=operation.connection_id,
            stream=operation.stream,
            first_sent_at__isnull=False,
            version__gt=operation.version,
        ).exists()
    )


# --- what was seen
# --------------------------------------------------------------------------------------


def facts(
    case: ReviewCase | None, candidates: Iterable[CandidateRow], evidence: Iterable[Evidence]
) -> dict[str, str]:
    """What an advice is drawn from, each fact by a short print of its own and with its name.

    Pure. Notes, times of reading and whatever else is added to a timeline are not among it.
    """
    found: dict[str, str] = {}

    def add(name: str, *parts: object) -> None:
        text = json.dumps([str(part) for part in parts], ensure_ascii=False)
        found[hashlib.sha256(text.encode()).hexdigest()[:16]] = name

    if case is not None:
        add(
            _("why it stopped"),
            "case", case.pk, case.reason_code, case.summary, case.assumption, case.advice,
        )  # fmt: skip
    for one in candidates:
        add(
            _("object %(ref)s") % {"ref": one.remote_ref},
            "candidate", one.remote_ref, one.matches, one.reference, one.version, one.fields,
            one.differences, one.place, one.refused_at is not None,
        )  # fmt: skip
    for fact in evidence:
        if fact.kind in WEIGHTY:
            add(fact.text, "evidence", fact.pk, fact.kind, fact.data)
    return found


def digest_of(known: Iterable[str]) -> str:
    """One print of many facts, followed by theirs, so that a refusal can name what is new."""
    each = sorted(known)
    return " ".join([hashlib.sha256(" ".join(each).encode()).hexdigest(), *each])


def _facts_of(operation: Operation) -> dict[str, str]:
    case = _open_case(operation)
    weighty = operation.evidence_set.filter(kind__in=WEIGHTY)
    return facts(case, case.candidates.all() if case else (), weighty)


def _last_decision(operation_id: int) -> Decision | None:
    return (
        Decision.objects.filter(operation_id=operation_id, done=True)
        .exclude(action__in=HARMLESS)
        .order_by("-id")
        .first()
    )


def seen(operation: Operation) -> Seen:
    """What a page that is drawn now has to send back with its form."""
    last = _last_decision(operation.pk)
    return Seen(
        operation.state,
        operation.lease_token,
        last.pk if last is not None else 0,
        digest_of(_facts_of(operation)),
    )


def bound(form_token: str, who: object, operation_id: int, action: str) -> str:
    """The name of one decision of one form: nobody else's and no other button's form has it."""
    if not form_token:
        return ""
    parts = json.dumps([form_token, str(who), operation_id, action])
    return hashlib.sha256(parts.encode()).hexdigest()


# --- doing it
# --------------------------------------------------------------------------------------


def act(
    operation_id: int,
    action: str,
    *,
    user: Any = None,
    by: str = "",
    reason: str,
    seen_state: str,
    seen_token: int,
    seen_decision: int | None = None,
    seen_digest: str = "",
    form_token: str = "",
    remote_ref: str = "",
    behind: str = GO_ON,
    assignee: Any = None,
    advice_shown: str = "",
    wire: Callable[[], Wire] = Wire,
    steps: Callable[[str], None] | None = None,
) -> Decided:
    """Carry out one decision, or refuse it; both are recorded.

    What was seen is state and token, and with them the last decision and the digest of `seen()`
    where the caller has them. The same `form_token` of the same person for the same decision does
    it once, and every repeat gets the first one's answer. Raises `Lacking` when the user may not
    (recorded, too), `BadPayload` for a missing reason, an unknown decision, or an operation that is
    not there for this user. A link or a confirmation
    reads the remote object first; that read is made before anything is written.
    """
    if action not in ACTIONS:
        raise BadPayload(f"decision: {clean(action, 40)!r} is not one of {', '.join(ACTIONS)}.")
    if behind not in BEHIND:
        raise BadPayload(f"behind: {clean(behind, 40)!r} is not one of {', '.join(BEHIND)}.")
    who = by or (user.get_username() if user is not None else "operator")
    known = access.visible(user, Operation.objects.filter(pk=operation_id))
    found = known.values_list("maybe_executed", flat=True).first()
    if found is None:
        raise BadPayload(f"There is no operation {operation_id}.")
    permission = access.needed(action, doubt=found)
    allowed = access.may(user, permission)
    reason = clean(reason.strip(), 2000)
    if allowed and not reason and action != TAKE:
        raise BadPayload("reason: say in a few words why, for those who read it later.")
    remote_ref = clean(remote_ref.strip(), 255)
    seen_state = clean(seen_state, 10)
    if abs(seen_token) >= 2**63:
        seen_token = -1  # no page of ours had it, and no column holds it
    given = _Given(who, user, reason, remote_ref, behind, assignee)
    record = Decision(
        operation_id=operation_id,
        action=action,
        by=user,
        by_name=who,
        reason=reason,
        seen_state=seen_state,
        seen_token=seen_token,
        remote_ref=remote_ref,
        form_token=bound(form_token, user.pk if user is not None else who, operation_id, action),
        seen_digest=clean(seen_digest.partition(" ")[0], 64),
        advice_shown=clean(advice_shown, 500),
    )
    if not allowed:
        lacking = _("Refused: the permission for it is missing.")
        _record(record, Decided(False, lacking, operation_id))
        raise Lacking(permission, f"{who} may not decide {action}.")
    before = _before(record)
    if before is not None:
        return before
    try:
        row = _as_seen(operation_id, record, seen_decision, seen_digest)
        candidate = _read_for(row, action, given, wire)
        with transaction.atomic():
            decided = _carry_out(
                operation_id, action, record, given, candidate, seen_decision, seen_digest
            )
    except _Refused as refusal:
        decided = Decided(False, str(refusal), operation_id)
    except (moves.MappingTaken, IntegrityError):
        before = _before(record)
        if before is not None:
            return before
        # Only a link ties anything; any other decision can only meet a stream that is held (C2).
        why = (
            _("That object is already tied to another record here. Nothing was changed.")
            if action in (LINK, CONFIRM)
            else _("It is behind another version of the same object.") + _(" Nothing was changed.")
        )
        decided = Decided(False, why, operation_id)
    if decided.repeated:
        return decided
    if not decided.done:
        return _record(record, decided)
    if steps is not None:
        steps("decide.committed")
    bell.ring()
    return decided


def _before(record: Decision) -> Decided | None:
    """What came of the same form before."""
    if not record.form_token:
        return None
    first = Decision.objects.filter(form_token=record.form_token).first()
    if first is None:
        return None
    made = told.read(first.effects).operation_id
    return Decided(first.done, first.result, made or first.operation_id or 0, repeated=True)


def _as_seen(
    operation_id: int,
    record: Decision,
    seen_decision: int | None,
    seen_digest: str,
    *,
    locked: bool = False,
) -> Operation:
    """The operation, if it still is what the person saw; `locked` keeps it so to the end of the
    transaction.
    """
    rows = Operation.objects.select_related("connection__tenant", "connection__gate")
    if locked:
        rows = rows.select_for_update(of=("self",), no_key=True)
    row = rows.filter(pk=operation_id).first()
    if row is None:
        raise BadPayload(f"There is no operation {operation_id}.")
    if record.action in HARMLESS:
        return row  # it says nothing of what was seen, and changes nothing of it
    seen_token = record.seen_token or 0
    last = _last_decision(operation_id)
    moved = row.state != record.seen_state or row.lease_token != seen_token
    decided = seen_decision is not None and last is not None and last.pk > seen_decision
    if moved or decided:
        first = (
            _(" %(who)s decided %(what)s before you.") % {"who": last.by_name, "what": last.action}
            if last is not None and (decided or (last.seen_token or 0) >= seen_token)
            else ""
        )
        raise _Refused(
            _("It has moved on since your page was drawn: it is %(state)s now.")
            % {"state": row.get_state_display()}
            + first
            + _(" Nothing was changed.")
        )
    if seen_digest:
        known = _facts_of(row)
        if digest_of(known).partition(" ")[0] != seen_digest.partition(" ")[0]:
            earlier = seen_digest.split(" ")[1:]
            new = [name for one, name in known.items() if one not in earlier]
            raise _Refused(
                _("New facts arrived since your page was drawn: %(facts)s. ")
                % {"facts": "; ".join(one.rstrip(".") for one in new) or _("some are gone")}
                + _("Nothing was done; read the advice again.")
            )
    return row


def _carry_out(
    operation_id: int,
    action: str,
    record: Decision,
    given: _Given,
    candidate: Candidate | None,
    seen_decision: int | None,
    seen_digest: str,
) -> Decided:
    if given.user is not None and action in SENDS:
        # One person's sends are counted one after the other, or ten at once would all be the last.
        get_user_model()._default_manager.select_for_update(no_key=True).get(pk=given.user.pk)
    # After the lock: of ten forms at once nine find what the first one did.
    Operation.objects.select_for_update(no_key=True).filter(pk=operation_id).values("pk").first()
    before = _before(record)
    if before is not None:
        return before
    row = _as_seen(operation_id, record, seen_decision, seen_digest, locked=True)
    now = database_now()
    if action in SENDS:
        _refuse_too_many(row, given, now)
    made = _plan(row, action, given, candidate, now)
    record.case = _open_case(row)
    target = _apply(row, made, given, now)
    decided = Decided(True, made.text, target)
    record.at = now
    record.done, record.result = True, decided.text
    record.effects = replace(made.effects, operation_id=target).as_json()
    record.save()
    return decided


def _refuse_too_many(row: Operation, given: _Given, now: datetime) -> None:
    """A hand can press faster than the remote can take; a bulk decision keeps the pace."""
    if given.user is None:
        return
    count = Decision.objects.filter(
        by=given.user,
        action__in=SENDS,
        done=True,
        at__gt=now - timedelta(minutes=1),
        operation__connection_id=row.connection_id,
    ).count()
    if count >= BY_HAND:
        raise _Refused(
            _("%(count)d sendings by hand in a minute: wait a moment. Nothing was done.")
            % {"count": count}
        )


def plan(
    operation_id: int,
    action: str,
    *,
    user: Any = None,
    by: str = "",
    reason: str = "",
    remote_ref: str = "",
    behind: str = GO_ON,
    assignee: Any = None,
) -> Effects:
    """What `act` would do now with the same arguments; nothing is asked there and nothing changes.

    Raises `BadPayload` where the decision cannot be made; its text says why.
    """
    rows = Operation.objects.select_related("connection__tenant", "connection__gate")
    row: Operation | None = access.visible(user, rows.filter(pk=operation_id)).first()
    if row is None or action not in ACTIONS or behind not in BEHIND:
        raise BadPayload(
            f"There is no operation {operation_id} to decide {clean(action, 40)!r} on."
        )
    who = by or (user.get_username() if user is not None else "operator")
    given = _Given(who, user, reason, clean(remote_ref.strip(), 255), behind, assignee)
    try:
        ref = _asked_for(row, action, given)
        candidate = Candidate(ref, matches=False) if ref else None
        return _plan(row, action, given, candidate, database_now()).effects
    except _Refused as refusal:
        raise BadPayload(str(refusal)) from None


def _plan(
    row: Operation, action: str, given: _Given, candidate: Candidate | None, now: datetime
) -> _Plan:
    """The planner of every decision; it reads rows and writes none."""
    declared = _declared(row)
    why, _effect = _ASKED[action](row, declared, now, None)
    if why:
        raise _Refused(why)
    if action in (NOT_SAME, MAY_BE):
        return _plan_candidate(row, action, given)
    if action == TAKE:
        return _plan_take(row, given)
    if action == NOTE:
        effects = Effects(action, changes=(Change("note", row.pk, "text", "", given.text),))
        return _Plan(effects, _("The note is kept."), note=given.text)
    if action == LOOK_AGAIN and row.state == State.UNCERTAIN.value:
        effects = Effects(
            action,
            calls=(Call("look", row.action, row.reference),),
            changes=(Change("operation", row.pk, "token", row.lease_token, row.lease_token + 1),),
        )
        return _Plan(effects, _("It is looked up at once."), sooner=True)
    return _plan_move(row, action, declared, candidate, given, now)


def _plan_candidate(row: Operation, action: str, given: _Given) -> _Plan:
    if not given.remote_ref:
        raise BadPayload("remote id: choose the object that is meant.")
    hide = action == NOT_SAME
    one = next((c for c in _candidates(row) if c.remote_ref == given.remote_ref), None)
    if one is None or (one.refused_at is not None) == hide:
        raise _Refused(
            _("Object %(ref)s is not among the choices. Nothing was changed.")
            % {"ref": given.remote_ref}
        )
    if hide and is_proven(row, one):
        raise _Refused(_("It carries our reference: it is ours."))
    yes, no = "no", "yes"
    effects = Effects(
        action,
        changes=(Change("candidate", one.pk, "hidden", *((yes, no) if hide else (no, yes))),),
        undo=MAY_BE if hide else NOT_SAME,
    )
    text = _("It is hidden; that proves nothing.") if hide else _("It is shown again.")
    return _Plan(effects, text, candidate=one.pk)


def _plan_take(row: Operation, given: _Given) -> _Plan:
    case = _open_case(row)
    to = given.assignee or given.user
    if case is None or to is None:
        raise _Refused(_("Only a person who is signed in can take a case."))
    effects = Effects(
        TAKE,
        changes=(Change("case", case.pk, "assigned", case.assigned_to_id or "", to.pk),),
        undo=TAKE,
    )
    return _Plan(
        effects, _("The case is assigned to %(who)s.") % {"who": to.get_username()}, assign=to
    )


def _plan_move(
    row: Operation,
    action: str,
    declared: Write | None,
    candidate: Candidate | None,
    given: _Given,
    now: datetime,
) -> _Plan:
    verdict, text = _verdict(row, action, declared, candidate, given.who, now)
    subject = subject_of(row)
    if action in (RETRY, LOOK_AGAIN):
        # A person starts it anew: what was used up before no longer counts.
        subject = replace(subject, attempts=0, repeats=0, lapses=0, looks=0)
    alive = None
    if verdict.state is State.RETRY and verdict.doubt and declared is not None:
        known = facts_of(row, declared, now)
        if declared.key_ttl is not None and declared.safety in (SafetyClass.A, SafetyClass.A_LOOK):
            alive = (
                declared.key_ttl * 0.9
                - (known.first_sent_ago or 0.0)
                - declared.max_send
                - (declared.max_exec or 0.0)
            )
    last = None
    if verdict.state is State.DISCARDED and verdict.doubt and row.last_byte_at is not None:
        # The copy that may be under way can still land on what the next operation writes (protocol
        # §12).
        last = (row.last_byte_at - now).total_seconds()
    move = moves.Settlement(
        subject,
        verdict,
        Actor.PERSON,
        last_byte=last,
        kind=declared.kind if declared is not None else Kind.COMMAND,
        alive=alive,
        token_step=1,
        remote_ref=candidate.remote_ref if candidate is not None else "",
        who=given.who,
    )
    waiting = _behind(row) if move.after in (State.DISCARDED, State.CONFIRMED) else []
    all_moves, later = [move], []
    if action == DISCARD and given.behind == DISCARD_TOO:
        all_moves += [_discard_too(one, row, given.who) for one in waiting]
    elif action == DISCARD and given.behind == WAIT:
        later = [one.pk for one in waiting]
    effects = Effects(
        action,
        calls=_calls(row, action, declared, candidate),
        changes=(
            *(one for each in all_moves for one in _changes(each)),
            *_case_change(row, move),
            *_mapping_change(row, move),
            *((Change("operation", None, "state", "", State.PENDING.value),)
              if action == SEND_AGAIN else ()),
            *(Change("operation", pk, "waits", "", "1 h") for pk in later),
        ),
        released=tuple(one.pk for one in waiting) if len(all_moves) == 1 and not later else (),
        delay=verdict.delay,
        harm=_harm(row, action),
        undo=LOOK_AGAIN if action == TAKE_OVER and declared and declared.can_look else "",
    )  # fmt: skip
    return _Plan(
        effects, text, moves=tuple(all_moves), anew=action == SEND_AGAIN, later=tuple(later)
    )


def _behind(row: Operation) -> list[Operation]:
    """Those of the same object that have not begun and wait behind this one."""
    return list(
        Operation.objects.filter(
            connection_id=row.connection_id,
            stream=row.stream,
            state__in=[State.PENDING.value, State.RETRY.value],
            maybe_executed=False,
            version__gte=row.version,
        )
        .exclude(pk=row.pk)
        .order_by("version", "id")
    )


def _discard_too(one: Operation, row: Operation, who: str) -> moves.Settlement:
    verdict = Verdict(
        State.DISCARDED, "withdrawn", f"{who} discarded it together with operation {row.pk}."
    )
    return moves.Settlement(
        subject_of(one), verdict, Actor.PERSON, kind=Kind.COMMAND, token_step=1, who=who
    )


def _calls(
    row: Operation, action: str, declared: Write | None, candidate: Candidate | None
) -> tuple[Call, ...]:
    """The calls that follow, in order."""
    match action:
        case "look_again":
            return (Call("look", row.action, row.reference),)
        case "retry" | "send_again":
            return (Call("write", row.action, row.remote_ref or row.reference),)
        case "link" | "confirm" if candidate is not None:
            return (Call("read", row.action, candidate.remote_ref),)
        case _:
            return ()


def _changes(move: moves.Settlement) -> tuple[Change, ...]:
    subject, found = move.subject, []
    if subject.state is not move.after:
        found.append(
            Change("operation", subject.id, "state", subject.state.value, move.after.value)
        )
    doubt = move.verdict.doubt and move.after is not State.CONFIRMED
    if subject.doubt != doubt:
        found.append(Change("operation", subject.id, "doubt", _yes(subject.doubt), _yes(doubt)))
    found.append(
        Change("operation", subject.id, "token", subject.token, subject.token + move.token_step)
    )
    return tuple(found)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _case_change(row: Operation, move: moves.Settlement) -> tuple[Change, ...]:
    case = _open_case(row)
    rests = move.after in RESTING
    if case is not None and not rests and move.subject.state in RESTING:
        return (Change("case", case.pk, "open", "yes", "no"),)
    if case is None and rests:
        return (Change("case", None, "open", "", "yes"),)
    return ()


def _mapping_change(row: Operation, move: moves.Settlement) -> tuple[Change, ...]:
    if move.after is not State.CONFIRMED:
        return ()
    own = MappingRow.objects.filter(
        tenant_id=row.tenant_id,
        connection_id=row.connection_id,
        object_type=row.object_type,
        source_system=row.source_system,
        source_id=row.source_id,
        deleted_at__isnull=True,
    ).first()
    before = own.remote_ref if own is not None else ""
    if move.kind is Kind.DELETE:
        return (Change("mapping", own.pk, "object", before, ""),) if own is not None else ()
    ref = move.remote_ref or row.remote_ref
    if not ref or ref == before:
        return ()
    if move.kind not in (Kind.CREATE, Kind.UPDATE) and not row.yields_ref:
        return ()
    return (Change("mapping", own.pk if own is not None else None, "object", before, ref),)


def _harm(row: Operation, action: str) -> str:
    """What is wrong afterwards if the person is; a code."""
    match action:
        case "send_again":
            return "second_one"
        case "link":
            return "wrong_object"
        case "confirm":
            return "never_done"
        case "discard" if row.maybe_executed:
            return "still_unknown"
        case _:
            return ""


def _apply(row: Operation, made: _Plan, given: _Given, now: datetime) -> int:
    """Carry out a plan; the operation to be shown next. Raises `_Refused` when anything moved."""
    moved = _("It has moved on since your page was drawn. Nothing was changed.")
    if made.sooner:
        hit = Operation.objects.filter(
            pk=row.pk,
            state=State.UNCERTAIN.value,
            lease_token=row.lease_token,
            lease_until__isnull=True,
        ).update(next_at=now, lease_token=row.lease_token + 1)
        if not hit:
            raise _Refused(_("Somebody is looking right now. Nothing was changed."))
    if made.later:
        hit = Operation.objects.filter(
            pk__in=made.later, state__in=[State.PENDING.value, State.RETRY.value]
        ).update(next_at=now + WAITING)
        if hit < len(made.later):
            raise _Refused(moved)
    if made.moves:
        settled = moves.settle(list(made.moves), now)
        if any(one.subject.id not in settled.ids for one in made.moves):
            raise _Refused(moved)
        scrubber = _scrubber(row)
        for one in made.moves:
            cases.follow(one, scrubber, now)
    if made.candidate is not None:
        hides = made.effects.action == NOT_SAME
        CandidateRow.objects.filter(pk=made.candidate).update(
            refused_at=now if hides else None, refused_by=given.who if hides else ""
        )
    if made.assign is not None or made.note:
        case = _open_case(row)
        if case is None:
            raise _Refused(moved)
        if made.assign is not None:
            ReviewCase.objects.filter(pk=case.pk).update(assigned_to=made.assign)
        if made.note:
            Note.objects.create(case=case, by=given.user, by_name=given.who, at=now, text=made.note)
    return _new_generation(row, _declared(row), now) if made.anew else row.pk


def _verdict(
    row: Operation,
    action: str,
    declared: Write | None,
    candidate: Candidate | None,
    who: str,
    now: datetime,
) -> tuple[Verdict, str]:
    doubt = row.maybe_executed
    match action:
        case "look_again":
            text = _("It is looked up at once.")
            return Verdict(
                State.UNCERTAIN, "asked_to_look", f"{who} asked to look again.", doubt=True
            ), text
        case "retry":
            wait = 0.0
            if doubt and declared is not None and declared.safety is SafetyClass.B_PRIME:
                since = facts_of(row, declared, now).since_last or 0.0
                wait = max(0.0, (declared.max_exec or 0.0) - since)
            return Verdict(
                State.RETRY,
                "retried",
                f"{who} decided to send it again with the same key.",
                doubt=doubt,
                delay=wait,
            ), _("It is sent again.")
        case "send_again":
            return Verdict(
                State.DISCARDED,
                "sent_again",
                f"{who} decided to send it again, although it may have happened.",
                doubt=True,
                hold=declared.max_exec if declared is not None else None,
            ), _("It is sent again as a new operation.")
        case "link":
            assert candidate is not None  # noqa: S101 - read before for this decision
            return Verdict(
                State.CONFIRMED,
                "linked",
                f"{who} linked it to {candidate.remote_ref}.",
                Outcome.DONE,
                done=Done(
                    candidate.remote_ref,
                    candidate.remote_version,
                    candidate.values or candidate.fields,
                ),
            ), _("It is confirmed with object %(ref)s.") % {"ref": candidate.remote_ref}
        case "confirm":
            done = (
                Done(
                    candidate.remote_ref,
                    candidate.remote_version,
                    candidate.values or candidate.fields,
                )
                if candidate is not None
                else Done()
            )
            return Verdict(
                State.CONFIRMED,
                "stated",
                f"{who} stated that it was done.",
                Outcome.DONE,
                done=done,
            ), _("It counts as done, on your word.")
        case "discard":
            return Verdict(
                State.DISCARDED,
                "withdrawn",
                f"{who} discarded it.",
                doubt=doubt,
                hold=declared.max_exec if declared is not None and doubt else None,
            ), _("It is closed; nothing is sent.")
        case _:
            return Verdict(
                State.REVIEW,
                "taken_over",
                f"{who} took it out of the machine's hands.",
                doubt=doubt or row.state in (State.UNCERTAIN.value, State.ACCEPTED.value),
            ), _("The case is yours.")


def _new_generation(row: Operation, declared: Write | None, now: datetime) -> int:
    """A row that supersedes the doubtful one, with its own key and the same reference; its doubt is
    lifted.
    """
    if declared is None:
        raise _Refused(_("The code of this action is not installed."))
    newest = (
        Operation.objects.filter(tenant_id=row.tenant_id, operation_key=row.operation_key)
        .order_by("-generation")
        .values_list("generation", flat=True)[0]
    )
    intent = outbox.Intent(
        connection=row.connection,
        action=row.action,
        write=declared,
        object_type=row.object_type,
        source_system=row.source_system,
        source_id=row.source_id,
        version=row.version,
        variant=row.variant,
        key=row.operation_key,
        reference=row.reference,
        stream=row.stream,
        payload=row.payload,
        fingerprint=keys.fingerprint(row.payload),
        correlation_id=row.correlation_id,
    )
    made = outbox.insert(intent, now, generation=newest + 1, supersedes=row.pk, doubt_lifted=True)
    if made is None:
        raise _Refused(_("Somebody else has just sent it again. Nothing was changed."))
    return made


def _asked_for(row: Operation, action: str, given: _Given) -> str:
    """The object that is read before the decision is carried out; empty when there is none."""
    if action == LINK or (action == CONFIRM and row.yields_ref):
        if not given.remote_ref:
            raise BadPayload("remote id: choose a candidate or enter the id of the object there.")
        return given.remote_ref
    if action != CONFIRM:
        return ""
    if given.remote_ref or row.remote_ref:
        return given.remote_ref or row.remote_ref
    own = MappingRow.objects.filter(
        tenant_id=row.tenant_id,
        connection_id=row.connection_id,
        object_type=row.object_type,
        source_system=row.source_system,
        source_id=row.source_id,
        deleted_at__isnull=True,
    ).values_list("remote_ref", flat=True)
    return own.first() or ""


def _read_for(
    row: Operation, action: str, given: _Given, wire: Callable[[], Wire]
) -> Candidate | None:
    """What a decision has to read before it is carried out."""
    declared = _declared(row)
    if _ASKED[action](row, declared, database_now(), None)[0]:
        return None  # it is refused anyway, and nothing is asked there for it
    ref = _asked_for(row, action, given)
    if not ref:
        return None
    if action == CONFIRM and declared is not None and declared.kind is Kind.DELETE:
        if _found(row, ref, wire) is not None:
            raise _Refused(_("Object %(ref)s is still there. Nothing was changed.") % {"ref": ref})
        return Candidate(ref, matches=False)
    return _read_candidate(row, ref, wire)


def _found(row: Operation, remote_ref: str, wire: Callable[[], Wire]) -> Candidate | None:
    """The object there, or None when there is none; stored like what a worker sees."""
    try:
        ready = remote.make(row.connection, mark=Installation.current().mark)
        found = asyncio.run(_read(ready, row, remote_ref, wire))
        if found is not None:  # no secret, nothing unstorable
            found = fit(Looked((found,)), ready.scrubber).candidates[0]
    except (CallFailed, CallRefused, UnknownIntegration, CannotOpen, BadPayload) as error:
        raise _Refused(
            _("Object %(ref)s could not be read: %(why)s Nothing was changed.")
            % {"ref": remote_ref, "why": error}
        ) from None
    return found


def _read_candidate(row: Operation, remote_ref: str, wire: Callable[[], Wire]) -> Candidate:
    """Read the object a person chose, and check that it can be the one (account, tenant,
    entity).
    """
    taken = (
        MappingRow.objects.filter(
            connection_id=row.connection_id, object_type=row.object_type, remote_ref=remote_ref
        )
        .exclude(tenant_id=row.tenant_id, source_system=row.source_system, source_id=row.source_id)
        .first()
    )
    if taken is not None:
        raise _Refused(
            _("Object %(ref)s is already tied to %(type)s %(id)s. Nothing was changed.")
            % {"ref": remote_ref, "type": taken.object_type, "id": taken.source_id}
        )
    found = _found(row, remote_ref, wire)
    if found is None:
        raise _Refused(
            _("There is no object %(ref)s in this account. Nothing was changed.")
            % {"ref": remote_ref}
        )
    other = (
        Operation.objects.filter(reference=found.reference)
        .exclude(connection_id=row.connection_id, stream=row.stream)
        .first()
        if found.reference
        else None
    )
    if other is not None:
        raise _Refused(
            _("Object %(ref)s belongs to another record of ours. Nothing was changed.")
            % {"ref": remote_ref}
        )
    return found


async def _read(
    ready: Remote, row: Operation, remote_ref: str, wire: Callable[[], Wire]
) -> Candidate | None:
    line = wire()
    try:
        request = remote.request_for(ready, row, json.loads(row.payload), remote_ref=remote_ref)
        return await remote.read_through(
            ready,
            line,
            ready.connector.read(request, remote_ref),
            max_send=min(15.0, ready.longest_send),
        )
    finally:
        await line.aclose()


def _scrubber(row: Operation) -> Scrubber:
    """The scrubber of the operation's connection; a plain one when its credentials do not open."""
    try:
        mark = Installation.current().mark
        return remote.make(row.connection, mark=mark).scrubber
    except (UnknownIntegration, CannotOpen):
        return Scrubber()


def _record(record: Decision, decided: Decided) -> Decided:
    """Keep a refusal, outside what was rolled back; what the same form's first one came to."""
    record.at = database_now()
    record.done, record.result = False, clean(decided.text, 2000)
    try:
        with transaction.atomic():
            record.save(force_insert=True)
    except IntegrityError:
        before = _before(record)
        if before is None:
            raise
        return before
    return decided
