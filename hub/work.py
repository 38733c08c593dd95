"""One operation in hand: what happens to it between its claim and its settle.

Prepare, marker, guarded call, classification, decision (protocol §6); nothing here talks to the
database. What is done is thin: facts are gathered, `policy.decide` is asked, and the answer is
handed back to be settled.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any, Protocol

from hub import keys
from hub.claims import Claimed
from hub.contract import (
    Accepted,
    Answer,
    BadPayload,
    Call,
    CallFailed,
    CallRefused,
    Candidate,
    Done,
    FailureKind,
    Kind,
    Looked,
    Progress,
    Refused,
    Request,
    SafetyClass,
    Seen,
    Unanswered,
    Write,
)
from hub.http import Wire
from hub.moves import Mark, Settlement, Tried
from hub.policy import Advice, Facts, Verdict, decide
from hub.redaction import Scrubber, clean, sentence
from hub.registry import UnknownAction
from hub.remote import (
    RateLimit,
    Remote,
    Returned,
    advance,
    one_read,
    refuse_write,
    request_for,
    wrong,
)
from hub.settling import Result
from hub.states import Actor, Outcome, Purpose, State
from hub.tuning import Tuning

log = logging.getLogger("hub.delivery")


class NoTokens(Exception):
    """No rate token came within the lease."""


class Carrier(Protocol):
    """What an operation in hand needs of the drain that carries it."""

    tuning: Tuning

    @property
    def clock(self) -> Callable[[], float]: ...
    @property
    def stopping(self) -> bool: ...
    @property
    def wire(self) -> Wire: ...
    @property
    def steps(self) -> Callable[[str], None]: ...
    @property
    def roll(self) -> Callable[[], float]: ...
    def slot(self, connection_id: int) -> AbstractAsyncContextManager[None]: ...
    async def marker(self, mark: Mark, item: Claimed) -> str: ...
    async def token(self, limit: RateLimit, until: float) -> None: ...


class Work:
    """One operation in hand: what happens to it between its claim and its settle."""

    __slots__ = (
        "_begun",
        "_calls",
        "_drain",
        "_look_began",
        "_marked",
        "item",
        "remote",
        "write",
    )

    def __init__(self, drain: Carrier, item: Claimed, remote: Remote) -> None:
        self._drain = drain
        self.item = item
        self.remote = remote
        self.write: Write | None = None
        self._calls = 0
        self._begun = False
        self._marked = False
        self._look_began = drain.clock()

    # --- the steps ---

    async def carry(self) -> Result | None:
        item = self.item
        try:
            self.write = self.remote.write(item.action)
        except UnknownAction as error:
            return self._to_review("code_missing", str(error))
        if item.purpose is Purpose.SEND:
            return await self._send()
        return await self._look()

    async def _send(self) -> Result | None:
        item, write = self.item, self._declared
        unfit = self._unfit()
        if unfit is not None:
            return unfit
        fields = json.loads(item.payload)
        request = self._request(fields)
        try:
            if self._looks_before_repeat():
                found = await self._read(self.remote.connector.find(request))
                if _speaks_against_repeat(write.kind, found):
                    return self._decided(found)
            steps = self.remote.connector.send(request)
            prepared = await self._prepare(steps)
            call = self.remote.connector.authorize(prepared) if isinstance(prepared, Call) else None
        except NoTokens:
            return self.give_back("no_token", "No rate token was left in time.")
        except (CallFailed, CallRefused) as failure:
            return self._decided(_as_seen(failure))
        except BadPayload as error:
            return self._decided(Unanswered(str(error), nothing_left=True, kind=FailureKind.LOCAL))
        if not isinstance(prepared, (Call, Done, Accepted)):
            return self._decided(
                Unanswered(
                    "The connector's steps ended without a write and without a result.",
                    nothing_left=True,
                    kind=FailureKind.OTHER,
                )
            )
        self._step("prepare.guarded")
        if self._drain.stopping:
            return self.give_back()
        if self._key_dies_under_way():
            return self.give_back("key_used_up", "Its key may be forgotten before it arrives.")
        if call is None or self._repeats_by_key():
            return await self._mark_and_call(steps, prepared, call)
        # Marked and then made to wait, it would be one more of unknown fate if we died now.
        async with self._drain.slot(item.connection_id):
            if self._drain.stopping or self._drain.clock() > self._right_ends():
                return self.give_back()
            return await self._mark_and_call(steps, prepared, call)

    def _repeats_by_key(self) -> bool:
        return self._declared.safety in (SafetyClass.A, SafetyClass.A_LOOK)

    async def _mark_and_call(
        self,
        steps: Generator[Call, Answer, Done | Accepted],
        prepared: Call | Done | Accepted,
        call: Call | None,
    ) -> Result | None:
        item, write = self.item, self._declared
        wanted = Mark(
            item.id,
            item.token,
            hashlib.sha256(call.body).hexdigest() if call is not None else "",
            write.max_send + self._drain.tuning.margin,
        )
        asked = self._drain.clock()
        answer = await self._drain.marker(wanted, item)
        match answer:
            case "marked":
                self._marked = True
                item.state = State.SENT
            case "stale":
                return self._stale()
            case "back":
                return self.give_back("held_back", "Its turn was taken away before anything left.")
            case _:
                return None
        if call is None:
            # The connector saw that all is as we want it: nothing to write, and the marker proved
            # our turn.
            return self._decided(prepared)
        return await self._call(steps, call, asked)

    async def _prepare(
        self, steps: Generator[Call, Answer, Done | Accepted]
    ) -> Call | Done | Accepted:
        """Run the steps up to their one write; the write itself, or what they returned without
        one.
        """
        step = advance(lambda: next(steps))
        while not isinstance(step, Returned):
            await self._pay(step)
            if step.write:
                return step
            step = await self._one_read(steps, step)
        return step.value

    async def _one_read(self, steps: Generator[Call, Answer, Any], call: Call) -> Call | Returned:
        async with self._drain.slot(self.item.connection_id):
            return await one_read(
                self.remote, self._drain.wire, steps, call, self._time_left(), self._guard_reads
            )

    async def _call(
        self, steps: Generator[Call, Answer, Done | Accepted], call: Call, asked: float
    ) -> Result | None:
        """The write: guarded before its first byte, timed as a whole, read by the connector."""
        item, write, drain = self.item, self._declared, self._drain
        latest = min(
            item.claimed_clock + item.lease - write.max_send - drain.tuning.margin,
            asked + drain.tuning.margin,
        )

        def guard() -> None:
            if drain.clock() > latest:
                raise CallFailed(FailureKind.ABORTED, "The right to send had ended.", begun=False)
            if drain.stopping:
                raise CallFailed(FailureKind.ABORTED, "A stop was asked for.", begun=False)
            self._begun = True

        started = drain.clock()
        # Where a repeat by key is harmless the slot is taken only now: markers are set while others
        # are on the wire, which keeps it full.
        slot = drain.slot(item.connection_id) if self._repeats_by_key() else nullcontext()
        try:
            async with slot:
                answer = await drain.wire.exchange(
                    self.remote.route,
                    call,
                    max_send=write.max_send,
                    guard=guard,
                    keep_alive=write.keeps_alive,
                )
        except CallFailed as failure:
            steps.close()
            return self._decided(_as_seen(failure), took=drain.clock() - started)
        return self._decided(
            self._read_answer(steps, answer), took=drain.clock() - started, answer=answer
        )

    def _read_answer(self, steps: Generator[Call, Answer, Done | Accepted], answer: Answer) -> Seen:
        """What the write's answer means: the error table first, then the connector."""
        seen = wrong(self.remote, answer, self._declared)
        try:
            if seen is None:
                steps.send(answer)
            elif isinstance(seen, Refused):
                steps.throw(CallRefused(seen))
            else:
                steps.close()
                return seen
        except StopIteration as end:
            if isinstance(end.value, (Done, Accepted)):
                return end.value
            return Unanswered("The connector returned nothing usable for the answer.")
        except CallRefused as refused:
            return refused.refusal
        except CallFailed as failed:
            # Whatever the connector says of it: the write was answered, so it had left.
            return Unanswered(sentence(failed.text), kind=failed.kind)
        except Exception as error:  # noqa: BLE001 - an integration's bug ends as evidence
            trace = self.remote.scrubber.trace(error)
            log.error("operation %s: reading the answer: %s", self.item.id, trace)
            return Unanswered(f"The answer could not be read: {type(error).__name__}.")
        steps.close()
        return Unanswered("The connector asked for another call after its write; it was not made.")

    async def _look(self) -> Result | None:
        item = self.item
        fields = json.loads(item.payload)
        request = self._request(fields)
        self._look_began = self._drain.clock()
        self._step("look.before")
        seen: Seen
        try:
            if item.purpose is Purpose.POLL:
                seen = await self._read(self.remote.connector.poll(request))
            elif self._declared.can_look:
                seen = await self._read(self.remote.connector.find(request))
            elif self._declared.safety in (SafetyClass.B, SafetyClass.B_PRIME):
                # Nothing to look with, and nothing needed: repeating it is harmless once a late
                # copy is spent.
                seen = (
                    Looked(text="No look is declared.")
                    if self._declared.kind is Kind.CREATE
                    else Looked((_not_as_meant(item.remote_ref),))
                )
            else:
                return self._to_review(
                    "no_look", "This action has lost its way to look.", doubt=True
                )
        except NoTokens:
            return self.give_back("no_token", "No rate token was left in time.")
        except (CallFailed, CallRefused) as failure:
            seen = _as_seen(failure)
        except BadPayload as error:
            seen = Unanswered(str(error), nothing_left=True, kind=FailureKind.LOCAL)
        self._step("poll.answered" if item.purpose is Purpose.POLL else "look.answered")
        if not isinstance(seen, (Looked, Progress, Refused, Unanswered)):
            seen = Unanswered("The look returned nothing usable.")
        return self._decided(seen, took=self._drain.clock() - self._look_began)

    async def _read(self, steps: Generator[Call, Answer, Any]) -> Any:
        """Drive steps that only read."""
        step = advance(lambda: next(steps))
        while not isinstance(step, Returned):
            refuse_write(steps, step)
            await self._pay(step)
            step = await self._one_read(steps, step)
        return step.value

    # --- guards ---

    @property
    def _declared(self) -> Write:
        assert self.write is not None  # noqa: S101 - set by `carry` before any step
        return self.write

    async def _pay(self, call: Call) -> None:
        """Every call after the first takes its own rate token; the claim took the first."""
        first = self._calls == 0
        self._calls += 1
        group = call.limit_group or self._declared.limit_group
        limit = self.remote.limit(group)
        if limit is None or (first and limit == self.remote.limit("default")):
            return
        self._step("prepare.token")
        await self._drain.token(limit, self._right_ends())

    def _right_ends(self) -> float:
        return (
            self.item.claimed_clock
            + self.item.lease
            - self._declared.max_send
            - self._drain.tuning.margin
        )

    def _time_left(self) -> float:
        left = (
            self.item.claimed_clock
            + self.item.lease
            - self._drain.tuning.margin
            - self._drain.clock()
        )
        if left <= 0:
            raise CallFailed(FailureKind.ABORTED, "The lease is nearly over.", begun=False)
        return min(self._declared.max_send, left)

    def _guard_reads(self) -> None:
        if self._drain.stopping:
            raise CallFailed(FailureKind.ABORTED, "A stop was asked for.", begun=False)

    def _step(self, name: str) -> None:
        self._drain.steps(name)

    # --- fitness ---

    def _unfit(self) -> Result | None:
        """Local reasons not to send, all before the marker (rows 5, 6; protocol §12, §13)."""
        item, write = self.item, self._declared
        if keys.fingerprint(item.payload) != item.fingerprint:
            return self._to_review(
                "drift", "The stored payload no longer matches its fingerprint.", doubt=item.doubt
            )
        if item.payload_schema != 1:
            return self._to_review(
                "schema", f"Payload schema {item.payload_schema} is not known to this release."
            )
        if self._drain.clock() > self._right_ends():
            return self.give_back()
        if self._key_dies_under_way():
            return self.give_back("key_used_up", "Its key may be forgotten before it arrives.")
        if item.stale:
            return self._stale()
        mapped = bool(item.mapped_ref) and not item.mapped_gone
        if write.kind is Kind.UPDATE and not mapped:
            return self._without_mapping(Kind.CREATE)
        if write.kind is Kind.DELETE and not mapped:
            return self._nothing_to_delete()
        if write.kind is Kind.CREATE and mapped and not item.doubt:
            return self._replaced(
                Kind.UPDATE, "The object exists by now; an update of it takes its place."
            )
        return None

    def _key_dies_under_way(self) -> bool:
        """A repeat that only its key makes safe may be claimed while it lives, and leave too
        late.
        """
        item, write = self.item, self._declared
        if not item.doubt or write.safety not in (SafetyClass.A, SafetyClass.A_LOOK):
            return False
        ahead = max(0.0, self._right_ends() - self._drain.clock())
        return not self._facts(0.0, None).key_alive(min(ahead, self._drain.tuning.margin))

    def _looks_before_repeat(self) -> bool:
        """Whether one more look belongs before this send: it was sent before, and its class can
        look (§6.2).
        """
        if self.item.first_sent_at is None or not self._declared.can_look:
            return False
        return self._declared.safety in (SafetyClass.C, SafetyClass.A_LOOK, SafetyClass.B)

    def _sibling(self, kind: Kind) -> str:
        """The action of the same object type that creates or updates it, or ""."""
        connector = self.remote.connector
        kind_of = connector.object_type(self.item.action)
        for name, action in connector.declared().items():
            if (
                isinstance(action, Write)
                and action.kind is kind
                and connector.object_type(name) == kind_of
            ):
                return name
        return ""

    def _without_mapping(self, wanted: Kind) -> Result:
        if self.item.mapped_gone:
            return self._discard("superseded", "The object was deleted there by a later decision.")
        return self._replaced(wanted, "There is nothing to update; a create takes its place.")

    def _replaced(self, kind: Kind, text: str) -> Result:
        sibling = self._sibling(kind)
        if not sibling:
            return self._to_review("no_mapping", f"{text} But no such action is declared.")
        result = self._discard("superseded", text)
        if result.move.after is State.DISCARDED:
            result.replace_with = sibling
        return result

    def _nothing_to_delete(self) -> Result:
        if self.item.doubt_left:
            return self._to_review(
                "inherited_doubt",
                "An earlier create may have happened: there may be something to delete "
                "that nobody knows.",
            )
        return self._discard(
            "superseded", "There is nothing to delete: the object was never created."
        )

    def _stale(self) -> Result:
        return self._discard(
            "stale", "A newer version has been sent; this one is no longer wanted."
        )

    def _discard(self, code: str, text: str) -> Result:
        if self.item.doubt:
            return self._to_review(code, text, doubt=True)
        return self._result(Verdict(State.DISCARDED, code, text, Outcome.GIVEN_BACK))

    # --- results ---

    def give_back(
        self, code: str = "given_back", text: str = "Given back before anything left."
    ) -> Result:
        """Return it unsent: it costs no attempt."""
        item = self.item
        if item.purpose is not Purpose.SEND:
            state = item.state
            return self._result(
                Verdict(
                    state, code, text, Outcome.GIVEN_BACK, doubt=item.doubt, costs_attempt=False
                )
            )
        back = State.RETRY if item.doubt or item.state is State.SENT else State.PENDING
        wait = 0.0 if code == "given_back" else 0.05
        return self._result(
            Verdict(
                back,
                code,
                text,
                Outcome.GIVEN_BACK,
                delay=wait,
                doubt=item.doubt,
                costs_attempt=False,
            )
        )

    def broken(self, error: Exception) -> Result | None:
        """The connector, or our code around it, raised: evidence, and U or N by whether it had
        begun (F117).
        """
        words = self.remote.scrubber.text(str(error), 200)
        text = f"{type(error).__name__} in the integration: {words}"
        if self.write is None:
            return self._to_review("code_missing", text)
        if self.item.purpose is not Purpose.SEND:
            return self._decided(Unanswered(text, kind=FailureKind.OTHER))
        return self._decided(
            Unanswered(text, nothing_left=not self._begun, kind=FailureKind.OTHER)
            if self._marked
            else Unanswered(text, nothing_left=True, kind=FailureKind.OTHER)
        )

    def _to_review(self, code: str, text: str, *, doubt: bool | None = None) -> Result:
        item = self.item
        return self._result(
            Verdict(
                State.REVIEW,
                code,
                text,
                Outcome.GIVEN_BACK,
                doubt=item.doubt if doubt is None else doubt,
                advice=Advice.LOOK_AGAIN if item.doubt else Advice.RETRY,
            )
        )

    def _facts(self, took: float, seen: Any) -> Facts:
        item = self.item
        now = item.claimed_at
        elapsed = self._drain.clock() - item.claimed_clock
        looking = item.purpose is not Purpose.SEND
        since = item.state_since if looking else (item.retry_since or now)
        if since is not None and self.remote.opened_at is not None:
            since = max(since, self.remote.opened_at)

        def ago(moment: datetime | None) -> float | None:
            return None if moment is None or now is None else (now - moment).total_seconds()

        # Counted from the claim, not from its beginning: waits are rather too long than too short.
        last, absent = ago(item.last_byte_at), ago(item.absent_since)
        first = ago(item.first_sent_at)
        # In doubt though never sent: its marker may have been forgotten, so its key may be as old
        # as the operation itself.
        unsent = (ago(item.created_at) or 0.0) if item.doubt else 0.0
        return Facts(
            state=item.state,
            action=self._declared,
            doubt=item.doubt,
            attempts=item.attempts,
            repeats=item.repeats,
            lapses=item.lapses,
            looks=item.looks,
            age=max(0.0, ago(since) or 0.0),
            since_last=None if last is None else last + (took if looking else 0.0),
            first_sent_ago=(first if first is not None else unsent) + elapsed,
            absent_for=None if absent is None else absent + took,
            look_took=took if looking else 0.0,
            clock_jumped=self._clock_jumped(now),
            version=item.version,
            restored=item.restored,
            inherited=item.doubt and item.first_sent_at is None and not item.restored,
            as_last_seen=self._as_last_seen(seen),
        )

    def _clock_jumped(self, now: datetime | None) -> bool:
        """Whether the database's clock made a step so lately that what left us before it may still
        be executed (A4): no wait that spans the step is to be trusted.
        """
        jumped, action = self.remote.clock_jumped_at, self._declared
        if jumped is None or now is None:
            return False
        spent = action.max_send + (action.max_exec or 0.0) + self._drain.tuning.margin
        return (now - jumped).total_seconds() < spent

    def _as_last_seen(self, seen: Any) -> bool:
        """Whether what differs there is as the mapping last saw it (asked after a restore only)."""
        if not self.item.restored or not isinstance(seen, Looked) or len(seen.candidates) != 1:
            return False
        known = json.loads(self.item.mapped_values)
        return all(d.theirs == known.get(d.field) for d in seen.candidates[0].differences)

    def _decided(self, seen: Any, took: float = 0.0, answer: Answer | None = None) -> Result:
        limits = self._drain.tuning.limits
        seen = fit(seen, self.remote.scrubber)
        facts = self._facts(took, seen)
        verdict = decide(facts, seen, limits, self._drain.roll())
        return self._result(verdict, seen=seen, facts=facts, took=took, answer=answer)

    def _result(
        self,
        verdict: Verdict,
        *,
        seen: Any = None,
        facts: Facts | None = None,
        took: float = 0.0,
        answer: Answer | None = None,
    ) -> Result:
        item, write = self.item, self.write
        unknown = (
            verdict.doubt
            and item.state is State.SENT
            and verdict.outcome in (Outcome.UNKNOWN, Outcome.CONFLICT, Outcome.DONE)
        )
        alive = None
        if verdict.state is State.RETRY and verdict.doubt and write is not None:
            facts = facts or self._facts(took, seen)
            alive = _key_life_left(write, facts)
        move = Settlement(
            item,
            verdict,
            Actor.WORKER,
            Tried(
                item.purpose,
                left=("maybe" if self._begun else "no") if self._marked else "",
                duration_ms=int(took * 1000) if took else None,
                remote_request_id=_request_id(answer, self.remote.scrubber),
                seen=_kept(seen, self.remote) if verdict.state is not State.CONFIRMED else "",
            ),
            last_byte=0.0 if unknown else None,
            look_took=took,
            kind=write.kind if write is not None else Kind.COMMAND,
            alive=alive,
            remote_ref=(
                item.mapped_ref
                if write is not None
                and write.kind in (Kind.UPDATE, Kind.DELETE)
                and not item.mapped_gone
                else ""
            ),
        )
        return Result(item, move, seen)

    def _request(self, fields: dict[str, Any]) -> Request:
        item = self.item
        mapped = bool(item.mapped_ref) and not item.mapped_gone
        return request_for(
            self.remote,
            item,
            fields,
            remote_ref=item.mapped_ref if mapped else "",
            remote_version=item.mapped_remote_version if mapped else "",
            seen_values=json.loads(item.mapped_values) if mapped else {},
            repeat=item.doubt or item.first_sent_at is not None,
        )


def _speaks_against_repeat(kind: Kind, found: Looked) -> bool:
    """Whether a look before a repeat found the effect; the object of a change is there anyway."""
    if kind is Kind.UPDATE:
        return any(one.matches for one in found.candidates)
    return kind is not Kind.DELETE and bool(found.candidates)


def _key_life_left(write: Write, facts: Facts) -> float | None:
    """How long a repeat by key may still be claimed, in seconds; None when no key has to live."""
    if write.safety not in (SafetyClass.A, SafetyClass.A_LOOK) or write.key_ttl is None:
        return None
    used = (facts.first_sent_ago or 0.0) + write.max_send + (write.max_exec or 0.0)
    return write.key_ttl * 0.9 - used


def _not_as_meant(remote_ref: str) -> Candidate:
    return Candidate(remote_ref, matches=False)


def _as_seen(failure: CallFailed | CallRefused) -> Seen:
    if isinstance(failure, CallRefused):
        return failure.refusal
    return Unanswered(
        sentence(failure.text),
        nothing_left=not failure.begun,
        kind=failure.kind,
        status=failure.status,
        retry_after=failure.retry_after,
    )


LONGEST_ID, LONGEST_VERSION = 255, 100
LONGEST_VALUES = 262_144
"""Characters of values that are kept of one answer. All of them are searched for secrets while the
event loop waits, so there is an end to it."""
_NOT_KEPT = "… (too long to be kept)"


def fit(seen: Any, scrubber: Scrubber) -> Any:
    """What was seen, as it may be stored on either database: one would refuse what the other keeps.

    An id that does not fit, or that holds a secret of ours, is none: half of it would name
    something else. Words lose secrets here, whoever wrote them.
    """

    def name(value: Any, longest: int = LONGEST_ID) -> str:
        text = str(value) if isinstance(value, (str, int)) else ""
        return text if scrubber.masked(clean(text, longest)) == text else ""

    room = LONGEST_VALUES

    def values(value: Any) -> Any:
        nonlocal room
        room -= 8 + (len(value) if isinstance(value, str) else 0)
        if room < 0:
            return _NOT_KEPT
        match value:
            case str():
                return scrubber.masked(clean(value, len(value) + 1))
            case Mapping():
                kept = named(value)
                return kept if room >= 0 else _NOT_KEPT
            case list() | tuple():
                found = [values(inner) for inner in value[: room // 8 + 1]]
                return found if room >= 0 else _NOT_KEPT
            case _:
                return value

    def named(given: Mapping[Any, Any]) -> dict[str, Any]:
        first = islice(given.items(), max(0, room) // 16 + 1)
        return {values(str(key)): values(inner) for key, inner in first}

    def candidate(one: Candidate) -> Candidate:
        ref = name(one.remote_ref)
        return replace(
            one,
            # A person may recognise it all the same; confirming by it is out of the question.
            remote_ref=ref or scrubber.text(str(one.remote_ref), LONGEST_ID),
            matches=one.matches and bool(ref),
            reference=scrubber.masked(one.reference),
            version=scrubber.masked(one.version),
            remote_version=name(one.remote_version, LONGEST_VERSION),
            values=named(one.values),
            fields=named(one.fields),
        )

    match seen:
        case Done():
            return replace(
                seen,
                remote_ref=name(seen.remote_ref),
                remote_version=name(seen.remote_version, LONGEST_VERSION),
                values=named(seen.values),
                note=scrubber.text(seen.note) if seen.note else "",
            )
        case Accepted():
            return replace(seen, reference=name(seen.reference))
        case Progress():
            return replace(
                seen,
                remote_ref=name(seen.remote_ref),
                remote_version=name(seen.remote_version, LONGEST_VERSION),
                values=named(seen.values),
                text=scrubber.text(seen.text),
            )
        case Looked():
            found = tuple(candidate(one) for one in seen.candidates)
            return replace(seen, candidates=found, text=scrubber.text(seen.text))
        case Refused():
            return replace(seen, text=scrubber.text(seen.text), code=scrubber.text(seen.code, 60))
        case Unanswered():
            return replace(seen, text=scrubber.text(seen.text))
        case _:
            return seen


def _request_id(answer: Answer | None, scrubber: Scrubber) -> str:
    if answer is None:
        return ""
    named = answer.header("x-request-id") or answer.header("x-bitrix-request-id")
    return scrubber.text(named, 120) if named else ""


def _kept(seen: Any, remote: Remote) -> str:
    """What was seen, as evidence: short, redacted, no personal data of a success."""
    match seen:
        case None:
            return ""
        case Refused():
            kept: Any = {
                "refused": seen.error,
                "code": seen.code,
                "status": seen.status,
                "text": seen.text,
            }
        case Unanswered():
            kept = {
                "unanswered": seen.kind or "",
                "left": "no" if seen.nothing_left else "maybe",
                "text": seen.text,
            }
        case Looked():
            kept = {
                "found": [c.remote_ref for c in seen.candidates],
                "complete": seen.complete,
                "text": seen.text,
            }
        case Progress():
            kept = {"job": seen.job, "text": seen.text}
        case Done():
            kept = {"done": seen.remote_ref, "echo": seen.echo, "text": seen.note}
        case Accepted():
            kept = {"accepted": seen.reference}
        case _:
            kept = {"seen": type(seen).__name__, "text": getattr(seen, "text", "")}
    return json.dumps(remote.scrubber.value(kept), ensure_ascii=False)
