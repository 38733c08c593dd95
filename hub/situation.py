"""What is known of cases, read from the rows: the `Situation` the advice table goes by.

`situations` asks a fixed number of questions however many cases it is given, so that a list of
fifty costs what one costs.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from django.db.models import (
    Count,
    IntegerField,
    Max,
    OuterRef,
    Subquery,
    prefetch_related_objects,
)
from django.db.models.functions import Coalesce

from hub import remote
from hub.advice import Ended, Look, ReadBack, Situation
from hub.candidates import Absence, Check, Judged, Proof, Sighting, Sureness, absence, judge
from hub.contract import Kind, SafetyClass, Write
from hub.models import Attempt, Candidate, Connection, Evidence, Operation, ReviewCase
from hub.models import Mapping as MappingRow
from hub.models.gate import Gate, PauseKind
from hub.models.operation import CLOSED
from hub.models.review import Subject
from hub.reasons import Reason, reason_of
from hub.registry import UnknownAction, UnknownIntegration
from hub.sql import database_now
from hub.states import LEASABLE, Outcome, Purpose, State
from hub.sweep import facts_of
from hub.urgency import Urgency, urgency
from hub.verdicts import Facts
from hub.waits import repeat_harmless

SKEW = timedelta(seconds=60)
"""How far a remote's clock may be from ours when times are compared."""
TIME_LIMIT = 86_400.0
"""Seconds a case may wait before its age counts in full."""
_NAMES = "remote id "
_NAMED_BY = ("late_result", "follow_up_failed")
MOST = 20
"""Candidates of one case that are looked at."""


@dataclass(frozen=True, slots=True)
class Known:
    """One case: its situation, its urgency, and what its buttons ask of the rows besides."""

    situation: Situation
    urgency: Urgency
    stale: bool = False
    """A newer version of the record has been sent."""
    own: str = ""
    """The object there that the record is tied to."""
    taken: Mapping[str, str] = field(default_factory=dict)
    """Candidates that are tied to another record, and to which."""
    held: int = 0
    """Versions of the same record that wait behind it."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """What a page of cases was found to have, each by the id it belongs to."""

    around: dict[int, Any]
    candidates: dict[int, list[Candidate]]
    sends: dict[int, Attempt]
    looks: dict[int, Attempt]
    named: dict[int, set[str]]
    ties: dict[tuple[int, str, str], MappingRow]
    own: dict[tuple[int, int, str, str, str], MappingRow]
    references: dict[str, tuple[int, str, str]]
    waiting: dict[int, int]


def situations(cases: Sequence[ReviewCase], now: datetime | None = None) -> dict[int, Known]:
    """What is known of each case, by its number; a constant number of queries."""
    now = now or database_now()
    prefetch_related_objects(cases, "operation", "connection__gate")
    for case in cases:
        if case.operation is not None:
            case.operation.connection = case.connection
    rows = _read(cases)
    return {case.pk: _known(case, rows, now) for case in cases}


def situation(case: ReviewCase, now: datetime | None = None) -> Known:
    """What is known of one case."""
    return situations([case], now)[case.pk]


# --- reading --------------------------------------------------------------------------------------


def _read(cases: Sequence[ReviewCase]) -> _Rows:
    operations = {one.operation.pk: one.operation for one in cases if one.operation is not None}
    candidates: dict[int, list[Candidate]] = defaultdict(list)
    mine = [one.pk for one in cases if one.subject == Subject.OPERATION]
    for one in Candidate.objects.filter(case_id__in=mine).order_by("-matches", "pk"):
        if len(candidates[one.case_id]) < MOST:
            candidates[one.case_id].append(one)
    last = (
        Attempt.objects.filter(operation_id__in=operations)
        .order_by()
        .values("operation_id", "purpose")
        .annotate(last=Max("pk"))
        .values("last")
    )
    sends, looks = {}, {}
    for tried in Attempt.objects.filter(pk__in=last):
        if tried.purpose == Purpose.SEND:
            sends[tried.operation_id] = tried
        elif tried.purpose == Purpose.CONSULT:
            looks[tried.operation_id] = tried
    named: dict[int, set[str]] = defaultdict(set)
    told = Evidence.objects.filter(operation_id__in=operations, kind__in=_NAMED_BY)
    for number, data in told.values_list("operation_id", "data"):
        if data.startswith(_NAMES):
            named[number].add(data.removeprefix(_NAMES))
    refs = {one.remote_ref for many in candidates.values() for one in many}
    refs |= {ref for many in named.values() for ref in many}
    refs |= {one.remote_ref for one in operations.values() if one.remote_ref}
    where = {one.connection_id for one in cases}
    ties = {
        (one.connection_id, one.object_type, one.remote_ref): one
        for one in MappingRow.objects.filter(remote_ref__in=refs, connection_id__in=where).defer(
            "values"
        )
    }
    own = {
        _entity(one): one
        for one in MappingRow.objects.filter(
            connection_id__in=where,
            object_type__in={one.object_type for one in operations.values()},
            source_system__in={one.source_system for one in operations.values()},
            source_id__in={one.source_id for one in operations.values()},
        )
    }
    carried = {one.reference for many in candidates.values() for one in many if one.reference}
    carried -= {one.reference for one in operations.values()}
    references = {
        reference: (connection, stream, source)
        for reference, connection, stream, source in Operation.objects.filter(
            reference__in=carried
        ).values_list("reference", "connection_id", "stream", "source_id")
    }
    stopped = [one.connection_id for one in cases if one.subject == Subject.CONNECTION]
    waiting = dict(
        Operation.objects.filter(connection_id__in=stopped)
        .exclude(state__in=CLOSED)
        .order_by()
        .values("connection_id")
        .annotate(n=Count("pk"))
        .values_list("connection_id", "n")
    )
    return _Rows(
        _around(operations), candidates, sends, looks, named, ties, own, references, waiting
    )


def _around(operations: Iterable[int]) -> dict[int, Any]:
    """Of each operation what stands in its stream: newer versions sent, waiting, and which."""
    stream = Operation.objects.filter(
        connection_id=OuterRef("connection_id"),
        stream=OuterRef("stream"),
        version__gt=OuterRef("version"),
    )
    behind = stream.exclude(state__in=CLOSED).order_by("-version")
    number = Subquery(
        behind.order_by().values("stream").annotate(n=Count("pk")).values("n"),
        output_field=IntegerField(),
    )
    found = (
        Operation.objects.filter(pk__in=list(operations))
        .annotate(
            held=Coalesce(number, 0),
            newest=Subquery(behind.values("version")[:1]),
            newest_full=Subquery(behind.values("full_state")[:1]),
            newest_creates=Subquery(behind.values("yields_ref")[:1]),
            overtaken=Subquery(
                stream.filter(first_sent_at__isnull=False)
                .order_by("-version")
                .values("version")[:1]
            ),
        )
        .values("pk", "held", "newest", "newest_full", "newest_creates", "overtaken")
    )
    return {one["pk"]: one for one in found}


def _entity(row: Operation | MappingRow) -> tuple[int, int, str, str, str]:
    return (row.tenant_id, row.connection_id, row.object_type, row.source_system, row.source_id)


# --- what the rows say ----------------------------------------------------------------------------


def _known(case: ReviewCase, rows: _Rows, now: datetime) -> Known:
    age = (now - case.opened_at).total_seconds()
    base = Situation(
        system=str(case.connection), contact=case.connection.contact, said=case.summary,
        can_look=False,
    )  # fmt: skip
    gate = _gate(case.connection)
    refused = gate is not None and gate.pause_kind in (PauseKind.CREDENTIAL, PauseKind.CERTIFICATE)
    if case.subject == Subject.CONNECTION:
        since = gate.paused_at if gate is not None and refused else None
        number = rows.waiting.get(case.connection_id, 0)
        return Known(
            replace(base, access_refused_since=since, waiting=number),
            urgency(held=number, age=age, limit=TIME_LIMIT),
        )
    operation = case.operation
    if operation is None:
        return Known(base, urgency(age=age, limit=TIME_LIMIT))
    if case.subject == Subject.DRIFT:
        return Known(replace(base, data_changed=True), urgency(age=age, limit=TIME_LIMIT))
    if case.subject == Subject.DUPLICATE:
        refs = rows.named.get(operation.pk, set()) | {operation.remote_ref}
        found = replace(base, duplicates=max(2, len(refs - {""})))
        return Known(found, urgency(age=age, limit=TIME_LIMIT))
    return _of_operation(case, operation, rows, base, now, age)


def _gate(connection: Connection) -> Gate | None:
    try:
        return connection.gate
    except Gate.DoesNotExist:
        return None


def _of_operation(
    case: ReviewCase, row: Operation, rows: _Rows, base: Situation, now: datetime, age: float
) -> Known:
    action = declared(row)
    around = rows.around.get(row.pk, {})
    mapping = rows.own.get(_entity(row))
    own = mapping.remote_ref if mapping is not None and mapping.deleted_at is None else ""
    kind = action.kind if action is not None else _kind_of(row)
    seen = _sightings(case, row, rows, action)
    judged = tuple(judge(one) for one in seen)
    taken = {one.ref: one.linked_to for one in seen if one.linked_to}
    newest = around.get("newest") or 0
    base = replace(
        base,
        kind=kind,
        doubt=row.maybe_executed,
        data_changed=reason_of(case.reason_code) is Reason.PAYLOAD_CHANGED,
        in_hand_until=row.lease_until
        if row.lease_until is not None and row.lease_until > now and State(row.state) in LEASABLE
        else None,
        candidates=judged,
        version=row.version,
        result_version=_result_version(case, row, judged, kind),
        newest=newest,
        newer_covers=bool(around.get("newest_full"))
        and (not row.yields_ref or bool(around.get("newest_creates")) or bool(own)),
        overtaken=(around.get("overtaken") or 0)
        if action is not None and action.is_full_state
        else 0,
        own_link=own,
        ended=_ended(case, row, rows.sends.get(row.pk)),
        job_lost=case.reason_code in ("unknown_job", "no_result"),
        looks=row.looks,
    )
    key_used = 0.0
    if action is not None:
        facts = facts_of(row, action, now)
        stored = rows.candidates.get(case.pk, [])
        base = _with_looks(base, case, row, rows.looks.get(row.pk), stored, mapping, facts, now)
        base, key_used = _with_repeat(base, row, facts)
    held = around.get("held") or 0
    return Known(
        base,
        urgency(held=held, key_used=key_used, age=age, limit=TIME_LIMIT),
        bool(base.overtaken),
        own,
        taken,
        held,
    )


def declared(operation: Operation) -> Write | None:
    """The declaration in force for an operation; None when its code is not installed."""
    try:
        return remote.declared(operation.connection, operation.action)
    except (UnknownIntegration, UnknownAction):
        return None


def _kind_of(row: Operation) -> Kind:
    return Kind.CREATE if row.yields_ref else Kind.COMMAND


def _sightings(
    case: ReviewCase, row: Operation, rows: _Rows, action: Write | None
) -> list[Sighting]:
    named = rows.named.get(row.pk, set()) | ({row.remote_ref} if row.remote_ref else set())
    found = []
    stored = rows.candidates.get(case.pk, [])
    for one in stored:
        other = rows.references.get(one.reference)
        ours = bool(one.reference) and one.reference == row.reference
        found.append(
            Sighting(
                ref=one.remote_ref,
                carries_ours=ours,
                returned=one.remote_ref in named,
                carries_other=other[2]
                if other is not None and other[:2] != (row.connection_id, row.stream)
                else "",
                linked_to=_linked_to(row, one.remote_ref, rows),
                refused=one.refused_at is not None,
                place=one.place,
                version=one.version,
                fields=max(len(_object(one.fields)), len(_list(one.differences))),
                different=0 if one.matches else len(_list(one.differences)),
            )
        )
    known = {one.remote_ref for one in stored}
    if row.state == State.REVIEW.value and row.yields_ref:
        for ref in sorted(named - known):
            linked = _linked_to(row, ref, rows)
            found.append(Sighting(ref=ref, returned=True, linked_to=linked))
    return found


def _linked_to(row: Operation, ref: str, rows: _Rows) -> str:
    mapping = rows.ties.get((row.connection_id, row.object_type, ref))
    if mapping is None or _entity(mapping) == _entity(row):
        return ""
    return f"{mapping.source_system}/{mapping.source_id}"


def _result_version(
    case: ReviewCase, row: Operation, judged: tuple[Judged, ...], kind: Kind
) -> str:
    """The source version a result belongs to, where it is not the one that is wanted."""
    if reason_of(case.reason_code) is Reason.OTHER_VERSION:
        return next((one.seen.version for one in judged if one.seen.version), "?")
    if kind is not Kind.COMMAND:
        return ""  # an older version of a record is brought up to date, not thrown away
    versions = [one.seen.version for one in judged if one.proof is Proof.PROVEN]
    return next((one for one in versions if one and one != str(row.version)), "")


_FOR_GOOD = frozenset({Reason.PERMISSION, Reason.VALIDATION, Reason.CONFIGURATION})
_NOTHING = frozenset({Reason.ATTEMPTS_USED})
_SOMETHING = frozenset(
    {
        Reason.REMOTE_CONFLICT, Reason.OTHER_VERSION, Reason.MAPPING_CONFLICT, Reason.NOT_PROVEN,
        Reason.MANY_CANDIDATES,
    }
)  # fmt: skip


def _ended(case: ReviewCase, row: Operation, last: Attempt | None) -> Ended:
    """How the last try ended where nothing is in doubt."""
    reason = reason_of(case.reason_code)
    if reason in _FOR_GOOD or row.state == State.FAILED.value:
        return Ended.FOR_GOOD
    if row.maybe_executed:
        return Ended.OTHER
    if reason in _NOTHING or (row.first_sent_at is None and reason not in _SOMETHING):
        return Ended.NOTHING_LEFT
    match last.outcome if last is not None else "":
        case Outcome.NOTHING_LEFT | Outcome.GIVEN_BACK:
            return Ended.NOTHING_LEFT
        case Outcome.REFUSED_FOR_NOW:
            return Ended.FOR_NOW
        case Outcome.REFUSED | Outcome.DENIED:
            return Ended.FOR_GOOD
        case _:
            return Ended.OTHER


def _with_looks(
    base: Situation,
    case: ReviewCase,
    row: Operation,
    last: Attempt | None,
    stored: Sequence[Candidate],
    mapping: MappingRow | None,
    facts: Facts,
    now: datetime,
) -> Situation:
    """What the last look showed, from when one counts, and how sure "not there" is."""
    action = facts.action
    settles = None
    if row.last_byte_at is not None and action.max_exec is not None:
        settles = row.last_byte_at + timedelta(seconds=action.max_exec)
    begun = last.claimed_at if last is not None and _since_sent(row, last) else None
    showed = [one for one in base.candidates if one.proof is not Proof.FOREIGN]
    read = _read_back(base, stored, mapping, last, begun)
    look, sure = Look.NONE, Absence(Sureness.CANNOT_SAY)
    if last is not None and begun is not None and action.can_look:
        look = _look(last, late=settles is None or begun >= settles)
    if begun is not None and look in (Look.GOOD, Look.TOO_EARLY):
        sure = absence(
            replace(facts, look_took=max(0.0, (now - begun).total_seconds())),
            reference_kept=case.reason_code != "reference_ignored",
            set_aside=any(one.cast_aside for one in showed),
        )
    counts_from = settles
    if look is Look.GOOD and not showed and not base.by_id and _lag_left(sure, action):
        look = Look.TOO_EARLY
        if row.absent_since is not None:
            counts_from = row.absent_since + timedelta(seconds=action.index_lag or 0.0)
    if action.can_look and (read is ReadBack.EQUAL or base.proven):
        look = Look.GOOD  # found counts at any time
    return replace(
        base,
        can_look=action.can_look,
        look=look,
        look_from=counts_from if counts_from is not None and counts_from > now else None,
        read_back=read,
        absence=sure,
    )


def _lag_left(sure: Absence, action: Write) -> bool:
    """Whether another look is all that is missing: their index was not waited out yet."""
    known = action.max_exec is not None and action.index_lag is not None
    return known and bool(sure.missing) and set(sure.missing) <= {Check.INDEX, Check.TWICE}


def _since_sent(row: Operation, last: Attempt) -> bool:
    """Whether an attempt is younger than the last send: an older look says nothing of it."""
    return row.sent_at is None or last.claimed_at >= row.sent_at


def _look(last: Attempt, *, late: bool) -> Look:
    if last.outcome != Outcome.LOOKED:
        return Look.FAILED if last.settled_at is not None else Look.NONE
    seen = _object(last.seen)
    if "found" not in seen:
        return Look.FAILED
    if seen.get("complete") is not True:
        return Look.INCOMPLETE
    return Look.GOOD if late else Look.TOO_EARLY


def _read_back(
    base: Situation,
    stored: Sequence[Candidate],
    mapping: MappingRow | None,
    last: Attempt | None,
    begun: datetime | None,
) -> ReadBack | None:
    """What the record that is known by its id shows; None when that is not known."""
    if not base.by_id:
        return None
    if stored:
        one = stored[0]
        if base.kind is Kind.DELETE:
            return ReadBack.EQUAL if one.place else ReadBack.BEFORE
        if one.matches:
            return ReadBack.EQUAL
        return ReadBack.BEFORE if _as_last_seen(one, mapping) else ReadBack.NEITHER
    if begun is None or last is None or _look(last, late=True) is not Look.GOOD:
        return None
    if _object(last.seen).get("found"):
        # What it showed was not kept: of a delete it is known all the same.
        return ReadBack.BEFORE if base.kind is Kind.DELETE else None
    return ReadBack.EQUAL if base.kind is Kind.DELETE else ReadBack.NEITHER


def _as_last_seen(one: Candidate, mapping: MappingRow | None) -> bool:
    """Whether all that differs there is just as it was last seen."""
    values = _object(mapping.values) if mapping is not None else {}
    said = [each for each in _list(one.differences) if isinstance(each, dict)]
    return bool(said) and all(
        each.get("field") in values and values[each["field"]] == each.get("theirs") for each in said
    )


def _with_repeat(base: Situation, row: Operation, facts: Facts) -> tuple[Situation, float]:
    """Whether a repeat is harmless and until when; and the share of the key's life that is used."""
    action = facts.action
    harmless = (
        repeat_harmless(facts)
        and row.first_sent_at is not None
        and row.reason_code != "key_stores_error"
    )
    if action.safety not in (SafetyClass.A, SafetyClass.A_LOOK) or row.first_sent_at is None:
        return replace(base, repeat_harmless=harmless), 0.0
    if action.key_ttl is None:
        return base, 0.0
    left = action.key_ttl * 0.9 - action.max_send - (action.max_exec or 0.0)
    until = row.first_sent_at + timedelta(seconds=left)
    used = (facts.first_sent_ago or 0.0) / left if left > 0 else 1.0
    return replace(
        base,
        repeat_harmless=harmless,
        repeat_until=until if harmless else None,
        key_gone_at=None if harmless else until,
    ), (used if row.maybe_executed else 0.0)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _list(text: str) -> list[Any]:
    try:
        found = json.loads(text or "[]")
    except ValueError:
        return []
    return found if isinstance(found, list) else []
