"""Settling: what came back is stored, and what follows from it, in one transaction per batch.

A batch that fails is settled again one by one, so that one operation's fault never costs the others
their result; a result that came too late is evidence and settles nothing (protocol §6.6, §6.7).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import DatabaseError, DataError, IntegrityError, InterfaceError, transaction

from hub import cases, gate, moves, outbox, remote
from hub.claims import Claimed
from hub.contract import Candidate as SeenCandidate
from hub.contract import Done, Seen
from hub.models import Operation
from hub.models.gate import PauseKind
from hub.models.review import Subject as CaseSubject
from hub.policy import Advice, Breath, Halt, Verdict
from hub.redaction import Scrubber
from hub.signals import confirmed
from hub.sql import is_postgres, rows
from hub.states import Actor, State
from hub.sweep import Sweeper
from hub.tuning import Tuning

log = logging.getLogger("hub.delivery")
_NO_SECRETS = Scrubber()
_COMES_BACK = frozenset({State.PENDING, State.RETRY, State.UNCERTAIN, State.ACCEPTED})
_NEEDS_A_CASE = frozenset({State.FAILED, State.REVIEW})
_IN_FLIGHT = frozenset({State.SENT, State.UNCERTAIN, State.ACCEPTED})
_LATE = "late_result"
_NAMES = "remote id "
"""What evidence of a late result begins with when it names an object."""
_UNSTORABLE = (DataError, ValueError, TypeError, OverflowError, RecursionError)
"""What driver or database raise over a value: the fault of one result, not of its batch."""


@dataclass(slots=True)
class Result:
    """One operation on its way back: what was seen of it, and the move that follows."""

    item: Claimed
    move: moves.Settlement
    seen: Seen | None = None
    replace_with: str = ""
    """The action of the operation that takes its place (protocol §13)."""
    lost: str = ""
    again: bool = False
    """It was handed in before, and the fate of that commit is unknown."""


class FollowUpFailed(Exception):
    """Local code that listens for confirmations raised."""


class Settler:
    """Stores results; used by the desk's thread alone.

    `guarded` runs database work that may fail as a whole and says whether it held; `reconnect`
    replaces a broken connection. `soonest` is told after how many seconds something falls due
    again, `ring` that something has.
    """

    def __init__(
        self,
        *,
        worker: str,
        tuning: Tuning,
        remotes: Mapping[int, remote.Remote],
        sweeper: Sweeper,
        now: Callable[[], datetime],
        steps: Callable[[str], None],
        guarded: Callable[[Callable[[], Any]], bool],
        reconnect: Callable[[], None],
        ring: Callable[[], None],
        soonest: Callable[[float], None],
    ) -> None:
        self.worker = worker
        self.tuning = tuning
        self.settled = 0
        self.waiting: deque[Result] = deque()
        self._remotes = remotes
        self._sweeper = sweeper
        self._now = now
        self._steps = steps
        self._guarded = guarded
        self._reconnect = reconnect
        self._ring = ring
        self._soonest = soonest
        self._failing: set[int] = set()

    def failing(self, connection_ids: set[int]) -> None:
        """These connections have failures counted: a good answer sets their count back."""
        self._failing = connection_ids

    def settle_waiting(self) -> None:
        batch = [self.waiting.popleft() for _ in range(min(len(self.waiting), 200))]
        self._steps("settle.before")
        try:
            self._settle(batch)
            self._steps("settle.committed")
            return
        except (
            DatabaseError,
            InterfaceError,
            moves.MappingTaken,
            FollowUpFailed,
            *_UNSTORABLE,
        ) as error:
            log.info("drain %s: batch of %d settled one by one: %s", self.worker, len(batch), error)
            ones = (IntegrityError, moves.MappingTaken, FollowUpFailed, *_UNSTORABLE)
            whole = not isinstance(error, ones)
        if whole and not self._guarded(self._reconnect):
            for one in batch:
                one.again = True
            self.waiting.extendleft(reversed(batch))
            return
        for one in batch:
            one.again = one.again or whole
            self._settle_alone(one)

    def _settle_alone(self, one: Result) -> None:
        """One operation's fault never costs the others their result (protocol §6.6)."""
        for attempt in (1, 2):
            try:
                self._settle([one])
                return
            except (
                moves.MappingTaken,
                IntegrityError,
                FollowUpFailed,
                *_UNSTORABLE,
            ) as error:
                if attempt == 1 and isinstance(error, FollowUpFailed):
                    continue
                self._settle_to_review(one, error)
                return
            except (DatabaseError, InterfaceError) as error:
                if attempt == 2:
                    log.error(
                        "operation %s: its result could not be stored (%s); its lease will lapse",
                        one.item.id,
                        str(error).strip(),
                    )
                    return
                one.again = True
                self._guarded(self._reconnect)

    def _settle_to_review(self, one: Result, error: Exception) -> None:
        """What came back contradicts what is stored or cannot be stored, or its follow-up raised
        twice: a person looks at it.
        """
        done, subject = one.move.verdict.done, one.move.subject
        ref = done.remote_ref if done is not None else ""
        if isinstance(error, FollowUpFailed):
            words = self._scrubber(one.item.connection_id).text(str(error))
            code, why = "follow_up_failed", f"what should follow from it failed twice: {words}"
        elif isinstance(error, _UNSTORABLE):
            code, why = "not_storable", "what came back holds a value that cannot be stored."
        else:
            code = "mapping_taken"
            why = "that object, or this entity, is already tied to something else."
        happened = f"It was done (remote id {ref or '?'})" if done is not None else "It was tried"
        text = f"{happened}, but {why}"
        verdict = Verdict(
            State.REVIEW,
            code,
            text,
            one.move.verdict.outcome,
            doubt=subject.doubt or subject.state in _IN_FLIGHT,
            advice=Advice.LINK if ref else Advice.LOOK_AGAIN,
            breath=one.move.verdict.breath,
        )
        kept = moves.Settlement(
            one.move.subject, verdict, Actor.WORKER, one.move.tried, kind=one.move.kind
        )
        seen = one.seen
        one.move = kept
        one.replace_with = ""
        try:
            self._settle([one])
        except (DatabaseError, InterfaceError, moves.MappingTaken, *_UNSTORABLE) as second:
            log.error("operation %s: %s; its lease will lapse", one.item.id, second)
            self._guarded(self._reconnect)
            return
        self._guarded(
            lambda: cases.note(
                one.item.id,
                "follow_up_failed",
                text,
                actor=self.worker,
                token=one.item.token,
                data=f"remote id {ref}" if isinstance(seen, Done) else "",
            )
        )

    def _settle(self, batch: list[Result]) -> None:
        now = self._now()
        with transaction.atomic(durable=True):
            settled = moves.settle([one.move for one in batch], now)
            hit = [one for one in batch if one.item.id in settled.ids]
            missed = [one for one in batch if one.item.id not in settled.ids]
            self._follow(hit, now)
            self._late(missed, now)
        if settled.unparked:
            self._ring()
        self.settled += len(hit)
        soonest = min(
            (r.move.verdict.delay for r in hit if r.move.after in _COMES_BACK), default=None
        )
        if soonest is not None:
            self._soonest(soonest)

    def _follow(self, hit: list[Result], now: datetime) -> None:
        """What else belongs into the transaction of the moves: cases, gates, replacements, local
        follow-ups.
        """
        bad: dict[int, int] = {}
        good: set[int] = set()
        for one in hit:
            verdict, lane = one.move.verdict, one.item.connection_id
            if verdict.breath is Breath.BAD:
                bad[lane] = bad.get(lane, 0) + 1
            elif verdict.breath is Breath.GOOD:
                good.add(lane)
            if verdict.degrade:
                gate.degrade(lane, one.item.action, verdict.degrade, verdict.text, now)
            if one.item.probe:
                self.probed(lane, verdict.breath is Breath.GOOD)
            if one.move.after is State.CONFIRMED:
                if one.item.first_sent_at is not None and one.item.yields_ref:
                    self._compare_with_late(one, now)
                if confirmed.has_listeners():
                    self._tell(one)
                continue
            if one.move.after in _NEEDS_A_CASE:
                cases.follow(one.move, self._scrubber(lane), now)
            if verdict.halt is not Halt.NO:
                self._halt(one, now)
            if verdict.throttle is not None:
                self._throttle(lane, verdict.throttle, now)
            if one.replace_with:
                self._replace(one, now)
        for lane, count in bad.items():
            if lane not in good:
                self._failing.add(lane)
                gate.count_bad(
                    lane,
                    count,
                    threshold=self.tuning.breaker_threshold,
                    pause=self.tuning.breaker_pause,
                    cap=self.tuning.breaker_pause_cap,
                    now=now if not is_postgres() else None,
                )
        for lane in good & self._failing:
            self._failing.discard(lane)
            gate.count_good(lane)

    def probed(self, connection_id: int, well: bool) -> None:
        """Write the end of a breaker's probe."""
        gate.probed(
            connection_id,
            well,
            pause=self.tuning.breaker_pause,
            cap=self.tuning.breaker_pause_cap,
            now=None if is_postgres() else self._now(),
        )
        if well:
            self._ring()

    def _tell(self, one: Result) -> None:
        try:
            confirmed.send(
                sender=Operation, operation_id=one.item.id, remote_ref=one.item.remote_ref
            )
        except DatabaseError:
            raise
        except Exception as error:
            raise FollowUpFailed(f"{type(error).__name__}: {error}") from error
        self._steps("follow_up.committed")

    def _scrubber(self, lane: int) -> Scrubber:
        ready = self._remotes.get(lane)
        return ready.scrubber if ready is not None else _NO_SECRETS

    def _halt(self, one: Result, now: datetime) -> None:
        """Our access or their certificate is no good: the connection pauses, and one case stands
        for all.
        """
        lane, verdict = one.item.connection_id, one.move.verdict
        kind = PauseKind.CERTIFICATE if verdict.halt is Halt.CERTIFICATE else PauseKind.CREDENTIAL
        gate.pause(lane, kind, verdict.text, now=None if is_postgres() else now)
        cases.about_connection(lane, verdict.code, verdict.text)

    def _throttle(self, lane: int, seconds: float, now: datetime) -> None:
        moment = None if is_postgres() else now
        gate.throttle(lane, seconds, moment)
        ready = self._remotes.get(lane)
        if ready is not None:
            gate.slow_down(ready.limits.values(), seconds, moment)

    def _replace(self, one: Result, now: datetime) -> None:
        """An update of nothing becomes a create, a create of what exists an update: same version
        and state.
        """
        ready = self._remotes.get(one.item.connection_id)
        if ready is not None:
            outbox.replace(one.item.id, one.replace_with, ready.write(one.replace_with), now)
            self._ring()

    def _late(self, missed: list[Result], now: datetime) -> None:
        """A result that came too late is evidence and settles nothing; one that names an object is
        followed up (§6.7).
        """
        for one in missed:
            if one.again and rows(
                """SELECT 1 FROM hub_attempt WHERE operation_id = %s AND token = %s AND settled_at
                IS NOT NULL
                  AND NOT stale""",
                [one.item.id, one.item.token],
            ):
                continue  # the commit whose fate was unknown did hold
            ref = one.seen.remote_ref if isinstance(one.seen, Done) else ""
            cases.note(
                one.item.id,
                _LATE,
                f"A result came after the lease was lost: {one.move.verdict.text}",
                actor=self.worker,
                now=now,
                token=one.item.token,
                data=f"{_NAMES}{ref}" if ref else "",
            )
            if ref:
                self._follow_late(one, ref, now)

    def _follow_late(self, one: Result, ref: str, now: datetime) -> None:
        row = Operation.objects.get(pk=one.item.id)
        state = State(row.state)
        if state is State.UNCERTAIN:
            # A look under way may have been begun too early to see it: its verdict must not count.
            Operation.objects.filter(
                pk=row.pk, state=State.UNCERTAIN.value, lease_token=row.lease_token
            ).update(next_at=now, lease_token=row.lease_token + 1, lease_until=None, lease_owner="")
            self._ring()
        elif state in (State.RETRY, State.RUNNING):
            self._sweeper.look_instead(row, now)
            self._ring()
        elif state is State.FAILED or (
            state in (State.REVIEW, State.DISCARDED) and not row.maybe_executed and row.yields_ref
        ):
            self._sweeper.doubt_again(row, now)
            self._name_candidate(row, ref, now)
        elif state is State.REVIEW:
            self._name_candidate(row, ref, now)
        elif state is State.DISCARDED and row.yields_ref:
            self._open_late_effect(row, ref, now)
        elif row.remote_ref and row.remote_ref != ref and row.yields_ref:
            self._open_duplicate(row, ref, now)

    def _compare_with_late(self, one: Result, now: datetime) -> None:
        """A late answer may have come while a repeat was under way, when nothing could be done."""
        row = Operation.objects.get(pk=one.item.id)
        told = row.evidence_set.filter(kind=_LATE).exclude(data="").values_list("data", flat=True)
        for ref in sorted({data.removeprefix(_NAMES) for data in told} - {row.remote_ref}):
            self._open_duplicate(row, ref, now)

    def _open_duplicate(self, row: Operation, ref: str, now: datetime) -> None:
        cases.open_case(
            CaseSubject.DUPLICATE,
            row.pk,
            tenant_id=row.tenant_id,
            connection_id=row.connection_id,
            operation_id=row.pk,
            reason_code="late_duplicate",
            summary=(
                f"A late answer names object {ref}, but this operation is settled with "
                f"{row.remote_ref}: one of them is probably a duplicate."
            ),
            now=now,
        )

    def _open_late_effect(self, row: Operation, ref: str, now: datetime) -> None:
        """A person closed it without knowing; now it is known that the object is there."""
        cases.open_case(
            CaseSubject.DUPLICATE,
            row.pk,
            tenant_id=row.tenant_id,
            connection_id=row.connection_id,
            operation_id=row.pk,
            reason_code="late_effect",
            summary=(
                f"This operation was discarded, and a late answer says that it happened: object "
                f"{ref} is there."
            ),
            now=now,
        )

    def _name_candidate(self, row: Operation, ref: str, now: datetime) -> None:
        """The object a late result names stands among the candidates of the open case."""
        case = cases.open_one(CaseSubject.OPERATION, row.pk)
        if case is not None:
            named = SeenCandidate(ref, matches=False)
            cases.keep_candidates(case, [named], self._scrubber(row.connection_id), now)
