"""What hard facts say of a record there that could be ours, and how sure it is that there is none.

No score decides here: a record is proven ours by what it carries or by what the remote returned, or
it is not. "Not there" allows a repeat only where `hub.waits.absence_trusted` does too.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from hub.verdicts import Facts
from hub.waits import absence_trusted

LIKE = 0.8
"""Share of the compared fields from which a record that nothing proves looks strongly like ours."""
POSSIBLE = 0.5
"""Share from which it is possible; below, it only weakly looks like it."""


class Proof(StrEnum):
    """What the hard facts say of a candidate."""

    PROVEN = "proven"
    STRONG = "strong"
    """Nothing proves it, but it looks very much like ours."""
    POSSIBLE = "possible"
    WEAK = "weak"
    REFUSED = "refused"
    """A person said that it is not ours. That hides it, and proves nothing."""
    EXCLUDED = "excluded"
    """It carries the reference of another record or operation of ours."""
    FOREIGN = "foreign"
    """Another organisation's or another account's: never shown."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What is known of one record there that could be ours."""

    ref: str
    carries_ours: bool = False
    """It carries our reference."""
    returned: bool = False
    """The remote returned its id in an attempt of this operation."""
    carries_other: str = ""
    """The record or operation of ours whose reference it carries instead."""
    linked_to: str = ""
    """The local record it is linked to, when that is another one."""
    refused: bool = False
    foreign: bool = False
    place: str = ""
    """Where it lies when it was put away there: bin, archive."""
    version: str = ""
    """The version of ours it carries, where it says so."""
    fields: int = 0
    """Fields we own that were compared."""
    different: int = 0
    """How many of them differ."""
    created_at: datetime | None = None
    sent_first: datetime | None = None
    """Before this, less the skew of the clocks, nothing of ours can have made it."""
    sent_last: datetime | None = None
    """After this, delays included, nothing of ours can have made it."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A candidate after the hard facts."""

    seen: Sighting
    proof: Proof
    linkable: bool
    """Whether a link to it could be made at all."""
    needs_senior: bool
    """It was deleted or put away there: to link it takes a senior."""
    existed_before: bool
    """It was made before our first send: not by this create."""
    by_somebody: bool
    """It was made after our last possible send and carries no reference: probably by hand."""

    @property
    def ref(self) -> str:
        return self.seen.ref

    @property
    def equal(self) -> int:
        """Fields we own that are equal there."""
        return self.seen.fields - self.seen.different

    @property
    def open(self) -> bool:
        """Whether it still has to be compared: not proven, not refused, not somebody else's."""
        return self.proof in (Proof.STRONG, Proof.POSSIBLE)

    @property
    def cast_aside(self) -> bool:
        """Whether only a person's word stands between it and a comparison."""
        return self.proof is Proof.REFUSED and _likeness(self.seen) is not Proof.WEAK


def judge(seen: Sighting) -> Judged:
    """Apply the hard facts to a candidate. What is proven stays so, whatever a person said."""
    before = _is_before(seen.created_at, seen.sent_first)
    proof = _proof(seen)
    after = proof is not Proof.PROVEN and _is_before(seen.sent_last, seen.created_at)
    shut_out = proof in (Proof.EXCLUDED, Proof.FOREIGN)
    return Judged(seen, proof, not shut_out and not seen.linked_to, bool(seen.place), before, after)


def _is_before(one: datetime | None, other: datetime | None) -> bool:
    return one is not None and other is not None and one < other


def _proof(seen: Sighting) -> Proof:
    if seen.foreign:
        return Proof.FOREIGN
    if seen.carries_ours or seen.returned:
        return Proof.PROVEN
    if seen.carries_other:
        return Proof.EXCLUDED
    if seen.refused:
        return Proof.REFUSED
    return _likeness(seen)


def _likeness(seen: Sighting) -> Proof:
    share = (seen.fields - seen.different) / seen.fields if seen.fields else 0.0
    if _is_before(seen.created_at, seen.sent_first):
        # It stood there before anything of ours left: at most it is what a person would link.
        return Proof.POSSIBLE if share >= POSSIBLE else Proof.WEAK
    if share >= LIKE:
        return Proof.STRONG
    return Proof.POSSIBLE if share >= POSSIBLE else Proof.WEAK


# --- how sure is it that it is not there? ---------------------------------------------------------


class Sureness(StrEnum):
    """What looks that found nothing amount to."""

    NOT_THERE = "not there"
    PROBABLY_NOT = "probably not there"
    CANNOT_SAY = "cannot say"


class Check(StrEnum):
    """One line of the meter."""

    PAGES = "every page was read"
    ACCOUNT = "the right account was asked"
    REFERENCE = "our reference cannot get lost there"
    EXECUTION = "late enough for a late execution"
    INDEX = "late enough for their index"
    TWICE = "looked twice"
    CLOCK = "our clock made no jump"
    SET_ASIDE = "no look-alike was set aside by a person"


DECISIVE = frozenset({Check.PAGES, Check.ACCOUNT, Check.REFERENCE})
"""Without these a look that found nothing says nothing at all."""


@dataclass(frozen=True, slots=True)
class Absence:
    """The meter: what it shows, and which checks are missing, in the order they are shown."""

    sureness: Sureness
    missing: tuple[Check, ...] = ()


def absence(
    facts: Facts,
    *,
    looked: bool = True,
    complete: bool = True,
    right_account: bool = True,
    reference_kept: bool = True,
    set_aside: bool = False,
) -> Absence:
    """How sure it is that it is not there, after the last look that found nothing.

    `facts.look_took` is how long ago that look was begun. Only `NOT_THERE` allows a repeat, and it
    is never said where `absence_trusted` would not say so (protocol §9.4); a person's "not the
    same" takes it away.
    """
    if not looked:
        return Absence(Sureness.CANNOT_SAY, (Check.PAGES,))
    action = facts.action
    since = facts.since_last
    late = (
        action.max_exec is not None
        and since is not None
        and since - facts.look_took >= action.max_exec
    )
    first = facts.absent_for
    apart = None if first is None else first - facts.look_took
    lag = action.index_lag
    passed = {
        Check.PAGES: complete,
        Check.ACCOUNT: right_account,
        Check.REFERENCE: reference_kept,
        Check.EXECUTION: late,
        Check.INDEX: action.authoritative
        or (lag is not None and late and apart is not None and apart >= lag),
        Check.TWICE: action.authoritative
        or (
            apart is not None
            and apart > 0
            and first is not None
            and since is not None
            and since - first >= (action.max_exec or 0.0)
        ),
        Check.CLOCK: not facts.clock_jumped,
        Check.SET_ASIDE: not set_aside,
    }
    missing = tuple(check for check, is_met in passed.items() if not is_met)
    if DECISIVE & set(missing):
        return Absence(Sureness.CANNOT_SAY, missing)
    if not missing and absence_trusted(facts):
        return Absence(Sureness.NOT_THERE)
    return Absence(Sureness.PROBABLY_NOT, missing or (Check.TWICE,))
