"""The overview: does everything move, what waits, for whom, since when, why.

What moves on it is one fragment, made again for whoever loads the page and kept for a few seconds
for those whose page asks for it by itself.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.core.cache import cache
from django.db.models import CharField, Count, IntegerField, Min, OuterRef, QuerySet, Subquery
from django.db.models.functions import Cast, Substr
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.timezone import localtime
from django.utils.translation import get_language, ngettext
from django.utils.translation import gettext as _

from hub import access, health
from hub.indexes import CLAIMABLE_NOW, TO_LOOK_AT, Literal, unfinished
from hub.models import Connection, Heartbeat, Installation, Operation, ReviewCase
from hub.models.gate import Breaker
from hub.models.operation import CLOSED, STATE_LABELS
from hub.models.review import Subject
from hub.panel import words
from hub.panel.connection import Standing, gate_of, standing
from hub.sql import database_now, is_postgres, rows
from hub.states import State

COUNTED = 100_000
"""Rows of one state that are counted; more are shown as "100,000+"."""
COUNTED_EACH = 10_000
"""The same for one system."""
NEWEST = 20_000
"""Operations, the newest, among which those of the last day are counted."""
CAUSES = 8
"""Causes that are named."""
KEPT = 4
"""Seconds for which a fragment serves those whose page asks by itself."""
DAY_KEPT = 60
"""Seconds for which what happened in the last day is not counted again."""
EVERY = 10
"""Seconds between two questions of an open page."""
FORGET = timedelta(days=1)
LONG_PAUSE = timedelta(hours=1)
HOURS = 24
BY_ITSELF = frozenset({State.PENDING, State.RETRY, State.UNCERTAIN, State.ACCEPTED})
"""States in which the hub goes on by itself, as long as the connection is open."""
FIGURES = frozenset({State.PENDING, State.UNCERTAIN, State.FAILED, State.REVIEW})
"""States that have a figure of their own; the others share a line."""
_ASKED = (
    "hub.view_operation",
    "hub.view_reviewcase",
    "hub.view_connection",
    "hub.view_heartbeat",
    "hub.add_connection",
)


@dataclass(frozen=True, slots=True)
class Tally:
    """How many operations are in a state."""

    state: str
    label: Any
    means: str
    count: int
    more: bool


@dataclass(frozen=True, slots=True)
class Figure:
    """One of the six: a name, what it says, where it leads, how it looks."""

    name: str
    says: str
    note: str = ""
    address: str = ""
    look: str = ""


@dataclass(frozen=True, slots=True)
class Said:
    """The sentence at the top, and whether it is good news ("good", "warn", "bad")."""

    text: str
    look: str


@dataclass(frozen=True, slots=True)
class Cause:
    """Open cases of one reason at one system."""

    reason: str
    words: str
    connection: int
    system: str
    number: int
    since: datetime
    oldest: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One hour of a sparkline, in its own units: 24 by 20."""

    left: int
    top: int
    height: int
    hour: str
    number: int


@dataclass(slots=True)
class Day:
    """What was confirmed in each of the last hours, and what failed, by connection."""

    hours: dict[int, list[int]] = field(default_factory=dict)
    failed: dict[int, int] = field(default_factory=dict)
    more: bool = False
    """Not everything of the day was among the rows that were counted."""


@dataclass(frozen=True, slots=True)
class System:
    """One line of the table of systems."""

    row: Connection
    sign: str
    says: str
    look: str
    stands: Standing
    waiting: str
    oldest: str
    uncertain: str
    to_decide: int
    done: int
    failed: int
    more: bool
    bars: tuple[Bar, ...]
    told: str
    """The bars in a sentence."""


# --- pages ----------------------------------------------------------------------------------------


def page(request: HttpRequest) -> dict[str, Any]:
    """What the page takes; its fragment is made anew, so that a reload always shows what is."""
    note = Installation.objects.filter(pk=1).values_list("clock_note", flat=True).first()
    return {"live": _made(request), "every": EVERY, "clock_note": words.in_english(note or "")}


def live(request: HttpRequest) -> HttpResponse:
    """The fragment for a page that is open; whoever comes by an address gets the page itself."""
    if "HX-Request" not in request.headers:
        return redirect("admin:index")
    response = HttpResponse(cache.get(_name(request)) or _made(request))
    response["Cache-Control"] = "no-store"
    return response


def _made(request: HttpRequest) -> str:
    text = render_to_string("hub/overview_live.html", figures(request), request)
    cache.set(_name(request), text, KEPT)
    return text


def _name(request: HttpRequest) -> str:
    """The same for all who see the same in the same language, and for nobody else."""
    user = request.user
    seen = access.sight(user)
    parts = [
        get_language(),
        seen.all,
        sorted(seen.tenants),
        sorted(seen.connections),
        [right for right in _ASKED if user.has_perm(right)],
    ]
    return "hub-overview-" + hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def figures(request: HttpRequest) -> dict[str, Any]:
    """What the fragment shows this person, by a constant number of queries that small indexes
    answer.

    Everybody who may enter sees whether work moves; each part takes the permission for its list,
    and shows and counts what is in their scope.
    """
    now, user = database_now(), request.user
    may = user.has_perm
    whole_hub = access.sees_all(user)
    work, deciding = may("hub.view_operation"), may("hub.view_reviewcase")
    places = may("hub.view_connection")
    due_for = health.oldest_due(now, among=None if whole_hub else access.sight(user).connections)
    whole = health.exchange(now)
    causes = _causes(user, now) if deciding else []
    day = _day(user, now) if work else Day()
    systems = _systems(user, now, causes, day, work=work) if places else []
    stopped = [one for one in systems if one.stands.opens]
    waits = bool(stopped) if places else _paused(user).exists()
    tallies = [
        _tally(user, state, label, waits=waits)
        for state, label in STATE_LABELS
        if work and state not in CLOSED
    ]
    oldest = None if due_for is None else words.ago(now - timedelta(seconds=due_for), now, depth=1)
    # A paused connection and the case about it are one thing to do.
    paused = {one.row.pk for one in stopped}
    questions = sum(one.number for one in causes)
    about_paused = (
        _open_cases(user).filter(subject=Subject.CONNECTION, subject_id__in=paused).count()
        if paused and deciding
        else 0
    )
    return {
        "at": now,
        "may_see_work": work,
        "may_see_cases": deciding,
        "may_see_connections": places,
        "may_see_workers": may("hub.view_heartbeat"),
        "may_see_all": whole_hub,
        "sees_something": whole_hub or bool(access.sight(user).connections),
        "may_connect": may("hub.add_connection"),
        "said": said(
            probe_age=whole.age,
            probe_ago=words.ago(whole.at, now, depth=1) if whole.at else "",
            troubled=[str(one.row) for one in systems if one.look == "bad"],
            systems=len(systems) if places else None,
            questions=questions - about_paused,
        ),
        "six": _six(tallies, oldest, questions, day) if work or deciding else _six([], oldest),
        "tallies": tallies,
        "others": [one for one in tallies if one.count and one.state not in FIGURES],
        "about_all": _about_all(user) if work else None,
        "stopped": stopped,
        "questions": questions - about_paused,
        "systems": systems,
        "hours": _hours(systems),
        "causes": sorted(causes, key=lambda one: (-one.number, one.since))[:CAUSES],
        "causes_more": max(0, len(causes) - CAUSES),
        "machine": _machine(now) if may("hub.view_heartbeat") else None,
        "probe_ago": words.ago(whole.at, now, depth=1) if whole.at else "",
        "probe_late": not whole.well,
    }


# --- the sentence ---------------------------------------------------------------------------------


def said(
    *,
    probe_age: float | None,
    probe_ago: str,
    troubled: Collection[str],
    systems: int | None,
    questions: int,
) -> Said:
    """One sentence a manager understands: what is worst comes first.

    `systems` is None for who may not see them.
    """
    if systems == 0:
        return Said(_("Nothing is connected yet."), "good")
    if probe_age is None:
        return Said(
            _("No end-to-end test has passed yet: whether work moves is not known."), "warn"
        )
    if probe_age > health.EXCHANGE_LIMIT:
        text = _("Nothing may be moving: the last end-to-end test passed %(age)s ago.")
        return Said(text % {"age": probe_ago}, "bad")
    if troubled:
        first = sorted(troubled)[0]
        text = ngettext(
            "%(name)s is stopped; the rest moves.",
            "%(name)s and %(more)d more are stopped; the rest moves.",
            len(troubled) if len(troubled) == 1 else 2,
        )
        return Said(text % {"name": first, "more": len(troubled) - 1}, "bad")
    if questions:
        text = ngettext(
            "Everything moves. %(count)d case waits for a person.",
            "Everything moves. %(count)d cases wait for a person.",
            questions,
        )
        return Said(text % {"count": questions}, "warn")
    text = _("Everything moves. Last end-to-end test %(age)s ago.")
    return Said(text % {"age": probe_ago}, "good")


# --- the six figures ------------------------------------------------------------------------------


def _six(
    tallies: Collection[Tally], oldest: str | None, questions: int = 0, day: Day | None = None
) -> list[Figure]:
    operations = reverse("admin:hub_operation_changelist")
    by_state = {one.state: one for one in tallies}

    def of_state(state: State, look: str = "") -> Figure:
        one = by_state[state]
        return Figure(
            str(one.label),
            _capped(one.count, one.more),
            one.means,
            f"{operations}?state={state}",
            look if one.count else "",
        )

    found = [
        Figure(_("oldest due"), oldest or "–", _("how long due work has waited for a worker")),
    ]
    if by_state:
        found += [of_state(State.PENDING), of_state(State.UNCERTAIN)]
    if day is not None:
        found.append(
            Figure(
                _("to decide"),
                str(questions),
                _("cases that wait for a person"),
                reverse("admin:hub_reviewcase_changelist"),
                "warn" if questions else "",
            )
        )
    if by_state and day is not None:
        found.append(of_state(State.FAILED, "bad"))
        done = sum(map(sum, day.hours.values()))
        failed = sum(day.failed.values())
        note = ngettext("done; %(count)d failed", "done; %(count)d failed", failed)
        found.append(
            Figure(
                _("last 24 hours"),
                _capped(done, day.more),
                note % {"count": failed},
                f"{operations}?state=confirmed",
            )
        )
    return found


def _capped(count: int, more: bool) -> str:
    return f"{count:,}".replace(",", "\u202f") + ("+" if more else "")


def _tally(user: Any, state: str, label: Any, *, waits: bool) -> Tally:
    count = access.visible(user, unfinished(state))[: COUNTED + 1].count()
    means = words.state_means(state, doubt=False)
    if waits and state in BY_ITSELF:
        means += " " + _("What belongs to a paused connection waits for a person.")
    return Tally(state, label, means, min(count, COUNTED), count > COUNTED)


def _about_all(user: Any) -> int:
    """About how many operations there are; an exact count of ten million takes seconds."""
    if not access.sees_all(user):
        mine = access.visible(user, Operation.objects.order_by())
        return mine.values("pk")[:COUNTED].count()
    if is_postgres():
        found = rows(
            "SELECT reltuples::bigint FROM pg_class WHERE oid = %s::regclass",
            [Operation._meta.db_table],
        )
        if found and found[0][0] >= 1_000:
            return int(found[0][0])
        return Operation.objects.order_by().values("pk")[:COUNTED].count()
    return int(Operation.objects.order_by("-pk").values_list("pk", flat=True).first() or 0)


# --- cases ----------------------------------------------------------------------------------------


def _paused(user: Any) -> QuerySet[Connection]:
    """Connections in use that go on only when a person opens them."""
    found = Connection.objects.filter(
        retired_at__isnull=True, gate__paused_at__isnull=False, gate__paused_until__isnull=True
    )
    return access.visible(user, found)


def _open_cases(user: Any) -> QuerySet[ReviewCase]:
    return access.visible(user, ReviewCase.objects.filter(closed_at__isnull=True)).order_by()


def _causes(user: Any, now: datetime) -> list[Cause]:
    """Open cases by reason and system."""
    found = (
        _open_cases(user)
        .values("reason_code", "connection")
        .annotate(
            number=Count("pk"),
            since=Min("opened_at"),
            label=Min("connection__label"),
            name=Min("connection__name"),
        )
    )
    return [
        Cause(
            one["reason_code"],
            words.reason(one["reason_code"]),
            one["connection"],
            one["label"] or one["name"],
            one["number"],
            one["since"],
            words.ago(one["since"], now, depth=1),
        )
        for one in found
    ]


# --- the last day ---------------------------------------------------------------------------------


def _day(user: Any, now: datetime) -> Day:
    """What was done and what failed in the last day, of what a user sees; counted once a minute.

    No index leads to what was confirmed when: one would be written with every confirmation. The
    newest rows are read instead.
    """
    seen = access.sight(user)
    parts = [seen.all, sorted(seen.connections)]
    name = "hub-day-" + hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    found: Day | None = cache.get(name)
    if found is None:
        found = _counted_day(user, now)
        cache.set(name, found, DAY_KEPT)
    return found


def _counted_day(user: Any, now: datetime) -> Day:
    since = now - timedelta(hours=HOURS)
    day = Day()
    failed = access.visible(user, Operation.objects.filter(pk__in=unfinished(State.FAILED)))
    for one in (
        failed.filter(state_since__gte=since).values_list("connection").annotate(n=Count("pk"))
    ):
        day.failed[one[0]] = one[1]
    mine = access.visible(user, Operation.objects.all())
    last = mine.order_by("-pk").values_list("pk", flat=True).first()
    if last is None:
        return day
    if last > NEWEST:
        first = (
            mine.filter(pk__gt=last - NEWEST).order_by("pk").values_list("created_at", flat=True)
        )
        day.more = first[0] > since
    # The first 13 characters of a moment are its hour, on both databases, whose time is UTC.
    counted = (
        mine.filter(pk__gt=last - NEWEST, confirmed_at__gte=since)
        .order_by()
        .annotate(hour=Substr(Cast("confirmed_at", CharField()), 1, 13))
        .values_list("connection", "hour")
        .annotate(n=Count("pk"))
    )
    hours: dict[int, dict[str, int]] = defaultdict(dict)
    for connection, hour, number in counted:
        hours[connection][str(hour).replace("T", " ")] = number
    names = [f"{now - timedelta(hours=back):%Y-%m-%d %H}" for back in range(HOURS - 1, -1, -1)]
    before = f"{since:%Y-%m-%d %H}"
    for connection, told in hours.items():
        line = [told.get(one, 0) for one in names]
        # What is left of the hour the day began in belongs to its first bar.
        line[0] += told.get(before, 0)
        day.hours[connection] = line
    return day


HIGH = 20


def bars(line: Collection[int], now: datetime) -> tuple[Bar, ...]:
    """A line of hours, the last of them the present one, as bars of a sparkline."""
    most = max(line, default=0)
    found = []
    for place, number in enumerate(line):
        height = max(2, round(HIGH * number / most)) if number else 1
        hour = localtime(now - timedelta(hours=len(line) - 1 - place))
        found.append(Bar(place * 4, HIGH - height, height, f"{hour:%H}:00", number))
    return tuple(found)


# --- systems --------------------------------------------------------------------------------------


class _CountUpTo(Subquery):
    """How many rows a sliced subquery has."""

    template = "(SELECT COUNT(*) FROM (%(subquery)s) AS counted)"
    output_field = IntegerField()


def _systems(
    user: Any, now: datetime, causes: Collection[Cause], day: Day, *, work: bool
) -> list[System]:
    """Each connection in use: its gate, what waits, since when, what is in doubt, its day."""
    mine = Operation.objects.filter(connection=OuterRef("pk")).order_by()
    claimable = mine.filter(CLAIMABLE_NOW)
    parked = mine.filter(state__in=[Literal("pending"), Literal("retry")], parked=True)
    looked_at = mine.filter(TO_LOOK_AT).filter(state=Literal("uncertain"))
    due = claimable.filter(next_at__lte=now).order_by("next_at", "pk")
    found = (
        access.visible(user, Connection.objects.filter(retired_at__isnull=True))
        .select_related("tenant", "gate")
        .defer("secrets")
        .annotate(
            claimable=_CountUpTo(claimable.values("pk")[: COUNTED_EACH + 1]),
            parked_behind=_CountUpTo(parked.values("pk")[: COUNTED_EACH + 1]),
            in_doubt=_CountUpTo(looked_at.values("pk")[: COUNTED_EACH + 1]),
            due_since=Subquery(due.values("next_at")[:1]),
        )
        .order_by("name")
    )
    to_decide: dict[int, int] = defaultdict(int)
    for cause in causes:
        to_decide[cause.connection] += cause.number
    return [_system(one, now, to_decide, day, work=work) for one in found]


def _hours(systems: Collection[System]) -> list[tuple[str, list[tuple[str, int]]]]:
    """The bars of all systems as a table: an hour a line, the newest first."""
    lines = [
        (
            together[0].hour,
            [(str(one.row), bar.number) for one, bar in zip(systems, together, strict=True)],
        )
        for together in zip(*(one.bars for one in systems), strict=True)
    ]
    return lines[::-1]


def _system(
    row: Any, now: datetime, to_decide: Mapping[int, int], day: Day, *, work: bool
) -> System:
    stands = standing(row)
    sign, says, look = _how(row, stands, now)
    waiting = row.claimable + row.parked_behind
    line = day.hours.get(row.pk, [0] * HOURS)
    shown = bars(line, now)
    busiest = max(shown, key=lambda one: one.number)
    done, failed = sum(line), day.failed.get(row.pk, 0)
    told = ngettext(
        "%(count)d done in the last 24 hours; most, %(most)d, in the hour from %(hour)s.",
        "%(count)d done in the last 24 hours; most, %(most)d, in the hour from %(hour)s.",
        done,
    ) % {"count": done, "most": busiest.number, "hour": busiest.hour}
    return System(
        row,
        sign,
        says,
        look,
        stands,
        _capped(min(waiting, COUNTED_EACH), waiting > COUNTED_EACH) if work else "–",
        words.ago(row.due_since, now, depth=1) if row.due_since and work else "",
        _capped(min(row.in_doubt, COUNTED_EACH), row.in_doubt > COUNTED_EACH) if work else "–",
        to_decide.get(row.pk, 0),
        done,
        failed,
        day.more,
        shown,
        told if done else _("Nothing was done in the last 24 hours."),
    )


def _how(row: Connection, stands: Standing, now: datetime) -> tuple[str, str, str]:
    """A sign, a word and a look for how a system stands; the whole is in `stands`."""
    gate = gate_of(row)
    if gate is None or stands.is_open:
        return "●", _("working"), "good"
    if gate.paused_at is not None and (gate.paused_until is None or gate.paused_until > now):
        says = _("paused for %(age)s") % {"age": words.ago(gate.paused_at, now, depth=1)}
        endless = gate.paused_until is None
        # Somebody meant a short pause; an hour without an end was forgotten, or is trouble.
        own = gate.pause_kind == "person" and now - gate.paused_at < LONG_PAUSE
        return "‖", says, "bad" if endless and not own else "warn"
    if gate.breaker != Breaker.CLOSED:
        return "▲", _("stopped by itself"), "bad"
    return "◷", _("asked to wait"), "warn"


# --- the machine ----------------------------------------------------------------------------------


def _machine(now: datetime) -> dict[str, Any]:
    """Who is at work, and when it was last heard of."""
    late = timedelta(seconds=settings.HUB_WATCHDOG_BEAT_AGE)
    found = list(Heartbeat.objects.filter(beat_at__gt=now - FORGET).order_by("-beat_at")[:20])
    return {
        "drains": [
            {"row": one, "late": now - one.beat_at > late, "beat": words.ago(one.beat_at, now)}
            for one in found
        ],
        "alive": sum(now - one.beat_at <= late for one in found),
        "beat": words.ago(found[0].beat_at, now, depth=1) if found else "",
    }
