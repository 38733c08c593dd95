"""The drain's one thread that talks to the database: claims, marks, settles, sweeps, in batches.

The event loop never waits for SQL and this thread never waits for a remote, so no transaction can
be open during a call (protocol §6). Work is handed over through deques; results go back in one
callback per batch.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import DatabaseError, IntegrityError, InterfaceError, connection, transaction

from hub import cases, claims, gate, moves, remote
from hub.bell import CHANNEL
from hub.claims import Claim, Claimed, LaneShare
from hub.models import Connection, Gate, Heartbeat, Installation
from hub.models.gate import PauseKind
from hub.settling import Result, Settler
from hub.sql import database_now, execute, go_by_index, is_postgres, rows, stamp
from hub.sweep import Sweeper
from hub.tuning import Tuning

log = logging.getLogger("hub.delivery")
Steps = Callable[[str], None]
_LAST_WAIT = 5.0
"""Seconds for what the loop still has in hand when an end was asked for."""
_WORTH_A_BATCH = 16
"""Markers asked for during a settle that are set before the claim that would follow."""


@dataclass(slots=True)
class MarkWish:
    """A prepared write that waits for its marker; `done` is told whether it may leave."""

    mark: moves.Mark
    item: Claimed
    done: Callable[[str], None]


@dataclass(slots=True)
class TokenWish:
    limit: remote.RateLimit
    done: Callable[[bool], None]


@dataclass(slots=True)
class Flight:
    """What the loop tells the desk of its state; plain numbers, written by the loop alone."""

    queued: int = 0
    in_flight: int = 0
    per_lane: dict[int, int] = field(default_factory=dict)
    ended: int = 0
    """How many of the operations handed to the loop have come back, or been dropped."""
    accepting: bool = True


class NotOurTime(Exception):
    """The installation is at another epoch than this worker knows: it must be started anew
    (protocol §17).
    """


class Desk:
    """Runs in a daemon thread of its own; everything public may be called from the loop's
    thread.
    """

    def __init__(
        self,
        *,
        worker: str,
        tuning: Tuning,
        flight: Flight,
        deliver: Callable[[Callable[[], None]], None],
        take: Callable[[list[Claimed], dict[int, remote.Remote]], None],
        ping: Callable[[remote.Remote], None],
        clock: Callable[[], float],
        now: Callable[[], datetime],
        roll: Callable[[], float],
        steps: Steps,
    ) -> None:
        self.worker = worker
        self.tuning = tuning
        self.flight = flight
        self.failure: BaseException | None = None
        self.idle_since: float | None = None
        self._deliver = deliver
        self._take = take
        self._ping = ping
        self._clock = clock
        self._now = now
        self._roll = roll
        self._steps = steps
        self._marks: deque[MarkWish] = deque()
        self._tokens: deque[TokenWish] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._remotes: dict[int, remote.Remote] = {}
        self._remotes_at = -1e9
        self._broken: dict[int, str] = {}
        self._served: dict[int, int] = {}
        self._turn = 0
        self._full: set[int] = set()
        self._rung = True
        self._next_claim = 0.0
        self._next_sweep = 0.0
        self._next_beat = 0.0
        self._quarantine = 0
        self._quarantine_lane = 0
        self._quarantine_looks = False
        self._quarantine_turn = 0
        self._quarantine_after = 0.0
        self._quarantine_in_vain = False
        self._apart = False
        self._some_lapsed = False
        self._handed = 0
        self._tokens_at: float | None = None
        self._listening = False
        self._ending = False
        self._ending_since = 0.0
        self._for_good = True
        self._asleep = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._thread = threading.Thread(target=self._run, name=f"{worker}-desk", daemon=True)
        self._identity = Claim(worker, 0, 0)
        self._mark = "hub"
        self._sweeper = Sweeper(tuning, roll=roll, steps=steps)
        self._settler = Settler(
            worker=worker,
            tuning=tuning,
            remotes=self._remotes,
            sweeper=self._sweeper,
            now=now,
            steps=steps,
            guarded=self._guarded,
            reconnect=self._reconnect,
            ring=self._hear_of_work,
            soonest=self._comes_back,
        )

    # --- for the loop ---

    def start(self) -> None:
        self._thread.start()

    def settle(self, result: Result) -> None:
        self._settler.waiting.append(result)
        self._wake()

    def mark(self, wish: MarkWish) -> None:
        self._marks.append(wish)
        self._wake()

    def token(self, wish: TokenWish) -> None:
        self._tokens.append(wish)
        self._wake()

    def call(self, work: Callable[[], None]) -> None:
        """Run something small on this thread, between batches."""
        self._calls.append(work)
        self._wake()

    def wish_for_work(self) -> None:
        """The loop's queue has run low."""
        self._wake()

    def stop(self, *, for_good: bool = True) -> None:
        """Settle what is handed in, then end. Unless it is for good, the heartbeat stays until the
        successor's is there: between two drains the watchdog must not see none.
        """
        self._for_good = for_good
        self._ending_since = self._clock()
        self._ending = True
        self._wake()

    def close(self) -> None:
        """Close what wakes the thread; only once it has ended, and by the thread that wakes it."""
        os.close(self._read)
        os.close(self._write)

    def join(self, timeout: float) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def probed(self, connection_id: int, well: bool) -> None:
        """Write the end of a breaker's probe; on this thread, so through `call`."""
        self._settler.probed(connection_id, well)

    @property
    def settled(self) -> int:
        """How many moves this drain has made."""
        return self._settler.settled

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _wake(self) -> None:
        if self._asleep:
            self._asleep = False
            try:
                os.write(self._write, b"x")
            except BlockingIOError:
                pass  # the pipe is full: it will wake anyway

    # --- the thread ---

    def _run(self) -> None:
        try:
            # A database that is away just now is waited for: whoever started us may not come back.
            while not self._guarded(self._open):
                if self._ending:
                    return
                self._pause_after_failure()
            while not self._ended():
                self._round()
                self._sleep()
        except BaseException as error:
            self.failure = error
            if isinstance(error, Exception):
                log.exception("drain %s: the database thread ended", self.worker)
        finally:
            try:
                if self.failure is None:
                    self._guarded(self._farewell)
            finally:
                connection.close()
                self._deliver(lambda: None)

    def _ended(self) -> bool:
        """Whether an end was asked for, and all that was claimed has come back and is stored: a
        claim may have been under way when it was.
        """
        if not self._ending or self._settler.waiting or self._marks:
            return False
        return self._empty_handed() or self._clock() - self._ending_since > _LAST_WAIT

    def _open(self) -> None:
        connection.ensure_connection()
        self._prepare_connection()
        mine = Installation.current()
        self._identity = Claim(self.worker, mine.epoch, mine.token_base)
        self._mark = mine.mark

    def _prepare_connection(self) -> None:
        if not is_postgres():
            return
        execute("SET application_name = %s", [f"hub-drain {self.worker}"[:63]])
        # A frozen drain inside a transaction would make every plain update wait for it.
        execute("SET idle_in_transaction_session_timeout = '10s'")
        execute("SET lock_timeout = '2s'")
        go_by_index()
        execute(f"LISTEN {CHANNEL}")
        self._listening = True
        # A notice that arrives while a statement runs is read by that statement, and the socket
        # stays silent: only a handler hears it then.
        raw = connection.connection
        try:
            raw.remove_notify_handler(self._rung_by)
        except ValueError:
            pass  # a new connection
        raw.add_notify_handler(self._rung_by)

    def _rung_by(self, notice: Any) -> None:
        self._rung = True

    def _reconnect(self) -> None:
        """After any database error: a dead connection is replaced, or every later statement fails
        too.
        """
        connection.close_if_unusable_or_obsolete()
        if connection.connection is None or connection.errors_occurred:
            connection.close()
        connection.ensure_connection()
        self._prepare_connection()

    def _guarded(self, work: Callable[[], Any]) -> bool:
        """Run database work that may fail as a whole; False when it did. What failed is tried again
        later.
        """
        try:
            work()
        except (DatabaseError, InterfaceError) as error:
            log.warning("drain %s: %s: %s", self.worker, type(error).__name__, str(error).strip())
            try:
                self._reconnect()
            except (DatabaseError, InterfaceError):
                self._pause_after_failure()
            return False
        return True

    def _pause_after_failure(self) -> None:
        select.select([self._read], [], [], 0.5)

    def _round(self) -> None:
        self._asleep = False
        while self._calls:
            self._guarded(self._calls.popleft())
        if self._marks:
            self._mark_waiting()  # first: what waits for its marker is what the wire waits for
        if self._settler.waiting:
            self._settler.settle_waiting()
        if len(self._marks) >= _WORTH_A_BATCH:
            self._mark_waiting()
        if self._tokens:
            self._guarded(self._grant_tokens)
        if self._full and self._room_again():
            self._rung = True
        now = self._clock()
        if now >= self._next_beat:
            self._next_beat = now + self.tuning.beat_every
            self._guarded(self._beat)
        if now >= self._next_sweep and not self._ending:
            self._next_sweep = now + self.tuning.sweep_every
            self._guarded(self._sweep)
        if self._wants_work(now):
            if not self._guarded(self._claim):
                self._next_claim = self._clock() + 0.2

    def _sleep(self) -> None:
        if self._settler.waiting or self._marks or self._tokens or self._calls:
            return
        if self._ending:
            select.select([self._read], [], [], 0.0 if self._ended() else 0.005)
            return
        now = self._clock()
        until = min(self._next_beat, self._next_sweep)
        if self.flight.accepting:
            until = min(until, self._next_claim)
            if self._rung and self._room() > 0:
                until = now
        self._asleep = True
        if self._settler.waiting or self._marks or self._tokens or self._calls:
            return  # handed in between the two lines above
        wait = max(0.0, min(until - now, self.tuning.beat_every))
        watched: list[Any] = [self._read]
        if self._listening and connection.connection is not None:
            watched.append(connection.connection)
        try:
            ready, _, _ = select.select(watched, [], [], wait)
        except (OSError, ValueError):
            self._guarded(self._reconnect)
            return
        self._asleep = False
        try:
            while os.read(self._read, 4096):
                pass
        except BlockingIOError:
            pass
        if len(watched) > 1 and watched[1] in ready:
            self._guarded(self._hear)

    def _hear(self) -> None:
        """Read notices off the connection's socket."""
        raw = connection.connection
        if raw is None:
            return
        with connection.wrap_database_errors:  # or the driver's own error would end the thread
            raw.pgconn.consume_input()
            while raw.pgconn.notifies() is not None:
                self._rung = True

    def _hear_of_work(self) -> None:
        self._rung = True

    def _comes_back(self, seconds: float) -> None:
        self._next_claim = min(self._next_claim, self._clock() + seconds + 0.005)

    # --- claiming ---

    def _room(self) -> int:
        return self.tuning.claim_depth - self.flight.queued

    def _wants_work(self, now: float) -> bool:
        if not self.flight.accepting or self._ending:
            return False
        if self.flight.queued > self.tuning.claim_depth // 2:
            return False
        return self._rung or now >= self._next_claim

    def _claim(self) -> None:
        self._steps("claim.before")
        self._rung = False
        clock = self._clock()
        self._next_claim = clock + self.tuning.poll_interval
        if (self._quarantine or self._apart) and not self._empty_handed():
            self._next_claim = clock + 0.01
            return  # beside what has lost its worker before nothing may be in flight in this drain
        self._apart = False
        self._tokens_at = None
        taken = self._claim_batch(clock)
        self._steps("claim.committed")
        if self._tokens_at is not None:
            self._next_claim = min(self._next_claim, clock + max(0.01, self._tokens_at))
        apart, self._quarantine = self._quarantine, 0
        if apart:
            # As long again for the rest, so that neither waits for the other's end.
            self._quarantine_after = self._clock() + 0.2
            self._next_claim = 0.0
        elif taken and self._tokens_at is None:
            self._next_claim = 0.0
        if taken:
            self.idle_since = None
            self._apart = bool(apart)
            self._handed += len(taken)
            self._take(taken, dict(self._remotes))
        if apart and not taken:
            # What is due and cannot be taken must not keep the rest waiting: their turn comes now,
            # and its own not before the next poll.
            self._quarantine_in_vain = True
        elif not taken or self._clock() >= self._quarantine_after:
            self._quarantine = self._lapsed_and_due()
        if self._quarantine:
            self.idle_since = None
            if not self._quarantine_in_vain:
                self._next_claim = 0.0
            self._quarantine_in_vain = False
        elif not taken and self.idle_since is None:
            self.idle_since = clock

    def _empty_handed(self) -> bool:
        """Whether nothing this drain has claimed is still out, or back and not stored yet."""
        return self._handed == self.flight.ended and not self._settler.waiting

    def _lapsed_and_due(self) -> int:
        """How many lapses the due operations have whose turn it is to be claimed apart, or 0.

        The lapses, lanes and kinds there are get their turns one after the other: a turn that was
        bound to the drain's other claims would always fall to the same ones.
        """
        if not self._some_lapsed:
            return 0
        now = stamp(self._now()) if not is_postgres() else database_now()
        found = rows(
            """SELECT DISTINCT o.lapses, o.connection_id, o.state IN ('uncertain', 'accepted')
            FROM hub_operation o JOIN hub_gate g ON g.connection_id = o.connection_id
            JOIN hub_connection k ON k.id = o.connection_id AND k.retired_at IS NULL
            WHERE o.lapses > 0 AND o.next_at <= %s AND o.epoch = %s
              AND o.state IN ('pending', 'retry', 'uncertain', 'accepted')
              AND o.lease_until IS NULL AND NOT o.parked AND g.paused_at IS NULL AND g.breaker =
              'closed' AND (g.throttled_until IS NULL OR g.throttled_until <= %s)
            ORDER BY 1, 2, 3""",
            [now, self._identity.epoch, now],
        )
        if not found:
            return 0
        self._quarantine_turn += 1
        lapses, lane, looks = found[self._quarantine_turn % len(found)]
        self._quarantine_lane, self._quarantine_looks = lane, bool(looks)
        return int(lapses)

    def _claim_batch(self, clock: float) -> list[Claimed]:
        now = self._now()
        begun = gate.opened(now)
        if begun.epoch != self._identity.epoch:
            raise NotOurTime(
                f"the installation is at epoch {begun.epoch}, this drain knows "
                f"{self._identity.epoch}"
            )
        self._some_lapsed = any(lane.lapsed for lane in begun.lanes)
        if not begun.lanes:
            return []
        for attempt in range(3):
            try:
                with transaction.atomic():
                    shares = self._shares(begun, now)
                    identity = Claim(
                        self.worker,
                        self._identity.epoch,
                        self._identity.token_base,
                        self._quarantine,
                    )
                    taken = claims.claim(identity, shares, clock, now) if shares else []
                self._tokens_at = min(
                    (1.0 / s.limit.rate for s in shares if s.starved and s.limit), default=None
                )
                return taken
            except IntegrityError:
                # C2: a lower version was committed while another drain took the higher one. It has
                # by now.
                if attempt == 2:
                    raise
                clock = self._clock()
                now = self._now()
        return []

    def _room_again(self) -> bool:
        """Whether a lane that was too full to claim for has come to have room."""
        free = {
            lane
            for lane in self._full
            if lane not in self._remotes
            or self._lane_room(self._remotes[lane]) >= _enough(self._remotes[lane])
        }
        self._full -= free
        return bool(free)

    def _shares(self, begun: gate.Open, now: datetime) -> list[LaneShare]:
        open_lanes = begun.lanes
        self._load_remotes([lane.connection_id for lane in open_lanes])
        self._settler.failing({lane.connection_id for lane in open_lanes if lane.failures})
        self._turn += 1
        open_lanes = [lane for lane in open_lanes if lane.connection_id in self._remotes]
        open_lanes.sort(key=lambda lane: self._served.get(lane.connection_id, 0))
        room = {0: max(1, self._room()), 1: 10}.get(self._quarantine, 1)
        result: list[LaneShare] = []
        for lane in open_lanes:
            ready = self._remotes[lane.connection_id]
            # The rest of a connection may be some seconds old; an opening must not be, or what has
            # waited through a long pause would be judged by its age.
            ready.opened_at, ready.clock_jumped_at = lane.opened_at, begun.clock_jumped_at
            if self._quarantine and lane.connection_id != self._quarantine_lane:
                continue
            if lane.probe:
                self._probe(lane, ready, result, now)
                continue
            fair = max(1, -(-room // max(1, len(open_lanes))))
            there = self._lane_room(ready)
            if there < 1 or (not self._quarantine and there < min(fair, _enough(ready))):
                self._full.add(lane.connection_id)
                continue
            share = min(fair, there, room)
            looks = share if not lane.sends else max(1, int(share * self.tuning.look_share))
            looks = looks if lane.looks else 0
            sends = share - looks if lane.sends else 0
            if self._quarantine:
                looks, sends = (share, 0) if self._quarantine_looks else (0, share)
            result.append(self._share(ready, sends, looks))
            self._served[lane.connection_id] = self._turn
        return result

    def _lane_room(self, ready: remote.Remote) -> int:
        """How much more this drain may hold of a connection.

        Claimed ahead of a lane that hangs, rows only grow old: at most as many wait as may be in
        flight, beside the three times as many that are being worked on.
        """
        return 4 * ready.max_in_flight - self.flight.per_lane.get(ready.connection_id, 0)

    def _share(self, ready: remote.Remote, sends: int, looks: int) -> LaneShare:
        return LaneShare(
            ready.connection_id,
            sends,
            looks,
            self.tuning.lease(ready.longest_send),
            ready.limit("default"),
            self._turn,
        )

    def _probe(
        self, lane: gate.Lane, ready: remote.Remote, result: list[LaneShare], now: datetime
    ) -> None:
        if self._quarantine or not gate.take_probe(
            lane.connection_id, self.tuning.lease(ready.longest_send), now
        ):
            return
        if ready.connector.ping() is not None:
            self._ping(ready)
            return
        share = self._share(ready, 1 if lane.sends else 0, 0 if lane.sends else 1)
        share.probe = True
        result.append(share)

    def _load_remotes(self, ids: list[int]) -> None:
        """Make the connections ready; anew every two seconds, so that a changed setting takes
        effect.
        """
        clock = self._clock()
        if clock - self._remotes_at > 2.0:
            self._remotes_at = clock
            self._remotes.clear()
            self._broken.clear()
        missing = [one for one in ids if one not in self._remotes and one not in self._broken]
        if not missing:
            return
        for row in Connection.objects.filter(pk__in=missing).select_related("tenant", "gate"):
            try:
                self._remotes[row.pk] = remote.make(row, mark=self._mark)
            except Exception as error:  # noqa: BLE001 - one unusable connection must not stop the others
                self._broken[row.pk] = str(error)
                log.error("connection %s cannot be used: %s", row.name, error)
                if gate.pause(row.pk, PauseKind.CREDENTIAL, str(error)):
                    cases.about_connection(row.pk, "unusable", str(error))

    # --- marking ---

    def _mark_waiting(self) -> None:
        wishes = [self._marks.popleft() for _ in range(min(len(self._marks), 200))]
        self._steps("mark.before")
        try:
            # One statement commits by itself, without two more round trips to say so.
            with nullcontext() if is_postgres() else transaction.atomic(durable=True):
                hit = moves.mark([wish.mark for wish in wishes], self._now())
            self._steps("mark.committed")
        except (DatabaseError, InterfaceError) as error:
            # Nobody knows whether the marker holds: nothing is sent, and the sweep judges by what
            # the database has.
            log.warning("drain %s: marker: %s", self.worker, str(error).strip())
            self._guarded(self._reconnect)
            self._answer_marks([(wish, "unknown") for wish in wishes])
            return
        missed = [wish for wish in wishes if wish.mark.id not in hit]
        why = self._why_missed(missed) if missed else {}
        self._answer_marks(
            [(w, "marked" if w.mark.id in hit else why.get(w.mark.id, "lost")) for w in wishes]
        )

    def _why_missed(self, missed: list[MarkWish]) -> dict[int, str]:
        """Why a marker was refused: superseded by a newer version (`stale`), to be given back, or
        no longer ours.
        """
        result: dict[int, str] = {}

        def ask() -> None:
            for wish in missed:
                found = rows(
                    """SELECT o.full_state AND EXISTS (SELECT 1 FROM hub_operation n
                      WHERE n.connection_id = o.connection_id AND n.stream = o.stream
                        AND n.first_sent_at IS NOT NULL AND n.version > o.version)
                    FROM hub_operation o
                    WHERE o.id = %s AND o.lease_token = %s AND o.state = 'running'""",
                    [wish.mark.id, wish.mark.token],
                )
                if found:
                    result[wish.mark.id] = "stale" if found[0][0] else "back"

        self._guarded(ask)
        return result

    def _answer_marks(self, answers: list[tuple[MarkWish, str]]) -> None:
        def tell() -> None:
            for wish, answer in answers:
                wish.done(answer)

        self._deliver(tell)

    def _grant_tokens(self) -> None:
        wishes = [self._tokens.popleft() for _ in range(len(self._tokens))]
        wanted: dict[remote.RateLimit, int] = {}
        for wish in wishes:
            wanted[wish.limit] = wanted.get(wish.limit, 0) + 1
        try:
            granted = gate.take_tokens(wanted, None if is_postgres() else self._now())
        except BaseException:
            self._answer_tokens([(wish, False) for wish in wishes])
            raise
        answers: list[tuple[TokenWish, bool]] = []
        for wish in wishes:
            granted[wish.limit] -= 1
            answers.append((wish, granted[wish.limit] >= 0))
        self._answer_tokens(answers)

    def _answer_tokens(self, answers: list[tuple[TokenWish, bool]]) -> None:
        def tell() -> None:
            for wish, granted in answers:
                wish.done(granted)

        self._deliver(tell)

    # --- the rest ---

    def _sweep(self) -> None:
        self._load_remotes(
            list(Gate.objects.filter(connection__retired_at=None).values_list("pk", flat=True))
        )
        swept = self._sweeper.sweep(self._remotes, self._now)
        if swept:
            self._rung = True

    def _beat(self) -> None:
        now = self._now() if not is_postgres() else database_now()
        Heartbeat.objects.update_or_create(
            drain=self.worker,
            defaults={
                "host": socket.gethostname()[:200],
                "pid": os.getpid(),
                "epoch": self._identity.epoch,
                "beat_at": now,
                "in_flight": self.flight.in_flight,
                "settled": self._settler.settled,
            },
            create_defaults={
                "host": socket.gethostname()[:200],
                "pid": os.getpid(),
                "epoch": self._identity.epoch,
                "beat_at": now,
                "started_at": now,
            },
        )

    def _farewell(self) -> None:
        if self._for_good:
            Heartbeat.objects.filter(drain=self.worker).delete()
        else:
            self._beat()


def _enough(ready: remote.Remote) -> int:
    """The least room worth a claim of its own: claims cost by the statement, not by the row."""
    return max(1, ready.max_in_flight // 4)
