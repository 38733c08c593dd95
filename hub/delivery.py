"""`drain()`: claim → prepare → mark → call → decide → settle, many operations at a time.

One event loop keeps the calls in flight, one thread (`hub.desk`) talks to the database. A drain
takes whatever is due, stays for its budget, and can be stopped, doubled or killed at any moment:
the operation's row says what holds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket
import sys
import threading
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils import timezone

from hub.claims import Claimed
from hub.contract import (
    BadPayload,
    CallFailed,
    CallRefused,
)
from hub.desk import Desk, Flight, MarkWish, TokenWish
from hub.http import Wire, boottime
from hub.moves import Mark
from hub.remote import (
    RateLimit,
    Remote,
    read_through,
)
from hub.settling import Result
from hub.tuning import Tuning
from hub.tuning import tuning as tuning_in_force
from hub.work import NoTokens, Work

log = logging.getLogger("hub.delivery")


def _nothing(name: str) -> None:
    """A step point nobody watches."""


class Slot:
    """One of the calls in flight: of the connection's own first, so that one that hangs fills only
    its own. Entered by any number of operations; each waits until it has both.
    """

    __slots__ = ("_all", "_own")

    def __init__(self, own: int, of_all: asyncio.Semaphore) -> None:
        self._own = asyncio.Semaphore(own)
        self._all = of_all

    async def __aenter__(self) -> None:
        await self._own.acquire()
        try:
            await self._all.acquire()
        except BaseException:
            self._own.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._all.release()
        self._own.release()


@dataclass(slots=True)
class Lane:
    """What this drain holds of one connection."""

    waiting: deque[Claimed]
    slot: Slot
    running: int = 0


class Drain:
    """One drain, from start to end. `run` blocks; `stop` may be called from a signal handler or
    another thread.
    """

    def __init__(
        self,
        *,
        tuning: Tuning | None = None,
        name: str = "",
        budget: float | None = None,
        until_idle: bool = False,
        clock: Callable[[], float] = boottime,
        now: Callable[[], datetime] = timezone.now,
        chance: random.Random | None = None,
        steps: Callable[[str], None] | None = None,
        wire: Callable[..., Wire] = Wire,
        signals: bool = False,
    ) -> None:
        self.tuning = tuning or tuning_in_force()
        self.name = name or f"{socket.gethostname()[:30]}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self.budget = self.tuning.drain_budget if budget is None else budget
        self.until_idle = until_idle
        self._clock = clock
        self._now = now
        self._roll = (chance or random.Random()).random  # noqa: S311 - jitter, not secrecy
        self._steps = steps or _nothing
        self._make_wire = lambda: wire(clock=clock, steps=steps)
        self._signals = signals
        self._stopping = threading.Event()
        self.stopped = False
        """Whether somebody asked it to stop, as opposed to the end of its budget or of its work."""
        self._flight = Flight()
        self._lanes: dict[int, Lane] = {}
        self._rotation: deque[int] = deque()
        self._remotes: dict[int, Remote] = {}
        self._idle: deque[asyncio.Future[None]] = deque()
        self._loop: asyncio.AbstractEventLoop
        self._wire: Wire
        self._slots: asyncio.Semaphore
        self._desk: Desk

    # --- life ---

    def run(self) -> int:
        """Work until the budget ends, a stop is asked for, or (with `until_idle`) nothing is due;
        how many settled.
        """
        before = sys.getswitchinterval()
        # The loop is busy without a pause while calls are in flight: with the usual 5 ms the
        # database thread would wait that long for its turn after every answer of the database.
        sys.setswitchinterval(0.0002)
        try:
            return asyncio.run(self._main())
        finally:
            sys.setswitchinterval(before)

    def stop(self) -> None:
        """Claim nothing more, give back what has not left, let what has left come to its end."""
        self.stopped = True
        self._stopping.set()

    async def _main(self) -> int:
        self._loop = asyncio.get_running_loop()
        self._wire = self._make_wire()
        self._slots = asyncio.Semaphore(self.tuning.senders)
        self._desk = Desk(
            worker=self.name,
            tuning=self.tuning,
            flight=self._flight,
            deliver=self._from_desk,
            take=lambda taken, remotes: self._from_desk(lambda: self._taken(taken, remotes)),
            ping=lambda remote: self._from_desk(lambda: self._probe(remote)),
            clock=self._clock,
            now=self._now,
            roll=self._roll,
            steps=self._steps,
        )
        if self._signals:
            for number in (signal.SIGTERM, signal.SIGURG):
                self._loop.add_signal_handler(number, self.stop)
        runners = [
            asyncio.create_task(self._runner(), name=f"slot-{n}")
            for n in range(3 * self.tuning.senders)
        ]
        self._desk.start()
        try:
            await self._watch(runners)
        finally:
            self._flight.accepting = False
            for task in runners:
                task.cancel()
            await asyncio.gather(*runners, return_exceptions=True)
            await self._wire.aclose()
            self._desk.stop(for_good=self.stopped or self.until_idle)
            # No helper thread here: a task time limit of the host must be able to end us at once.
            end = self._clock() + 10.0
            while self._desk.alive and self._clock() < end:
                await asyncio.sleep(0.005)
            if self._desk.alive:
                log.error("drain %s: the database thread did not end in time", self.name)
            else:
                self._desk.close()
        if self._desk.failure is not None:
            raise self._desk.failure
        return self._desk.settled

    async def _watch(self, runners: list[asyncio.Task[None]]) -> None:
        """Wait for the end. A slot that died or a dead database thread ends the drain loudly: it
        would go deaf.
        """
        started = self._clock()
        ending = 0.0
        longest = max((r.longest_send for r in self._remotes.values()), default=30.0)
        while True:
            await asyncio.sleep(0.02)
            if not self._desk.alive:
                return
            for task in runners:
                if task.done():
                    task.result()
                    raise RuntimeError(f"{task.get_name()} ended before its drain did")
            if ending:
                longest = max((r.longest_send for r in self._remotes.values()), default=30.0)
                if not self._flight.in_flight or self._clock() - ending > longest + 5.0:
                    return
                continue
            over = self._clock() - started >= self.budget or self._stopping.is_set()
            idle = (
                self.until_idle
                and self._desk.idle_since is not None
                and not self._flight.in_flight
                and not self._flight.queued
            )
            if over or idle:
                ending = self._clock()
                self._flight.accepting = False
                self._stopping.set()
                self._give_back_all()

    def _from_desk(self, work: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(work)
        except RuntimeError:
            log.debug(
                "drain %s has ended", self.name
            )  # the loop is closed: nobody waits for it any more

    # --- fair turns ---

    def _taken(self, taken: list[Claimed], remotes: dict[int, Remote]) -> None:
        self._remotes.update(remotes)
        for item in taken:
            lane = self._lanes.get(item.connection_id)
            if lane is None:
                slot = Slot(remotes[item.connection_id].max_in_flight, self._slots)
                lane = self._lanes[item.connection_id] = Lane(deque(), slot)
                self._rotation.append(item.connection_id)
            lane.waiting.append(item)
            held = self._flight.per_lane
            held[item.connection_id] = held.get(item.connection_id, 0) + 1
        self._flight.queued += len(taken)
        if self._stopping.is_set():
            self._give_back_all()
            return
        for _ in range(min(len(taken), len(self._idle))):
            self._wake_one()

    def _wake_one(self) -> None:
        while self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _next(self) -> Claimed | None:
        """The next operation whose lane has a turn and room."""
        for _ in range(len(self._rotation)):
            key = self._rotation[0]
            self._rotation.rotate(-1)
            lane = self._lanes[key]
            # Three times the calls at once: beside those on the wire as many prepare and wait for
            # their markers, and as many have been answered or come in.
            if lane.waiting and lane.running < 3 * self._remotes[key].max_in_flight:
                lane.running += 1
                self._flight.queued -= 1
                self._flight.in_flight += 1
                return lane.waiting.popleft()
        return None

    async def _runner(self) -> None:
        while True:
            item = self._next()
            if item is None:
                waiter = self._loop.create_future()
                self._idle.append(waiter)
                await waiter
                continue
            lane = self._lanes[item.connection_id]
            try:
                result = await self._carry(item)
            except BaseException:
                self._flight.ended += 1  # dropped: its lease decides, and nobody waits for it
                raise
            finally:
                lane.running -= 1
                self._flight.in_flight -= 1
                self._flight.per_lane[item.connection_id] -= 1
                if lane.waiting and self._idle:
                    self._wake_one()
            if result is not None:
                self._desk.settle(result)
            self._flight.ended += 1
            if self._flight.queued == self.tuning.claim_depth // 2:
                self._desk.wish_for_work()

    def _give_back_all(self) -> None:
        for lane in self._lanes.values():
            while lane.waiting:
                item = lane.waiting.popleft()
                self._flight.queued -= 1
                self._flight.per_lane[item.connection_id] -= 1
                self._desk.settle(Work(self, item, self._remotes[item.connection_id]).give_back())
                self._flight.ended += 1
        while self._idle:
            self._wake_one()

    def _probe(self, remote: Remote) -> None:
        task = self._loop.create_task(self._ping(remote))
        self._flight.in_flight += 1
        task.add_done_callback(lambda _: None)

    async def _ping(self, remote: Remote) -> None:
        """The breaker's probe: a harmless read."""
        well = False
        try:
            steps = remote.connector.ping()
            if steps is not None:
                await read_through(
                    remote, self._wire, steps, max_send=min(10.0, remote.longest_send)
                )
                well = True
        except CallRefused:
            well = True  # it answers, and that is all the breaker asks
        except (CallFailed, BadPayload) as failure:
            log.info("connection %s: probe: %s", remote.name, failure)
        except Exception as error:  # noqa: BLE001 - an integration's bug is no sign of life
            log.error("connection %s: probe: %s", remote.name, remote.scrubber.trace(error))
        finally:
            self._flight.in_flight -= 1
        self._desk.call(lambda: self._desk.probed(remote.connection_id, well))

    async def _carry(self, item: Claimed) -> Result | None:
        """One operation through one attempt; None when the lease decides (nothing is settled
        then).
        """
        work = Work(self, item, self._remotes[item.connection_id])
        if self._stopping.is_set():
            return work.give_back()
        try:
            return await work.carry()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - an integration's bug ends as evidence
            trace = work.remote.scrubber.trace(error)
            log.error("operation %s: %s: %s", item.id, item.action, trace)
            return work.broken(error)

    # --- for the work in hand ---

    async def marker(self, mark: Mark, item: Claimed) -> str:
        """Ask for the marker and wait: "marked", "stale", "back", "lost" or "unknown"."""
        future: asyncio.Future[str] = self._loop.create_future()

        def tell(answer: str) -> None:
            if not future.done():
                future.set_result(answer)

        self._desk.mark(MarkWish(mark, item, tell))
        return await future

    async def token(self, limit: RateLimit, until: float) -> None:
        """Take one token for a further call; raises `NoTokens` when none comes in time."""
        while True:
            future: asyncio.Future[bool] = self._loop.create_future()

            def tell(granted: bool, future: asyncio.Future[bool] = future) -> None:
                if not future.done():
                    future.set_result(granted)

            self._desk.token(TokenWish(limit, tell))
            if await future:
                return
            if self._clock() + 1.0 / limit.rate > until or self._stopping.is_set():
                raise NoTokens
            await asyncio.sleep(min(1.0, 0.5 / limit.rate) * (0.75 + 0.5 * self._roll()))

    @property
    def clock(self) -> Callable[[], float]:
        return self._clock

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def wire(self) -> Wire:
        return self._wire

    def slot(self, connection_id: int) -> Slot:
        """What a call of this connection holds while it is in flight."""
        return self._lanes[connection_id].slot

    @property
    def steps(self) -> Callable[[str], None]:
        return self._steps

    @property
    def roll(self) -> Callable[[], float]:
        return self._roll


def drain(**options: Any) -> int:
    """Take whatever is due and carry it out until the budget ends; how many operations moved on."""
    return Drain(**options).run()
