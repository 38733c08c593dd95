"""Decisions of a person about one operation: `choices()` says what may be done and why not, `act()`
does it.

`act` is the one way in for page, bulk and API. Every decision takes a reason and the state and
token the person saw, raises the token, and is recorded, refused ones too; a stale page changes
nothing (protocol §16).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from hub import bell, cases, keys, moves, outbox, remote
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
from hub.http import Wire
from hub.models import Decision, Installation, Operation, ReviewCase
from hub.models import Mapping as MappingRow
from hub.models.review import Subject as CaseSubject
from hub.policy import Verdict
from hub.redaction import Scrubber, clean
from hub.registry import UnknownAction, UnknownIntegration
from hub.remote import Remote
from hub.sql import database_now
from hub.states import Actor, Outcome, State
from hub.sweep import facts_of, subject_of
from hub.work import fit

LOOK_AGAIN, RETRY, SEND_AGAIN, LINK, DISCARD, TAKE_OVER = (
    "look_again",
    "retry",
    "send_again",
    "link",
    "discard",
    "take_over",
)
ACTIONS = (LOOK_AGAIN, RETRY, SEND_AGAIN, LINK, DISCARD, TAKE_OVER)
PERMISSIONS = {SEND_AGAIN: "hub.send_again"}
DECIDE = "hub.decide_case"


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


class _Refused(Exception):
    """The decision cannot be carried out; the text says why and what to do."""


# --- what may be done
# ------------------------------------------------------------------------------


def choices(
    operation: Operation, now: datetime | None = None, *, stale: bool | None = None
) -> list[Choice]:
    """Every button of the operation's page, in the order they are shown.

    `stale` says whether a newer version has been sent, where the caller knows it already; a list
    of many has asked that for all of them at once.
    """
    now = now or database_now()
    action = _declared(operation)
    found = []
    for name in ACTIONS:
        why, effect = _ASKED[name](operation, action, now, stale)
        found.append(
            Choice(
                name,
                not why,
                why,
                effect,
                needs_remote_ref=name == LINK,
                permission=PERMISSIONS.get(name, DECIDE),
            )
        )
    return found


def _declared(operation: Operation) -> Write | None:
    try:
        return remote.declared(operation.connection, operation.action)
    except (UnknownIntegration, UnknownAction):
        return None


def _not_here(operation: Operation) -> str:
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
    DISCARD: _ask_discard,
    TAKE_OVER: _ask_take_over,
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
    remote_ref: str = "",
    wire: Callable[[], Wire] = Wire,
    steps: Callable[[str], None] | None = None,
) -> Decided:
    """Carry out one decision, or refuse it; both are recorded.

    Raises `PermissionError` when the user may not, `BadPayload` for a missing reason or an unknown
    decision. A link reads the remote object first; that read is made before anything is written.
    """
    if action not in ACTIONS:
        raise BadPayload(f"decision: {clean(action, 40)!r} is not one of {', '.join(ACTIONS)}.")
    who = by or (user.get_username() if user is not None else "operator")
    if user is not None:
        for permission in {DECIDE, PERMISSIONS.get(action, DECIDE)}:
            if not user.has_perm(permission):
                raise PermissionError(f"{who} may not decide {action}.")
    reason = clean(reason.strip(), 2000)
    if not reason:
        raise BadPayload("reason: say in a few words why, for those who read it later.")
    remote_ref = clean(remote_ref.strip(), 255)
    seen_state = clean(seen_state, 10)
    if abs(seen_token) >= 2**63:
        seen_token = -1  # no page of ours had it, and no column holds it
    record = Decision(
        operation_id=operation_id,
        action=action,
        by=user,
        by_name=who,
        reason=reason,
        seen_state=seen_state,
        seen_token=seen_token,
        remote_ref=remote_ref,
    )
    try:
        row = _as_seen(operation_id, seen_state, seen_token)
        candidate = _read_candidate(row, remote_ref, wire) if action == LINK else None
        with transaction.atomic():
            decided = _carry_out(operation_id, action, record, candidate)
    except _Refused as refusal:
        decided = Decided(False, str(refusal), operation_id)
    except (moves.MappingTaken, IntegrityError):
        # Only a link ties anything; any other decision can only meet a stream that is held (C2).
        why = (
            _("That object is already tied to another record here. Nothing was changed.")
            if action == LINK
            else _("It is behind another version of the same object.") + _(" Nothing was changed.")
        )
        decided = Decided(False, why, operation_id)
    if not decided.done:
        _record(record, decided)
        return decided
    if steps is not None:
        steps("decide.committed")
    bell.ring()
    return decided


def _as_seen(operation_id: int, seen_state: str, seen_token: int) -> Operation:
    """The operation, if it still is what the person saw."""
    row = (
        Operation.objects.select_related("connection__tenant", "connection__gate")
        .filter(pk=operation_id)
        .first()
    )
    if row is None:
        raise BadPayload(f"There is no operation {operation_id}.")
    if row.state != seen_state or row.lease_token != seen_token:
        last = Decision.objects.filter(operation_id=operation_id, done=True).order_by("-at").first()
        first = (
            _(" %(who)s decided %(what)s before you.") % {"who": last.by_name, "what": last.action}
            if last is not None and (last.seen_token or 0) >= seen_token
            else ""
        )
        raise _Refused(
            _("It has moved on since your page was drawn: it is %(state)s now.")
            % {"state": row.get_state_display()}
            + first
            + _(" Nothing was changed.")
        )
    return row


def _carry_out(
    operation_id: int, action: str, record: Decision, candidate: Candidate | None
) -> Decided:
    row = _as_seen(operation_id, record.seen_state, record.seen_token or 0)
    now = database_now()
    declared = _declared(row)
    why, _effect = _ASKED[action](row, declared, now, None)
    if why:
        raise _Refused(why)
    case = (
        ReviewCase.objects.filter(
            subject=CaseSubject.OPERATION, subject_id=row.pk, closed_at__isnull=True
        )
        .order_by("-id")
        .first()
    )
    record.case = case
    if action == LOOK_AGAIN and row.state == State.UNCERTAIN.value:
        decided = _look_sooner(row, now)
    else:
        decided = _move(row, action, declared, candidate, record, now)
    record.at = now
    record.done, record.result = True, decided.text
    record.save()
    return decided


def _look_sooner(row: Operation, now: datetime) -> Decided:
    hit = Operation.objects.filter(
        pk=row.pk,
        state=State.UNCERTAIN.value,
        lease_token=row.lease_token,
        lease_until__isnull=True,
    ).update(next_at=now, lease_token=row.lease_token + 1)
    if not hit:
        raise _Refused(_("Somebody is looking right now. Nothing was changed."))
    return Decided(True, _("It is looked up at once."), row.pk)


def _move(
    row: Operation,
    action: str,
    declared: Write | None,
    candidate: Candidate | None,
    record: Decision,
    now: datetime,
) -> Decided:
    verdict, text = _verdict(row, action, declared, candidate, record, now)
    subject = subject_of(row)
    if action in (RETRY, LOOK_AGAIN):
        # A person starts it anew: what was used up before no longer counts.
        subject = replace(subject, attempts=0, repeats=0, lapses=0, looks=0)
    alive = None
    if verdict.state is State.RETRY and verdict.doubt and declared is not None:
        facts = facts_of(row, declared, now)
        if declared.key_ttl is not None and declared.safety in (SafetyClass.A, SafetyClass.A_LOOK):
            alive = (
                declared.key_ttl * 0.9
                - (facts.first_sent_ago or 0.0)
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
        who=record.by_name,
    )
    made = moves.settle([move], now)
    if row.pk not in made.ids:
        raise _Refused(_("It has moved on since your page was drawn. Nothing was changed."))
    cases.follow(move, _scrubber(row), now)
    target = row.pk
    if action == SEND_AGAIN:
        target = _new_generation(row, declared, now)
    return Decided(True, text, target)


def _verdict(
    row: Operation,
    action: str,
    declared: Write | None,
    candidate: Candidate | None,
    record: Decision,
    now: datetime,
) -> tuple[Verdict, str]:
    who, doubt = record.by_name, row.maybe_executed
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


def _read_candidate(row: Operation, remote_ref: str, wire: Callable[[], Wire]) -> Candidate:
    """Read the object a person chose, and check that it can be the one (account, tenant,
    entity).
    """
    if not remote_ref:
        raise BadPayload("remote id: choose a candidate or enter the id of the object there.")
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
    mark = Installation.current().mark
    try:
        ready = remote.make(row.connection, mark=mark)
        found = asyncio.run(_read(ready, row, remote_ref, wire))
        if found is not None:  # stored like what a worker sees: no secret, nothing unstorable
            found = fit(Looked((found,)), ready.scrubber).candidates[0]
    except (CallFailed, CallRefused, UnknownIntegration, CannotOpen, BadPayload) as error:
        raise _Refused(
            _("Object %(ref)s could not be read: %(why)s Nothing was changed.")
            % {"ref": remote_ref, "why": error}
        ) from None
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


def _record(record: Decision, decided: Decided) -> None:
    record.at = database_now()
    record.done, record.result = False, clean(decided.text, 2000)
    record.save()
