"""What a person is advised to do: one table, twenty-six rows, the first that matches.

`Situation` goes in, `Advised` comes out, for every situation there is: the last row takes what no
other does. Rows 3 to 9, 17 and 18 are about creates and commands, 14 to 16 about updates and
deletes by id. A row names what it cites; its words stand in `hub.panel.words`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from hub.candidates import Absence, Judged, Proof, Sureness
from hub.contract import Kind
from hub.states import State

Value = str | int | datetime


class Strength(StrEnum):
    """How far an advice may be followed without thinking it over."""

    SAFE = "safe"
    LIKELY = "likely"
    JUDGEMENT = "judgement"


class Verb(StrEnum):
    """What a person may do; the codes a decision is recorded with."""

    LOOK = "look_again"
    RETRY = "retry"
    SEND_ANYWAY = "send_again"
    LINK = "link"
    NOT_SAME = "not_same"
    CONFIRM = "confirm"
    DISCARD = "discard"
    CHOOSE = "choose"
    TAKE_OVER = "take_over"
    TAKE = "take"
    NOTE = "note"


class Happened(StrEnum):
    """Did it happen? Computed beside the state, never stored."""

    NO = "no"
    MAYBE = "maybe"
    STARTED = "started"
    YES = "yes"


def happened(state: State, *, doubt: bool, proven: bool = False) -> Happened:
    """Whether it happened there, as far as is known; `proven`: a look has seen it."""
    if state is State.CONFIRMED or proven:
        return Happened.YES
    if state is State.ACCEPTED:
        return Happened.STARTED
    if doubt or state in (State.SENT, State.UNCERTAIN):
        return Happened.MAYBE
    return Happened.NO


class Ended(StrEnum):
    """How the last try ended where nothing is in doubt."""

    NOTHING_LEFT = "nothing_left"
    FOR_NOW = "for_now"
    FOR_GOOD = "for_good"
    """Refused for good, not allowed, or a setting of ours is wrong."""
    OTHER = "other"


class Look(StrEnum):
    """The last look, and whether it may be gone by."""

    NONE = "none"
    """There is a way to look, and it was not used since the last send."""
    FAILED = "failed"
    INCOMPLETE = "incomplete"
    TOO_EARLY = "too_early"
    GOOD = "good"


class ReadBack(StrEnum):
    """What a record that is known by its id shows."""

    EQUAL = "equal"
    """Every field we own is as we mean it; for a delete, it is gone."""
    BEFORE = "before"
    """It is as it was last seen before our send."""
    NEITHER = "neither"


@dataclass(frozen=True, slots=True)
class Asked:
    """A field two systems disagree on; `owner` decides where a rule says who does."""

    field: str
    ours: str = ""
    theirs: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Situation:
    """All facts the table goes by. Moments are given, nothing here asks a clock."""

    kind: Kind = Kind.CREATE
    doubt: bool = False
    system: str = ""
    contact: str = ""
    data_changed: bool = False
    """The data differs from what was first sent under this key."""
    in_hand_until: datetime | None = None
    """A worker holds a live lease."""
    candidates: tuple[Judged, ...] = ()
    duplicates: int = 0
    """Objects this operation is known to have made, when that was found out another way."""
    version: int = 0
    result_version: str = ""
    """The source version the result belongs to, when that is another one."""
    newest: int = 0
    """The newest version of the record that waits; 0 when there is none."""
    newer_covers: bool = False
    """That version replaces every field of this one."""
    overtaken: int = 0
    """A newer version that was sent already and says all that this one says; 0: there is none."""
    own_link: str = ""
    """What the record itself is linked to there."""
    ended: Ended = Ended.OTHER
    said: str = ""
    """The remote's words, or what was found wrong."""
    can_look: bool = True
    look: Look = Look.NONE
    looks: int = 0
    look_from: datetime | None = None
    """From when a look counts."""
    read_back: ReadBack | None = None
    repeat_harmless: bool = False
    repeat_until: datetime | None = None
    """Until when they recognise a repeat; None: a repeat changes nothing, whenever it comes."""
    key_gone_at: datetime | None = None
    absence: Absence = field(default_factory=lambda: Absence(Sureness.CANNOT_SAY))
    job_lost: bool = False
    ask: Asked | None = None
    """A rule says: ask a person."""
    difference: Asked | None = None
    """A comparison found a difference."""
    access_refused_since: datetime | None = None
    waiting: int = 0

    @property
    def by_id(self) -> bool:
        """Whether it is about a record that is known by its id."""
        return self.kind in (Kind.UPDATE, Kind.DELETE)

    @property
    def proven(self) -> tuple[Judged, ...]:
        return tuple(one for one in self.candidates if one.proof is Proof.PROVEN)

    @property
    def strong(self) -> tuple[Judged, ...]:
        return tuple(one for one in self.candidates if one.proof is Proof.STRONG)

    @property
    def to_compare(self) -> tuple[Judged, ...]:
        """What nothing proves, and nobody has looked at yet."""
        return tuple(one for one in self.candidates if one.open)


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact an advice cites: a key of `hub.panel.words.FACTS`, and what stands in it."""

    said: str
    params: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Advised:
    """One row of the table, applied. `verb` is None where there is nothing to press: to wait, to
    compare, to ask somebody, to repair something elsewhere.
    """

    row: int
    verb: Verb | None
    strength: Strength
    params: dict[str, Value] = field(default_factory=dict)
    facts: tuple[Fact, ...] = ()
    would_change: tuple[str, ...] = ()


Params = dict[str, Value]


@dataclass(frozen=True, slots=True)
class _Row:
    """One row: when it holds, what it advises, what stands in its sentence."""

    matches: Callable[[Situation], bool]
    verb: Verb | None
    strength: Strength
    would_change: tuple[str, ...] = ()
    params: Callable[[Situation], Params] = lambda situation: {}
    cites: tuple[str, ...] = ()


# --- the conditions -------------------------------------------------------------------------------


def _one_proven(s: Situation) -> Judged | None:
    """The one proven record of a create or a command."""
    return s.proven[0] if not s.by_id and len(s.proven) == 1 else None


def _several(s: Situation) -> int:
    return max(s.duplicates, 0 if s.by_id else len(s.proven))


def _linked_elsewhere(s: Situation) -> str:
    """What stands against the link of the one proven record: its own, or the record's own."""
    one = _one_proven(s)
    if one is None:
        return ""
    return one.seen.linked_to or (s.own_link if s.own_link not in ("", one.ref) else "")


def _put_away(s: Situation) -> bool:
    one = _one_proven(s)
    return one is not None and bool(one.seen.place)


def _differs(s: Situation) -> bool:
    one = _one_proven(s)
    return one is not None and one.seen.different > 0


def _moved_on(s: Situation) -> bool:
    return s.newest > s.version


def _replaced(s: Situation) -> int:
    """The newer version that makes this one needless; 0 when there is none."""
    return s.newest if s.newer_covers and _moved_on(s) else s.overtaken


def _certain(s: Situation) -> bool:
    """Nothing is in doubt, and an operation stopped over it."""
    return not s.doubt


def _early(s: Situation) -> bool:
    return s.doubt and s.can_look and s.look is not Look.GOOD


def _read(s: Situation, shows: ReadBack) -> bool:
    return s.doubt and s.by_id and s.read_back is shows


def _one_strong(s: Situation) -> bool:
    return s.doubt and not s.by_id and not s.proven and len(s.strong) == 1 == len(s.to_compare)


def _to_compare(s: Situation) -> bool:
    # One that is only possible needs the same comparison: a repeat could duplicate it.
    return s.doubt and not s.by_id and not s.proven and bool(s.to_compare)


def _lost(s: Situation) -> bool:
    return s.doubt and (s.job_lost or not s.can_look or s.absence.sureness is Sureness.CANNOT_SAY)


# --- what stands in the sentences -----------------------------------------------------------------


def _of_proven(s: Situation) -> Params:
    one = _one_proven(s)
    assert one is not None  # noqa: S101 - asked only where the row has matched
    found: Params = {"id": one.ref, "n": one.seen.different}
    if _linked_elsewhere(s):
        found["other"] = _linked_elsewhere(s)
        if not one.seen.linked_to:
            found["own"] = s.own_link
    if one.seen.place:
        found["place"] = one.seen.place
    if _moved_on(s):
        found["version"] = s.newest
    return found


def _of_strong(s: Situation) -> Params:
    one = s.strong[0]
    return {"id": one.ref, "n": one.equal, "m": one.seen.fields}


def _of_missing(s: Situation) -> Params:
    return {"missing": s.absence.missing[0].value if s.absence.missing else ""}


def _when(**moments: datetime | None) -> Params:
    return {name: value for name, value in moments.items() if value is not None}


def _of_asked(asked: Asked | None) -> Params:
    assert asked is not None  # noqa: S101 - asked only where the row has matched
    return {
        "field": asked.field, "ours": asked.ours, "theirs": asked.theirs, "owner": asked.owner
    }  # fmt: skip


# --- the table ------------------------------------------------------------------------------------

_SAFE, _LIKELY, _JUDGEMENT = Strength.SAFE, Strength.LIKELY, Strength.JUDGEMENT

TABLE: dict[int, _Row] = {
    1: _Row(lambda s: s.data_changed, Verb.DISCARD, _SAFE, ("wanted",), cites=("data_changed",)),
    2: _Row(
        lambda s: s.in_hand_until is not None, None, _SAFE, ("lease",),
        lambda s: _when(time=s.in_hand_until), ("in_hand",),
    ),
    3: _Row(
        lambda s: _several(s) >= 2, Verb.LINK, _JUDGEMENT, ("one_withdrawn",),
        lambda s: {"n": _several(s)}, ("proven", "duplicates"),
    ),
    4: _Row(
        lambda s: bool(_linked_elsewhere(s)), None, _JUDGEMENT, ("link_freed",),
        _of_proven, ("proven", "linked", "own_link"),
    ),
    5: _Row(
        _put_away, Verb.LINK, _JUDGEMENT, ("restored_there",),
        _of_proven, ("proven", "put_away"),
    ),
    6: _Row(
        lambda s: not s.by_id and bool(s.result_version), Verb.DISCARD, _JUDGEMENT,
        ("version_wanted",),
        lambda s: {"a": s.result_version, "b": s.version}, ("proven", "result_version"),
    ),
    7: _Row(
        _differs, Verb.LINK, _JUDGEMENT, ("fields_equal",),
        _of_proven, ("proven", "different", "free"),
    ),
    8: _Row(
        lambda s: _one_proven(s) is not None and not _moved_on(s), Verb.LINK, _SAFE,
        ("second_proven", "linked_meanwhile"), _of_proven, ("proven", "equal", "free"),
    ),
    9: _Row(
        lambda s: _one_proven(s) is not None, Verb.LINK, _SAFE,
        ("second_proven", "linked_meanwhile"), _of_proven, ("proven", "equal", "free", "newer"),
    ),
    10: _Row(
        lambda s: _certain(s) and _replaced(s) > 0, Verb.DISCARD, _SAFE,
        ("newer_gone",), lambda s: {"version": _replaced(s)}, ("ended", "newer"),
    ),
    11: _Row(
        lambda s: _certain(s) and s.ended in (Ended.NOTHING_LEFT, Ended.FOR_NOW),
        Verb.RETRY, _SAFE, ("trace",), lambda s: {"system": s.system}, ("ended", "newer"),
    ),
    12: _Row(
        lambda s: _certain(s) and s.ended is Ended.FOR_GOOD, Verb.RETRY, _SAFE, ("corrected",),
        lambda s: {"system": s.system, "words": s.said}, ("ended", "newer"),
    ),
    13: _Row(
        _early, Verb.LOOK, _SAFE, ("good_look",),
        lambda s: _when(time=s.look_from), ("doubt", "look", "to_compare"),
    ),
    14: _Row(
        lambda s: _read(s, ReadBack.EQUAL), Verb.CONFIRM, _SAFE, ("read_differs",),
        cites=("doubt", "read_back"),
    ),
    15: _Row(
        lambda s: _read(s, ReadBack.BEFORE), Verb.RETRY, _SAFE, ("read_differs",),
        cites=("doubt", "read_back", "newer"),
    ),
    16: _Row(
        lambda s: _read(s, ReadBack.NEITHER), None, _JUDGEMENT, ("read_equal",),
        cites=("doubt", "read_back", "newer"),
    ),
    17: _Row(
        _one_strong, Verb.LINK, _LIKELY, ("second_like", "reference_seen"),
        _of_strong, ("doubt", "look", "to_compare", "before_after"),
    ),
    18: _Row(
        _to_compare, None, _JUDGEMENT, ("reference_seen",),
        lambda s: {"n": len(s.to_compare)}, ("doubt", "look", "to_compare", "before_after"),
    ),
    19: _Row(
        lambda s: s.doubt and s.repeat_harmless, Verb.RETRY, _SAFE, ("key_out",),
        lambda s: {"system": s.system, **_when(until=s.repeat_until)},
        ("doubt", "repeat", "look", "newer"),
    ),
    20: _Row(
        lambda s: s.doubt and not s.job_lost and s.can_look
        and s.absence.sureness is Sureness.NOT_THERE,
        Verb.RETRY, _SAFE, ("trace",), lambda s: {"n": s.looks}, ("doubt", "look", "absence"),
    ),
    21: _Row(
        lambda s: s.doubt and not _lost(s), Verb.SEND_ANYWAY, _JUDGEMENT, ("check_made",),
        _of_missing, ("doubt", "look", "absence", "refused", "key_gone"),
    ),
    22: _Row(
        _lost, Verb.CONFIRM, _JUDGEMENT, ("told_there",),
        lambda s: {"contact": s.contact}, ("doubt", "look", "absence", "refused", "key_gone"),
    ),
    23: _Row(
        lambda s: s.ask is not None, Verb.CHOOSE, _JUDGEMENT, ("owner_named",),
        lambda s: _of_asked(s.ask), ("asked",),
    ),
    24: _Row(
        lambda s: s.difference is not None and bool(s.difference.owner), Verb.CHOOSE, _LIKELY,
        ("values_equal",), lambda s: _of_asked(s.difference), ("difference",),
    ),
    25: _Row(
        lambda s: s.access_refused_since is not None, None, _SAFE, ("access_open",),
        lambda s: {"system": s.system, "n": s.waiting, **_when(time=s.access_refused_since)},
        ("access",),
    ),
    26: _Row(lambda s: True, None, _JUDGEMENT, ("more_known",), cites=()),
}  # fmt: skip
"""The rows in their order. A case that no operation stands behind is in no doubt, and `ended` is
`OTHER`: rows 10 to 12 pass it by."""


def advise(situation: Situation) -> Advised:
    """The first row that holds. Total: there is an answer for every situation."""
    for number, row in TABLE.items():
        if row.matches(situation):
            cited = tuple(
                fact for group, fact in _facts(situation) if not row.cites or group in row.cites
            )
            return Advised(
                number,
                _verb(number, row, situation),
                row.strength,
                row.params(situation),
                cited,
                row.would_change,
            )
    raise AssertionError("the last row takes everything")


def _verb(number: int, row: _Row, s: Situation) -> Verb | None:
    if number == 22 and s.kind is Kind.CREATE:
        return Verb.LINK  # to mark a create as done is to name its record
    return row.verb


# --- the facts ------------------------------------------------------------------------------------


def _facts(s: Situation) -> list[tuple[str, Fact]]:
    """All that is known, in the order it is read, each fact under the group a row cites."""
    found: list[tuple[str, Fact]] = []

    def add(group: str, said: str, **params: Value) -> None:
        found.append((group, Fact(said, params)))

    if s.data_changed:
        add("data_changed", "data_changed")
    if s.in_hand_until is not None:
        add("in_hand", "in_hand", time=s.in_hand_until)
    if s.doubt:
        add("doubt", "doubt")
    elif s.ended is not Ended.OTHER:
        add("ended", s.ended.value, words=s.said)
    if s.can_look:
        add("look", f"look_{s.look.value}", n=s.looks)
    else:
        add("look", "no_look", system=s.system)
    for one in s.candidates:
        _facts_of(one, s, add)
    if s.duplicates:
        add("duplicates", "duplicates", n=s.duplicates)
    if s.own_link:
        add("own_link", "own_link", id=s.own_link)
    if s.result_version:
        add("result_version", "result_version", a=s.result_version, b=s.version)
    if s.read_back is not None:
        add("read_back", f"read_{s.read_back.value}")
    if s.repeat_harmless:
        if s.repeat_until is not None:
            add("repeat", "key_alive", time=s.repeat_until)
        else:
            add("repeat", "harmless")
    if s.key_gone_at is not None:
        add("key_gone", "key_gone", time=s.key_gone_at)
    for check in s.absence.missing:
        add("absence", "check_missing", check=check.value)
    if s.job_lost:
        add("absence", "job_lost")
    if _moved_on(s):
        add("newer", "newer", version=s.newest)
    if s.overtaken:
        add("newer", "overtaken", version=s.overtaken)
    for group, asked in (("asked", s.ask), ("difference", s.difference)):
        if asked is not None:
            add(group, group, **_of_asked(asked))
    if s.access_refused_since is not None:
        add("access", "access", time=s.access_refused_since, n=s.waiting, words=s.said)
    return found


def _facts_of(one: Judged, s: Situation, add: Callable[..., None]) -> None:
    match one.proof:
        case Proof.PROVEN:
            add("proven", "carries_ours" if one.seen.carries_ours else "returned", id=one.ref)
            if one.seen.different:
                add("different", "different", id=one.ref, n=one.seen.different)
            elif one.seen.fields:
                add("equal", "equal", id=one.ref)
            if one.seen.linked_to:
                add("linked", "linked", id=one.ref, other=one.seen.linked_to)
            elif s.own_link in ("", one.ref):
                add("free", "free", id=one.ref)
            if one.seen.place:
                add("put_away", "put_away", id=one.ref, place=one.seen.place)
        case Proof.STRONG | Proof.POSSIBLE | Proof.WEAK:
            add("to_compare", "looks_like", id=one.ref, n=one.equal, m=one.seen.fields)
            if one.existed_before:
                add("before_after", "existed_before", id=one.ref)
            if one.by_somebody:
                add("before_after", "by_somebody", id=one.ref)
        case Proof.REFUSED:
            add("refused", "refused", id=one.ref)
        case Proof.EXCLUDED:
            add("excluded", "carries_other", id=one.ref, other=one.seen.carries_other)
        case Proof.FOREIGN:
            pass  # never shown
