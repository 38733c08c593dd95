"""The overview: what waits, for whom, since when, why; and whether anything moves at all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Count, Min, OuterRef, Q, QuerySet, Subquery
from django.http import HttpRequest
from django.utils.translation import gettext as _

from hub import health
from hub.indexes import CLAIMABLE_NOW, unfinished
from hub.models import Connection, Heartbeat, Installation, Operation, ReviewCase
from hub.models.operation import CLOSED, STATE_LABELS
from hub.models.review import Subject
from hub.panel import words
from hub.panel.connection import Standing, standing
from hub.sql import database_now, is_postgres, rows
from hub.states import State

COUNTED = 100_000
"""Rows of one state that are counted; more are shown as "100,000+"."""
NAMED = 5
"""Paused connections that are named above everything else."""
FORGET = timedelta(days=1)
BY_ITSELF = frozenset({State.PENDING, State.RETRY, State.UNCERTAIN, State.ACCEPTED})
"""States in which the hub goes on by itself, as long as the connection is open."""


@dataclass(frozen=True, slots=True)
class Tally:
    """How many operations are in a state."""

    state: str
    label: Any
    means: str
    count: int
    more: bool


@dataclass(frozen=True, slots=True)
class Needs:
    """What waits for a person: open questions, and connections only a person can open."""

    questions: int
    more: bool
    """There are more questions than were counted."""
    paused: int
    named: tuple[tuple[Connection, Standing], ...]

    def __bool__(self) -> bool:
        return bool(self.questions or self.paused)


def figures(request: HttpRequest) -> dict[str, Any]:
    """What the overview shows this person, by queries that small indexes answer.

    Everybody who may enter sees whether work moves; each table takes the permission for its list.
    """
    now = database_now()
    may = request.user.has_perm
    work, places = may("hub.view_operation"), may("hub.view_connection")
    late = timedelta(seconds=settings.HUB_WATCHDOG_BEAT_AGE)
    due_for = health.oldest_due(now)
    whole = health.exchange(now)
    waits = _paused().exists()
    installation = Installation.objects.filter(pk=1).first()
    return {
        "needs": _needs(cases=may("hub.view_reviewcase"), places=places),
        "may_see_needs": places or may("hub.view_reviewcase"),
        "may_see_work": work,
        "may_see_cases": may("hub.view_reviewcase"),
        "may_see_connections": places,
        "may_see_workers": may("hub.view_heartbeat"),
        "tallies": [
            _tally(state, label, waits=waits)
            for state, label in STATE_LABELS
            if state not in CLOSED
        ]
        if work
        else [],
        "about_all": _about_all() if work else None,
        "oldest_due": None if due_for is None else words.ago(now - timedelta(seconds=due_for), now),
        "cases": _cases(now) if may("hub.view_reviewcase") else [],
        "connections": _connections(now) if places else [],
        "drains": [
            {
                "row": one,
                "late": now - one.beat_at > late,
                "beat": words.ago(one.beat_at, now),
            }
            for one in Heartbeat.objects.filter(beat_at__gt=now - FORGET).order_by("-beat_at")[:20]
        ]
        if may("hub.view_heartbeat")
        else [],
        "probe_ago": words.ago(whole.at, now) if whole.at else "",
        "probe_late": not whole.well,
        "installation": installation,
        "clock_note": words.in_english(installation.clock_note) if installation else "",
    }


def _paused() -> QuerySet[Connection]:
    """Connections in use that go on only when a person opens them."""
    return Connection.objects.filter(
        retired_at__isnull=True, gate__paused_at__isnull=False, gate__paused_until__isnull=True
    )


def _needs(*, cases: bool, places: bool) -> Needs:
    """What is asked of people; a paused connection and its case count once."""
    paused = _paused()
    named = list(paused.select_related("gate").defer("secrets").order_by("name")) if places else []
    questions = 0
    if cases:
        mine = Q(subject=Subject.CONNECTION, subject_id__in=[one.pk for one in named])
        open_cases = ReviewCase.objects.filter(closed_at__isnull=True).exclude(mine)
        questions = open_cases.order_by()[: COUNTED + 1].count()
    return Needs(
        min(questions, COUNTED),
        questions > COUNTED,
        len(named),
        tuple((one, standing(one)) for one in named[:NAMED]),
    )


def _tally(state: str, label: Any, *, waits: bool) -> Tally:
    count = unfinished(state)[: COUNTED + 1].count()
    means = words.state_means(state, doubt=False)
    if waits and state in BY_ITSELF:
        means += " " + _("What belongs to a paused connection waits for a person.")
    return Tally(state, label, means, min(count, COUNTED), count > COUNTED)


def _about_all() -> int:
    """About how many operations there are; an exact count of ten million takes seconds."""
    if is_postgres():
        found = rows(
            "SELECT reltuples::bigint FROM pg_class WHERE oid = %s::regclass",
            [Operation._meta.db_table],
        )
        if found and found[0][0] >= 1_000:
            return int(found[0][0])
        return Operation.objects.order_by().values("pk")[:COUNTED].count()
    return int(Operation.objects.order_by("-pk").values_list("pk", flat=True).first() or 0)


def _cases(now: datetime) -> list[dict[str, Any]]:
    """Open cases by reason, the oldest first."""
    found = (
        ReviewCase.objects.filter(closed_at__isnull=True)
        .order_by()
        .values("reason_code")
        .annotate(number=Count("pk"), oldest=Min("opened_at"))
        .order_by("oldest")
    )
    return [
        {
            **one,
            "words": words.reason(one["reason_code"]),
            "oldest": words.ago(one["oldest"], now),
        }
        for one in found
    ]


def _connections(now: datetime) -> list[dict[str, Any]]:
    """Each connection in use: its gate, its oldest due operation, its last trouble."""
    mine = Operation.objects.filter(connection=OuterRef("pk")).order_by()
    due = mine.filter(CLAIMABLE_NOW, next_at__lte=now).order_by("next_at", "pk")
    troubled = ReviewCase.objects.filter(
        connection=OuterRef("pk"), closed_at__isnull=True
    ).order_by("-opened_at", "-pk")
    found = (
        Connection.objects.filter(retired_at__isnull=True)
        .select_related("tenant", "gate")
        .defer("secrets")
        .annotate(
            due_since=Subquery(due.values("next_at")[:1]),
            trouble_code=Subquery(troubled.values("reason_code")[:1]),
            trouble_at=Subquery(troubled.values("opened_at")[:1]),
        )
        .order_by("name")
    )
    return [
        {
            "row": one,
            "gate": standing(one).words,
            "due_for": words.ago(one.due_since, now) if one.due_since else "",
            "trouble": words.reason(one.trouble_code) if one.trouble_code else "",
            "trouble_ago": words.ago(one.trouble_at, now) if one.trouble_at else "",
        }
        for one in found
    ]
