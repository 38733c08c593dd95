"""Cases for a person: opened in the transaction of the move that needs one, closed when the subject
moves on (§16).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import F

from hub.contract import Candidate as Seen
from hub.models import Candidate, Connection, Evidence, Operation, ReviewCase
from hub.models.review import Subject
from hub.moves import Settlement
from hub.redaction import Scrubber, clean
from hub.sql import database_now
from hub.states import RESTING, State


def open_case(
    subject: str,
    subject_id: int,
    *,
    tenant_id: int,
    connection_id: int,
    reason_code: str,
    summary: str,
    operation_id: int | None = None,
    assumption: str = "",
    advice: str = "",
    now: datetime | None = None,
) -> ReviewCase:
    """Open a case, or count on the open one (C9)."""
    now = now or database_now()
    open_one = ReviewCase.objects.filter(
        subject=subject, subject_id=subject_id, closed_at__isnull=True
    )
    for _ in range(3):
        with transaction.atomic():
            made = ReviewCase.objects.bulk_create(
                [
                    ReviewCase(
                        tenant_id=tenant_id,
                        connection_id=connection_id,
                        operation_id=operation_id,
                        subject=subject,
                        subject_id=subject_id,
                        reason_code=reason_code,
                        summary=clean(summary, 2000),
                        assumption=assumption,
                        advice=advice,
                        opened_at=now,
                        count=0,
                    )
                ],
                update_conflicts=False,
                ignore_conflicts=True,
            )
            changes: dict[str, Any] = {"count": F("count") + 1}
            if made:
                changes |= {
                    "reason_code": reason_code,
                    "summary": clean(summary, 2000),
                    "assumption": assumption,
                    "advice": advice,
                }
            if open_one.update(**changes):
                return open_one.get()
    raise RuntimeError(f"the case about {subject} {subject_id} could not be opened")


def open_one(subject: str, subject_id: int) -> ReviewCase | None:
    """The open case about a subject, if there is one."""
    return ReviewCase.objects.filter(
        subject=subject, subject_id=subject_id, closed_at__isnull=True
    ).first()


def close_case(subject: str, subject_id: int, *, by: str = "", now: datetime | None = None) -> bool:
    """Close the open case about a subject; True when there was one."""
    return bool(
        ReviewCase.objects.filter(
            subject=subject, subject_id=subject_id, closed_at__isnull=True
        ).update(closed_at=now or database_now(), closed_by=by)
    )


def keep_candidates(
    case: ReviewCase, seen: Iterable[Seen], scrubber: Scrubber, now: datetime
) -> None:
    """Keep what a person may choose from, without secrets."""
    for one in seen:
        Candidate.objects.update_or_create(
            case=case,
            remote_ref=clean(one.remote_ref, 255),
            defaults={
                "matches": one.matches,
                "reference": clean(one.reference, 128),
                "version": clean(one.version, 100),
                "fields": json.dumps(scrubber.value(one.fields), ensure_ascii=False),
                "differences": json.dumps(
                    [
                        {
                            "field": d.field,
                            "ours": scrubber.value(d.ours),
                            "theirs": scrubber.value(d.theirs),
                        }
                        for d in one.differences
                    ],
                    ensure_ascii=False,
                ),
                "url": clean(one.url, 500),
                "place": clean(one.place, 40),
                "seen_at": now,
            },
        )


def follow(move: Settlement, scrubber: Scrubber, now: datetime) -> None:
    """What a move means for its operation's case; in the move's own transaction."""
    subject, verdict = move.subject, move.verdict
    if move.after in RESTING:
        case = open_case(
            Subject.OPERATION,
            subject.id,
            tenant_id=subject.tenant_id,
            connection_id=subject.connection_id,
            operation_id=subject.id,
            reason_code=verdict.code,
            summary=verdict.text,
            assumption=verdict.assumption,
            advice=verdict.advice.value,
            now=now,
        )
        keep_candidates(case, verdict.candidates, scrubber, now)
    elif subject.state in (State.FAILED, State.REVIEW):
        close_case(Subject.OPERATION, subject.id, by=move.who, now=now)


def note(
    operation_id: int,
    kind: str,
    text: str,
    *,
    actor: str,
    now: datetime | None = None,
    token: int | None = None,
    data: str = "",
) -> None:
    """Add a fact to an operation's timeline."""
    Evidence.objects.create(
        operation_id=operation_id,
        at=now or database_now(),
        actor=clean(actor, 150),
        kind=kind,
        text=clean(text, 2000),
        token=token,
        data=clean(data, 4000),
    )


DRIFT = "drift"
"""Kind of the evidence that holds what came the second time under one key."""
KEPT = 5
"""Different payloads of one operation that are kept; a source may repeat its mistake for ever."""
LONGEST = 20_000
"""Characters of them that are kept; of a longer one only the names of its fields."""


def keep_submitted(
    operation_id: int, submitted: str, *, actor: str = "submit", now: datetime | None = None
) -> None:
    """Keep what was submitted again with other data: only the fields that differ, without secrets.

    Its data is an object with `fields` (name to the value that came), `left_out` (names that did
    not come), and for a very long one `names` in the place of both.
    """
    stored = json.loads(Operation.objects.values_list("payload", flat=True).get(pk=operation_id))
    came = json.loads(submitted)
    changed = {name: one for name, one in came.items() if name not in stored or one != stored[name]}
    left_out = sorted(name for name in stored if name not in came)
    data = json.dumps(
        {"fields": Scrubber().value(changed), "left_out": left_out}, ensure_ascii=False
    )
    if len(data) > LONGEST:
        data = json.dumps({"names": sorted({*changed, *left_out})}, ensure_ascii=False)
    kept = Evidence.objects.filter(operation_id=operation_id, kind=DRIFT)
    known = list(kept.values_list("data", flat=True)[:KEPT])
    if data in known or len(known) >= KEPT or len(data) > LONGEST:
        return
    Evidence.objects.create(
        operation_id=operation_id,
        at=now or database_now(),
        actor=clean(actor, 150),
        kind=DRIFT,
        text="The same key was submitted again with other data. Nothing was sent for it.",
        data=data,
    )


def about_connection(
    connection_id: int, reason_code: str, summary: str, now: datetime | None = None
) -> ReviewCase:
    """One case for a connection that refuses us, however many operations wait behind it."""
    tenant_id = Connection.objects.values_list("tenant_id", flat=True).get(pk=connection_id)
    return open_case(
        Subject.CONNECTION,
        connection_id,
        tenant_id=tenant_id,
        connection_id=connection_id,
        reason_code=reason_code,
        summary=summary,
        advice="retry",
        now=now,
    )
