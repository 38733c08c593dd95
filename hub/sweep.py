"""`sweep()`: lapsed leases, things that have waited too long, doubts inherited or left by a
restore.

Any process may run it at any time, several at once are harmless: every move is one conditional
update (protocol §17). A lapsed `sent` never becomes plainly claimable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction

from hub import cases, claims, gate, moves, remote
from hub.contract import Kind, Lapsed, SafetyClass, Write
from hub.http import boottime
from hub.indexes import UNFINISHED, Literal
from hub.models import Attempt, Gate, Installation, Operation
from hub.models.gate import Breaker
from hub.moves import Settlement, Subject
from hub.policy import Advice, Facts, Verdict, decide, inherit
from hub.redaction import Scrubber
from hub.registry import UnknownAction, UnknownIntegration
from hub.remote import Remote
from hub.sql import database_now, is_postgres, rows
from hub.states import Actor, Purpose, State
from hub.tuning import Tuning

BATCH = 1000
UNPARK_EVERY = 6
"""Sweeps from one look for rows left parked to the next: rare, and it reads all that is parked."""
_NO_SECRETS = Scrubber()


def subject_of(row: Operation) -> Subject:
    """An operation's row as a move needs it."""
    return Subject(
        id=row.pk,
        token=row.lease_token,
        tenant_id=row.tenant_id,
        connection_id=row.connection_id,
        state=State(row.state),
        object_type=row.object_type,
        source_system=row.source_system,
        source_id=row.source_id,
        action=row.action,
        version=row.version,
        attempts=row.attempts,
        repeats=row.repeats,
        lapses=row.lapses,
        looks=row.looks,
        doubt=row.maybe_executed,
        stream=row.stream,
        yields_ref=row.yields_ref,
        remote_ref=row.remote_ref,
        job=row.job,
        reference=row.reference,
    )


def facts_of(row: Operation, action: Write, now: datetime, opened: datetime | None = None) -> Facts:
    """What is known of an operation at rest or in wait; ages count from the gate's last opening if
    that is later.
    """
    since = (
        row.retry_since if row.state == State.RETRY.value and row.retry_since else row.state_since
    )
    if opened is not None and opened > since:
        since = opened

    def ago(moment: datetime | None) -> float | None:
        return None if moment is None else (now - moment).total_seconds()

    return Facts(
        state=State(row.state),
        action=action,
        doubt=row.maybe_executed,
        attempts=row.attempts,
        repeats=row.repeats,
        lapses=row.lapses,
        looks=row.looks,
        age=max(0.0, (now - since).total_seconds()),
        since_last=ago(row.last_byte_at),
        first_sent_ago=ago(row.first_sent_at or row.created_at),
        absent_for=ago(row.absent_since),
        version=row.version,
        restored=row.restored,
        inherited=row.maybe_executed and row.first_sent_at is None and not row.restored,
    )


# From the doubts that are left, which are few, to the creates that wait behind them.
_WAITING_IN_DOUBT = """
SELECT DISTINCT d.connection_id, d.stream FROM hub_operation d
JOIN hub_operation o ON o.connection_id = d.connection_id AND o.stream = d.stream
  AND NOT (o.state IN ('confirmed', 'discarded'))
  AND o.state = 'pending' AND o.yields_ref AND NOT o.doubt_lifted
WHERE d.state = 'discarded' AND d.maybe_executed AND d.yields_ref LIMIT 1000
"""


class Sweeper:
    """Sweeps; remembers only the two clocks it compares, and when it last looked at all that is
    parked.
    """

    def __init__(
        self,
        tuning: Tuning,
        *,
        roll: Callable[[], float] = lambda: 0.5,
        steps: Callable[[str], None] = lambda name: None,
        clock: Callable[[], float] = boottime,
    ) -> None:
        self.tuning = tuning
        self._roll = roll
        self._steps = steps
        self._clock = clock
        self._clocks: tuple[datetime, float] | None = None
        self._unpark_at = -1e9

    def sweep(self, remotes: Mapping[int, Remote], now: Callable[[], datetime]) -> int:
        """Make every move that is due; how many there were. `remotes` are the connections that can
        be used.
        """
        moved = 0
        gate.end_pauses(None if is_postgres() else now())
        self._compare_clocks(now)
        if self._clock() >= self._unpark_at:
            self._unpark_at = self._clock() + UNPARK_EVERY * self.tuning.sweep_every
            moved += claims.unpark_left_behind()
        for work in (
            self._lapsed,
            self._overdue,
            self._dead_keys,
            self._inherited,
            self._older_epoch,
        ):
            for _ in range(20):
                with transaction.atomic():
                    count, full = work(remotes, database_now() if is_postgres() else now())
                moved += count
                if not full:
                    break
        return moved

    # --- one kind each; every one returns how many moved, and whether there may be more ---

    def _lapsed(self, remotes: Mapping[int, Remote], now: datetime) -> tuple[int, bool]:
        """Leases that ran out (rows 3, 6, 9, 10, 12; row 13 for looks)."""
        lapsed = Operation.objects.filter(lease_until__lt=now).order_by("lease_until", "id")
        found = self._rows(lapsed)
        claimed = self._claimed_at(found)
        planned = []
        for row in found:
            self._steps("sweep.row")
            action = self._action(row, remotes)
            if action is None:
                planned.append(self._orphan(row))
                continue
            facts = facts_of(row, action, now)
            last = None
            if row.state == State.SENT.value and row.sent_at is not None:
                # The worker may have been frozen before its last guard, and the copy may still be
                # under way.
                last = (row.sent_at - now).total_seconds() + self.tuning.margin + action.max_send
                if row.lease_until is not None and self._under_other_numbers(
                    row.lease_until, claimed.get((row.pk, row.lease_token)), remotes, row
                ):
                    whole = (row.lease_until - now).total_seconds() - self.tuning.margin
                    last = max(last, whole)
                facts = _at_lapse(facts, -last)
            verdict = decide(facts, Lapsed(), self.tuning.limits, self._roll())
            planned.append(self._planned(row, action, facts, verdict, last=last, lapsed=True))
        return self._make(planned, remotes, now), len(found) == BATCH

    def _claimed_at(self, found: Iterable[Operation]) -> dict[tuple[int, int], datetime]:
        """When those that were sent had been claimed, by operation and token."""
        sent = [row.pk for row in found if row.state == State.SENT.value]
        if not sent:
            return {}
        opened = Attempt.objects.filter(operation_id__in=sent, settled_at__isnull=True)
        return {
            (pk, token): at
            for pk, token, at in opened.values_list("operation_id", "token", "claimed_at")
        }

    def _under_other_numbers(
        self,
        until: datetime,
        claimed: datetime | None,
        remotes: Mapping[int, Remote],
        row: Operation,
    ) -> bool:
        """Whether a lease was measured by another `max_send` than the one in force.

        Its worker may have sent for longer than today's numbers say; but never past the lease.
        """
        ready = remotes.get(row.connection_id)
        if ready is None or claimed is None:
            return True
        lease = (until - claimed).total_seconds()
        return abs(lease - self.tuning.lease(ready.longest_send)) > 0.5

    def _overdue(self, remotes: Mapping[int, Remote], now: datetime) -> tuple[int, bool]:
        """What has waited too long (rows 16, 19). A paused gate stops the clock."""
        limits = self.tuning.limits
        moved = 0
        gates = {
            g.pk: g for g in Gate.objects.filter(paused_at__isnull=True, breaker=Breaker.CLOSED)
        }
        oldest = {
            State.UNCERTAIN: limits.uncertain_max,
            State.ACCEPTED: limits.accepted_max,
            State.RETRY: limits.max_age,
        }
        for state, most in oldest.items():
            found = self._rows(
                Operation.objects.filter(
                    UNFINISHED,
                    state=Literal(state.value),
                    state_since__lt=now - timedelta(seconds=most),
                    lease_until__isnull=True,
                    connection_id__in=[
                        key
                        for key, one in gates.items()
                        if one.opened_at is None or one.opened_at < now - timedelta(seconds=most)
                    ],
                ).order_by("id")
            )
            planned = []
            for row in found:
                action = self._action(row, remotes)
                if action is None:
                    continue
                facts = facts_of(row, action, now, gates[row.connection_id].opened_at)
                verdict = _too_long(facts, self.tuning)
                planned.append(self._planned(row, action, facts, verdict))
            moved += self._make(planned, remotes, now)
        return moved, False

    def _dead_keys(self, remotes: Mapping[int, Remote], now: datetime) -> tuple[int, bool]:
        """Repeats whose key may have been forgotten over there (rows 19, 23)."""
        found = self._rows(
            Operation.objects.filter(
                repeat_until__lt=now, state=State.RETRY.value, maybe_executed=True
            ).order_by("repeat_until", "id")
        )
        planned = []
        for row in found:
            action = self._action(row, remotes)
            if action is None:
                continue
            facts = facts_of(row, action, now)
            verdict = decide(facts, Lapsed(), self.tuning.limits, self._roll())
            if verdict.state is State.RETRY:
                continue
            planned.append(self._planned(row, action, facts, verdict, step=1))
        return self._make(planned, remotes, now), False

    def _inherited(self, remotes: Mapping[int, Remote], now: datetime) -> tuple[int, bool]:
        """Creates of a stream whose earlier create may have happened: they start in doubt (row 22,
        §12).
        """
        planned = []
        for connection_id, stream in rows(_WAITING_IN_DOUBT):
            row = self._first_in_line(connection_id, stream)
            if (
                row is None
                or row.state != State.PENDING.value
                or not row.yields_ref
                or row.doubt_lifted
            ):
                continue
            action = self._action(row, remotes)
            if action is None:
                continue
            doubtful = (
                Operation.objects.filter(
                    connection_id=row.connection_id,
                    stream=row.stream,
                    state=State.DISCARDED.value,
                    maybe_executed=True,
                    yields_ref=True,
                )
                .order_by("-last_byte_at")
                .first()
            )
            last = doubtful.last_byte_at if doubtful is not None else None
            facts = facts_of(row, action, now)
            verdict = inherit(
                facts,
                self.tuning.limits,
                self._roll(),
                why="An earlier operation that would have created it may have happened.",
            )
            planned.append(
                self._planned(
                    row,
                    action,
                    facts,
                    verdict,
                    last=0.0 if last is None else min(0.0, (last - now).total_seconds()),
                    step=1,
                )
            )
        return self._make(planned, remotes, now), False

    def _older_epoch(self, remotes: Mapping[int, Remote], now: datetime) -> tuple[int, bool]:
        """After a restore: markers may have been forgotten, so what is unfinished goes as U, one
        per stream (§17).
        """
        mine = Installation.current()
        if mine.restored_at is None:
            return 0, False
        older = (
            Operation.objects.filter(epoch__lt=mine.epoch)
            .exclude(state__in=[State.CONFIRMED.value, State.DISCARDED.value, State.FAILED.value])
            .exclude(state=State.REVIEW.value)
        )
        planned = []
        streams = older.values("connection_id", "stream").distinct()[:BATCH]
        for one in streams:
            row = self._first_in_line(one["connection_id"], one["stream"])
            if row is None or row.epoch >= mine.epoch or row.lease_until is not None:
                continue
            action = self._action(row, remotes)
            if action is None:
                continue
            facts = facts_of(row, action, now)
            verdict = self._after_restore(row, facts)
            last = (mine.restored_at - now).total_seconds()
            planned.append(self._planned(row, action, facts, verdict, last=last, step=1))
        made = self._make(planned, remotes, now)
        if planned:
            Operation.objects.filter(pk__in=[p.subject.id for p in planned]).update(
                epoch=mine.epoch, restored=True
            )
        return made, len(planned) == BATCH

    def _after_restore(self, row: Operation, facts: Facts) -> Verdict:
        if row.state == State.ACCEPTED.value:
            return Verdict(
                State.ACCEPTED, "restored", "A backup was restored; the job is asked for again."
            )
        return inherit(
            facts,
            self.tuning.limits,
            self._roll(),
            why="A backup was restored: whether it was sent may have been forgotten.",
            own_key=True,
        )

    def look_instead(self, row: Operation, now: datetime) -> None:
        """A late result names an object while the operation waits to be sent again (row 23)."""
        action = self._action(row, {})
        if action is not None and not action.can_look:
            if action.safety is SafetyClass.A:
                return  # its key absorbs the repeat and brings the same object
            self._to_review_in_doubt(row, now)
            return
        subject = subject_of(row)
        verdict = Verdict(
            State.UNCERTAIN,
            "named_by_late_result",
            "A late result names an object; it is looked at before anything is sent.",
            doubt=True,
        )
        moves.settle(
            [
                Settlement(
                    subject,
                    verdict,
                    Actor.WORKER,
                    last_byte=None,
                    token_step=1,
                )
            ],
            now,
        )

    def doubt_again(self, row: Operation, now: datetime) -> bool:
        """A late result names an object of an operation at rest that was not in doubt: now it is
        (row 23).

        False when another operation holds the stream: then only the evidence stays.
        """
        if row.state == State.DISCARDED.value:
            return bool(
                Operation.objects.filter(
                    pk=row.pk, state=State.DISCARDED.value, lease_token=row.lease_token
                ).update(maybe_executed=True)
            )
        return self._to_review_in_doubt(row, now)

    def _to_review_in_doubt(self, row: Operation, now: datetime) -> bool:
        verdict = Verdict(
            State.REVIEW,
            "named_by_late_result",
            "A late result names an object: it did happen, after all.",
            doubt=True,
            advice=Advice.LINK,
        )
        move = Settlement(subject_of(row), verdict, Actor.WORKER, token_step=1)
        try:
            with transaction.atomic():
                made = moves.settle([move], now)
        except IntegrityError:
            return False  # C2: another operation of the stream is under way
        if row.pk in made.ids:
            cases.follow(move, _NO_SECRETS, now)
        return row.pk in made.ids

    # --- parts ---

    def _rows(self, query: Any) -> list[Operation]:
        if is_postgres():
            query = query.select_for_update(skip_locked=True, of=("self",))
        return list(
            query.defer("payload").select_related("connection__tenant", "connection__gate")[:BATCH]
        )

    def _action(self, row: Operation, remotes: Mapping[int, Remote]) -> Write | None:
        ready = remotes.get(row.connection_id)
        try:
            if ready is not None:
                return ready.write(row.action)
            # Its credentials may not open just now; what the action declares needs none.
            return remote.declared(row.connection, row.action)
        except (UnknownAction, UnknownIntegration):
            return None

    def _orphan(self, row: Operation) -> Settlement:
        """A lapsed lease of an operation whose connection or code is gone: a person has to see to
        it.
        """
        doubt = row.maybe_executed or row.state in (State.SENT.value, State.ACCEPTED.value)
        verdict = Verdict(
            State.REVIEW if row.state != State.RUNNING.value or doubt else State.PENDING,
            "code_missing",
            "The worker was lost, and the connection or the action's code is not usable.",
            doubt=doubt,
            adds_lapse=True,
        )
        return self._settlement(row, verdict, Kind.COMMAND, last=None, step=1, lapsed=True)

    def _first_in_line(self, connection_id: int, stream: str) -> Operation | None:
        """The lowest open operation of a stream, if no other holds the stream."""
        waiting = list(
            Operation.objects.filter(connection_id=connection_id, stream=stream)
            .exclude(state__in=[State.CONFIRMED.value, State.DISCARDED.value, State.FAILED.value])
            .order_by("version", "id")[:50]
        )
        waiting = [row for row in waiting if row.state != State.REVIEW.value or row.maybe_executed]
        if not waiting:
            return None
        first = waiting[0]
        if any(row.stream_busy and row.pk != first.pk for row in waiting):
            return None
        return first

    def _planned(
        self,
        row: Operation,
        action: Write,
        facts: Facts,
        verdict: Verdict,
        *,
        last: float | None = None,
        lapsed: bool = False,
        step: int = 1,
    ) -> Settlement:
        alive = None
        if verdict.state is State.RETRY and verdict.doubt and action.key_ttl is not None:
            if action.safety in (SafetyClass.A, SafetyClass.A_LOOK):
                used = (facts.first_sent_ago or 0.0) + action.max_send + (action.max_exec or 0.0)
                alive = action.key_ttl * 0.9 - used
        return self._settlement(
            row, verdict, action.kind, last=last, step=step, lapsed=lapsed, alive=alive
        )

    def _settlement(
        self,
        row: Operation,
        verdict: Verdict,
        kind: Kind,
        *,
        last: float | None,
        step: int,
        lapsed: bool,
        alive: float | None = None,
    ) -> Settlement:
        tried = None
        if row.lease_until is not None:
            purpose = (
                Purpose.SEND
                if row.state in (State.RUNNING.value, State.SENT.value)
                else (Purpose.POLL if row.state == State.ACCEPTED.value else Purpose.CONSULT)
            )
            left = "maybe" if row.state == State.SENT.value else ""
            tried = moves.Tried(purpose, left=left)
        return Settlement(
            subject_of(row),
            verdict,
            Actor.SWEEP,
            tried,
            last_byte=last,
            kind=kind,
            alive=alive,
            token_step=step,
            lapsed=lapsed,
            who="sweep",
        )

    def _make(self, planned: list[Settlement], remotes: Mapping[int, Remote], now: datetime) -> int:
        if not planned:
            return 0
        made = moves.settle(planned, now)
        for move in planned:
            if move.subject.id not in made.ids:
                continue
            ready = remotes.get(move.subject.connection_id)
            cases.follow(move, ready.scrubber if ready is not None else _NO_SECRETS, now)
            cases.note(
                move.subject.id,
                "sweep",
                move.verdict.text,
                actor="sweep",
                now=now,
                token=move.subject.token,
            )
        return len(made.ids)

    def _compare_clocks(self, now: Callable[[], datetime]) -> None:
        """A step of the database's clock cuts waits short: noticed against the monotonic clock (A4,
        §17).
        """
        moment, clock = (database_now() if is_postgres() else now()), self._clock()
        before, self._clocks = self._clocks, (moment, clock)
        if before is None:
            return
        drift = (moment - before[0]).total_seconds() - (clock - before[1])
        if abs(drift) > self.tuning.margin:
            Installation.objects.filter(pk=1).update(
                clock_jumped_at=moment,
                clock_note=(
                    f"The database's clock stepped by {drift:+.1f} s; check its time service (A4)."
                ),
            )


def _at_lapse(facts: Facts, since: float) -> Facts:
    return replace(facts, since_last=since)


def _too_long(facts: Facts, tuning: Tuning) -> Verdict:
    """Rows 16 and 19: it has waited too long, so a person takes over."""
    text = {
        State.UNCERTAIN: "It could not be found out in time.",
        State.ACCEPTED: "The job has not ended in time.",
        State.RETRY: "It has been tried for too long.",
    }[facts.state]
    # A job that is slow may still end over there: sending it anew would start a second one.
    doubt = facts.doubt or facts.state is State.ACCEPTED
    return Verdict(
        State.REVIEW,
        "undecided" if facts.state is State.UNCERTAIN else "exhausted",
        text,
        doubt=doubt,
        advice=Advice.LOOK_AGAIN if doubt else Advice.RETRY,
        assumption="A3" if facts.state is State.UNCERTAIN and facts.action.max_exec is None else "",
    )
