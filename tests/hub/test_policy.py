"""The judgement as sentences one can argue about: what was declared, what was seen, what follows.

Protocol §8 to §11 in rows. The promise over every combination stands in `test_policy_product.py`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from hub.contract import (
    CONDITIONAL_WRITE,
    FIND_BY_EXTERNAL_ID,
    FULL_STATE,
    IDEMPOTENCY_KEY,
    POLL_JOB,
    Accepted,
    BodyLost,
    Candidate,
    Capability,
    Conflict,
    Done,
    Echo,
    FailureKind,
    JobState,
    Kind,
    Lapsed,
    Looked,
    Progress,
    Refused,
    SafetyClass,
    Seen,
    Unanswered,
    Write,
)
from hub.policy import (
    Advice,
    Breath,
    Facts,
    Halt,
    Limits,
    Verdict,
    backoff,
    decide,
    degraded,
    hold_for,
    inherit,
    look_delay,
)
from hub.states import Actor, ErrorClass, Outcome, State, allowed

LIMITS = Limits()
HOUR, DAY = 3600.0, 86_400.0

# --- what is declared -----------------------------------------------------------------------------

key_only = Write(IDEMPOTENCY_KEY, Kind.CREATE, max_exec=60, key_ttl=HOUR)
key_and_look = replace(key_only, capabilities=IDEMPOTENCY_KEY | FIND_BY_EXTERNAL_ID, index_lag=20.0)
key_update = replace(key_only, kind=Kind.UPDATE, look=True)
clumsy_key = replace(key_only, key_atomic=False)
conditional = Write(CONDITIONAL_WRITE, Kind.UPDATE, max_exec=60)
create_if_absent = replace(conditional, kind=Kind.CREATE)
full_state = Write(FULL_STATE, Kind.UPDATE, max_exec=60)
full_state_look = replace(full_state, look=True, authoritative=True)
full_state_unsaid = replace(full_state, max_exec=None)
put = replace(full_state, kind=Kind.CREATE)
deletion = replace(full_state, kind=Kind.DELETE)
deletion_look = replace(deletion, look=True)
findable = Write(FIND_BY_EXTERNAL_ID, Kind.CREATE, max_exec=60, index_lag=20)
exactly_findable = replace(findable, authoritative=True, index_lag=None)
unsaid = replace(findable, max_exec=None)
bare = Write(kind=Kind.CREATE)
polled = Write(FIND_BY_EXTERNAL_ID | POLL_JOB, Kind.COMMAND, max_exec=60, index_lag=20)

CLASSES = {
    "a": key_only,
    "a+look": key_and_look,
    "b": conditional,
    "b′": full_state,
    "b′+look": full_state_look,
    "c": findable,
    "d": bare,
}

# --- what is seen ---------------------------------------------------------------------------------


def unsent(kind: FailureKind, text: str) -> Unanswered:
    """No byte left, for this reason."""
    return Unanswered(text, nothing_left=True, kind=kind)


silence = Unanswered("read timed out")
unreached = unsent(FailureKind.CONNECT, "connection refused")
busy = Refused(ErrorClass.TRANSIENT, "locked", status=423)
throttled = Refused(ErrorClass.THROTTLED, "slow down", status=429, retry_after=90.0)
invalid = Refused(ErrorClass.INVALID, "name is missing", status=422)
denied = Refused(ErrorClass.DENIED, "not yours", status=403)
dead_login = Refused(ErrorClass.CREDENTIAL, "expired", status=401)
missing = Refused(ErrorClass.MISSING, "no such item", status=404)
done = Done("41", "v1")
cut = BodyLost(201, "HTTP 201, but the body was cut")
nothing = Looked()
same = Candidate("41", matches=True)
other = Candidate("41", matches=False)


def conflict(kind: Conflict) -> Refused:
    return Refused(ErrorClass.CONFLICT, "conflict", status=409, conflict=kind)


def facts(action: Write, state: State = State.SENT, **more: Any) -> Facts:
    """An operation sent a moment ago, for the first time, unless said otherwise."""
    given = {"first_sent_ago": 1.0, "version": 7, **more}
    return Facts(state, action, **given)


def looking(action: Write, since: float = 100.0, **more: Any) -> Facts:
    """In doubt, and looked at `since` seconds after our bytes can last have left."""
    return facts(
        action,
        State.UNCERTAIN,
        **{"doubt": True, "since_last": since, "first_sent_ago": since + 30, **more},
    )


def follows(known: Facts, seen: Seen, roll: float = 0.5) -> Verdict:
    """The verdict, once it is sure that somebody may make the move."""
    verdict = decide(known, seen, LIMITS, roll)
    assert verdict.state is known.state or any(
        allowed(known.state, verdict.state, actor) for actor in (Actor.WORKER, Actor.SWEEP)
    ), f"{known.state} → {verdict.state} is no move of the protocol"
    assert verdict.text
    return verdict


def leads_to(known: Facts, seen: Seen, state: State, code: str) -> Verdict:
    """The verdict, once it is sure that it is this one."""
    verdict = follows(known, seen)
    assert (verdict.state, verdict.code) == (state, code)
    return verdict


def rows(*table: tuple[str, Facts, Seen, State, str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("known", "seen", "state", "code"),
        [pytest.param(*row[1:], id=row[0]) for row in table],
    )


# --- the classes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "safety"),
    [
        (key_only, SafetyClass.A),
        (key_and_look, SafetyClass.A_LOOK),
        (conditional, SafetyClass.B),
        (full_state, SafetyClass.B_PRIME),
        (full_state_look, SafetyClass.B_PRIME),
        (findable, SafetyClass.C),
        (bare, SafetyClass.D),
        (replace(key_only, key_ttl=None), SafetyClass.D),
        (replace(key_and_look, key_ttl=None), SafetyClass.C),
    ],
)
def test_a_declaration_amounts_to_a_class(action: Write, safety: SafetyClass) -> None:
    assert action.safety is safety


# --- the second table of protocol §10, row by row -------------------------------------------------


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("seen", [unreached, busy, throttled], ids=["N", "T", "T throttled"])
def test_nothing_left_or_refused_for_now_is_tried_again(name: str, seen: Seen) -> None:
    verdict = follows(facts(CLASSES[name]), seen)
    assert verdict.state is State.RETRY
    assert not verdict.doubt


UNKNOWN = {
    "a": State.RETRY,
    "a+look": State.UNCERTAIN,
    "b": State.UNCERTAIN,
    "b′": State.UNCERTAIN,
    "b′+look": State.UNCERTAIN,
    "c": State.UNCERTAIN,
    "d": State.REVIEW,
}


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize(
    ("seen", "code"),
    [
        (silence, "unknown"),
        (Unanswered("HTTP 503", status=503), "unknown"),
        (Refused(ErrorClass.UNKNOWN, "fault"), "unknown"),
        (Lapsed(), "lapsed"),
        (cut, "body_lost"),
        (Accepted(""), "unknown"),
        (Looked(), "unknown"),
        (Done("41", echo=Echo.OTHER), "unknown"),
    ],
    ids=["silence", "5xx", "fault", "lapse", "body lost", "no job", "nonsense", "other echo"],
)
def test_what_may_have_happened_goes_by_its_class(name: str, seen: Seen, code: str) -> None:
    known = facts(CLASSES[name], since_last=-5.0 if seen == Lapsed() else None)
    verdict = follows(known, seen)
    assert verdict.state is UNKNOWN[name]
    assert verdict.code == code
    assert verdict.outcome is Outcome.UNKNOWN
    assert verdict.doubt


@pytest.mark.parametrize("name", CLASSES)
def test_done_is_confirmed(name: str) -> None:
    for doubt in (False, True):
        known = facts(CLASSES[name], doubt=doubt)
        verdict = leads_to(known, done, State.CONFIRMED, "confirmed")
        assert verdict.done == done


@pytest.mark.parametrize("name", CLASSES)
def test_refused_for_good_is_failed(name: str) -> None:
    verdict = leads_to(facts(CLASSES[name]), invalid, State.FAILED, "refused")
    assert not verdict.doubt
    assert "name is missing" in verdict.text
    assert verdict.advice is Advice.CORRECT


@pytest.mark.parametrize("name", CLASSES)
def test_denied_goes_to_a_person_and_a_dead_login_stops_the_connection(name: str) -> None:
    assert not leads_to(facts(CLASSES[name]), denied, State.REVIEW, "denied").doubt
    paused = leads_to(facts(CLASSES[name]), dead_login, State.RETRY, "credential")
    assert paused.halt is Halt.CREDENTIAL
    assert not paused.costs_attempt


@pytest.mark.parametrize("name", CLASSES)
def test_a_lease_lost_before_the_marker_costs_nothing(name: str) -> None:
    verdict = leads_to(facts(CLASSES[name], State.RUNNING), Lapsed(), State.PENDING, "lapsed")
    assert verdict.adds_lapse
    assert not verdict.doubt


REPEATABLE = ["a", "a+look", "b", "b′", "b′+look"]


@pytest.mark.parametrize("name", CLASSES)
def test_a_lost_repeat_keeps_its_doubt(name: str) -> None:
    # F116, W26: never back to `pending`. c and d in doubt are here only when a class was lost.
    verdict = follows(facts(CLASSES[name], State.RUNNING, doubt=True), Lapsed())
    expected = State.RETRY
    if name not in REPEATABLE:
        expected = State.UNCERTAIN if CLASSES[name].can_look else State.REVIEW
    assert verdict.state is expected
    assert verdict.doubt


# --- after the marker -----------------------------------------------------------------------------


@rows(
    (
        "a connection refused is tried again",
        facts(bare),
        unreached,
        State.RETRY,
        "not_reached",
    ),
    (
        "a guard's stop is given back",
        facts(bare),
        unsent(FailureKind.ABORTED, "too late"),
        State.RETRY,
        "given_back",
    ),
    (
        "a forbidden address is configuration",
        facts(findable),
        unsent(FailureKind.ADDRESS, "10.0.0.1 is not allowed"),
        State.FAILED,
        "configuration",
    ),
    (
        "a request that cannot be formed is our defect",
        facts(findable),
        unsent(FailureKind.LOCAL, "bad header"),
        State.FAILED,
        "our_defect",
    ),
    (
        "the same in doubt is no failure",
        facts(key_only, doubt=True),
        unsent(FailureKind.LOCAL, "bad header"),
        State.REVIEW,
        "our_defect",
    ),
    (
        "a bad certificate waits behind a closed gate",
        facts(bare),
        unsent(FailureKind.CERTIFICATE, "expired"),
        State.RETRY,
        "certificate",
    ),
    (
        "a proxy that wants a login as well",
        facts(bare),
        unsent(FailureKind.PROXY_AUTH, "407"),
        State.RETRY,
        "proxy_login",
    ),
    (
        "what nobody foresaw is tried twice more",
        facts(bare, attempts=2),
        unsent(FailureKind.OTHER, "KeyError"),
        State.RETRY,
        "our_defect",
    ),
    (
        "and then seen by a person",
        facts(bare, attempts=3),
        unsent(FailureKind.OTHER, "KeyError"),
        State.REVIEW,
        "our_defect",
    ),
    (
        "eight attempts are enough",
        facts(bare, attempts=8),
        unreached,
        State.REVIEW,
        "exhausted",
    ),
    (
        "a day of trying is enough",
        facts(findable, age=DAY),
        unreached,
        State.REVIEW,
        "exhausted",
    ),
    (
        "a day of being refused for now, too",
        facts(findable, age=DAY),
        busy,
        State.REVIEW,
        "exhausted",
    ),
    (
        "the lease of one operation lost three times is its own fault",
        facts(key_only, lapses=2, since_last=-5.0),
        Lapsed(),
        State.REVIEW,
        "poison",
    ),
    (
        "a job that was taken over is asked for",
        facts(polled),
        Accepted("job-1", poll_after=3.0),
        State.ACCEPTED,
        "accepted",
    ),
    (
        "the acceptance of somebody else's request is none",
        facts(polled),
        Accepted("job-1", echo=Echo.OTHER),
        State.UNCERTAIN,
        "unknown",
    ),
    (
        "a create that names no object is looked for",
        facts(findable),
        Done(""),
        State.UNCERTAIN,
        "body_lost",
    ),
    (
        "a create whose reference was dropped could not be found again",
        facts(findable),
        Done("41", echo=Echo.MISSING),
        State.REVIEW,
        "reference_ignored",
    ),
    (
        "a first answer without a sign of our key is done, and the key is not relied on again",
        facts(key_only),
        Done("41", echo=Echo.MISSING),
        State.CONFIRMED,
        "confirmed",
    ),
    (
        "a repeat without it may be a second one",
        facts(key_only, doubt=True),
        Done("41", echo=Echo.MISSING),
        State.REVIEW,
        "key_ignored",
    ),
    (
        "a missing object is a deletion done",
        facts(deletion),
        missing,
        State.CONFIRMED,
        "already_gone",
    ),
    (
        "a missing object cannot be changed",
        facts(full_state),
        missing,
        State.REVIEW,
        "vanished",
    ),
    (
        "a missing place to create in is a refusal",
        facts(findable),
        missing,
        State.FAILED,
        "refused",
    ),
    (
        "a refused repeat proves nothing about the first copy (F115)",
        facts(key_only, doubt=True),
        invalid,
        State.RETRY,
        "unknown",
    ),
    (
        "a refused repeat with a look is looked for",
        facts(key_and_look, doubt=True),
        invalid,
        State.UNCERTAIN,
        "unknown",
    ),
    (
        "a refused repeat of what offers nothing goes to a person",
        facts(bare, doubt=True),
        invalid,
        State.REVIEW,
        "unknown",
    ),
)
def test_after_the_marker(known: Facts, seen: Seen, state: State, code: str) -> None:
    leads_to(known, seen, state, code)


@rows(
    (
        "our key is still worked on: wait, same key",
        facts(key_only),
        conflict(Conflict.KEY_IN_PROGRESS),
        State.RETRY,
        "key_in_progress",
    ),
    (
        "the key's life is over: look",
        facts(key_and_look, first_sent_ago=0.95 * HOUR),
        conflict(Conflict.KEY_IN_PROGRESS),
        State.UNCERTAIN,
        "unknown",
    ),
    (
        "the key's life is over, and nothing to look with",
        facts(key_only, first_sent_ago=0.95 * HOUR),
        conflict(Conflict.KEY_IN_PROGRESS),
        State.REVIEW,
        "key_used_up",
    ),
    (
        "no attempts left to wait with",
        facts(key_only, attempts=8),
        conflict(Conflict.KEY_IN_PROGRESS),
        State.REVIEW,
        "key_used_up",
    ),
    (
        "our key with another content is drift",
        facts(key_only),
        conflict(Conflict.KEY_REUSED),
        State.REVIEW,
        "key_reused",
    ),
    (
        "it exists already: look",
        facts(create_if_absent),
        conflict(Conflict.EXISTS),
        State.UNCERTAIN,
        "exists",
    ),
    (
        "another version is there: read",
        facts(conditional),
        conflict(Conflict.VERSION),
        State.UNCERTAIN,
        "version_conflict",
    ),
    (
        "it exists already, and nothing to look with",
        facts(bare),
        conflict(Conflict.EXISTS),
        State.REVIEW,
        "conflict",
    ),
    (
        "a conflict nobody explains",
        facts(findable),
        conflict(Conflict.OTHER),
        State.REVIEW,
        "conflict",
    ),
)
def test_conflicts(known: Facts, seen: Seen, state: State, code: str) -> None:
    verdict = leads_to(known, seen, state, code)
    if isinstance(seen, Refused) and seen.conflict is Conflict.KEY_IN_PROGRESS:
        assert verdict.doubt, "it works on our key, so it may be executed"


def test_an_answer_to_another_request_shows_what_the_connector_saw() -> None:
    seen = Done("41", echo=Echo.OTHER, note="It carries the reference zz9.")
    verdict = follows(facts(findable), seen)
    assert "zz9" in verdict.text


@pytest.mark.parametrize(
    "seen",
    [
        Unanswered("HTTP 500", status=500, replayed=True),
        Refused(ErrorClass.INVALID, "HTTP 422", status=422, replayed=True),
        Refused(ErrorClass.THROTTLED, "HTTP 429", status=429, replayed=True),
    ],
    ids=["500", "422", "429"],
)
@pytest.mark.parametrize("action", [key_only, key_and_look], ids=["a", "a+look"])
def test_an_error_kept_under_our_key_is_not_asked_for_eight_times(
    action: Write, seen: Unanswered | Refused
) -> None:
    # F50: every repeat returns the old error; noticed by the replay sign.
    known = facts(action, doubt=True, attempts=2)
    verdict = leads_to(known, seen, State.REVIEW, "key_stores_error")
    assert verdict.doubt
    assert verdict.assumption == "A2"
    assert "key of its own" in verdict.text
    assert verdict.status == seen.status


def test_a_first_try_that_brings_an_old_error_was_not_the_first() -> None:
    seen = Unanswered("HTTP 500", status=500, replayed=True)
    assert leads_to(facts(key_only), seen, State.REVIEW, "key_stores_error").doubt


# --- repeats --------------------------------------------------------------------------------------


def test_a_repeat_by_key_waits_for_the_first_copy_unless_the_key_is_atomic() -> None:
    # F54
    assert follows(facts(key_only), silence).delay < 60
    assert follows(facts(clumsy_key), silence).delay >= 60
    lapsed = facts(clumsy_key, since_last=-20.0)
    assert follows(lapsed, Lapsed()).delay >= 80


def test_a_key_that_is_not_atomic_is_worth_nothing_without_max_exec() -> None:
    action = replace(clumsy_key, max_exec=None)
    assert follows(facts(action), silence).state is State.REVIEW
    look = replace(action, capabilities=IDEMPOTENCY_KEY | FIND_BY_EXTERNAL_ID)
    assert follows(facts(look), silence).state is State.UNCERTAIN
    leads_to(looking(look, 200.0), nothing, State.UNCERTAIN, "looking")


@pytest.mark.parametrize(
    ("ago", "state", "code"),
    [(HOUR * 0.9 - 200, State.RETRY, "unknown"), (HOUR * 0.9 - 80, State.REVIEW, "key_used_up")],
)
def test_a_repeat_must_be_answered_within_the_life_of_its_key(
    ago: float, state: State, code: str
) -> None:
    # §8: now + max_send + max_exec < first_sent_at + key_ttl·0.9 (here 30 + 60 s before the end)
    leads_to(facts(key_only, first_sent_ago=ago), silence, state, code)


@pytest.mark.parametrize(
    ("seen", "code"), [(busy, "busy"), (throttled, "throttled"), (unreached, "not_reached")]
)
def test_a_repeat_refused_for_now_may_outlive_its_key(seen: Seen, code: str) -> None:
    alive: dict[str, Any] = {"doubt": True, "first_sent_ago": 100.0}
    dead: dict[str, Any] = {"doubt": True, "first_sent_ago": HOUR}
    assert follows(facts(key_only, **alive), seen).code == code
    assert follows(facts(key_only, **dead), seen).state is State.REVIEW
    assert follows(facts(key_and_look, **dead), seen).state is State.UNCERTAIN


@pytest.mark.parametrize("seen", [unreached, busy, dead_login, Lapsed()])
@pytest.mark.parametrize("state", [State.RUNNING, State.SENT, State.RETRY])
def test_a_class_lost_in_doubt_ends_the_repeats(seen: Seen, state: State) -> None:
    # F53: the key turned out not to be honoured while a repeat was waiting for its turn.
    without_key = degraded(key_only, {"lost": "key"})
    assert without_key.safety is SafetyClass.D
    verdict = follows(facts(without_key, state, doubt=True, since_last=100.0), seen)
    assert verdict.state is State.REVIEW
    assert verdict.doubt
    still_findable = degraded(key_and_look, {"lost": "key"})
    assert still_findable.safety is SafetyClass.C
    verdict = follows(facts(still_findable, state, doubt=True, since_last=100.0), seen)
    assert verdict.state is State.UNCERTAIN
    assert verdict.doubt


def test_the_earliest_time_a_remote_names_is_kept() -> None:
    # F47: and it never turns an unknown outcome into a refusal.
    assert follows(facts(bare), throttled).delay >= 90
    assert follows(facts(bare), throttled).throttle == 90
    late = Unanswered("HTTP 503", status=503, retry_after=300.0)
    for action in (key_only, findable, conditional):
        verdict = follows(facts(action), late)
        assert verdict.doubt
        assert verdict.delay >= 300
        assert verdict.status == 503
    assert follows(looking(findable), late).delay >= 300
    assert follows(looking(findable), throttled).delay >= 90
    assert follows(facts(polled, State.ACCEPTED), throttled).delay >= 90
    refused = Unanswered("HTTP 425", nothing_left=True, kind=FailureKind.CONNECT, retry_after=77.0)
    assert follows(facts(bare), refused).delay >= 77


def test_throttling_costs_time_and_no_attempts() -> None:
    for seen in (throttled, busy):
        verdict = follows(facts(findable, attempts=8), seen)
        assert verdict.state is State.RETRY
        assert not verdict.costs_attempt


def test_a_life_of_a_key_nobody_knows_is_over() -> None:
    assert not Facts(State.SENT, key_only).key_alive()


# --- before the marker ----------------------------------------------------------------------------


@rows(
    (
        "a read that failed on the way is tried again",
        facts(bare, State.RUNNING),
        silence,
        State.PENDING,
        "read_failed",
    ),
    (
        "eight times",
        facts(bare, State.RUNNING, attempts=8),
        silence,
        State.REVIEW,
        "exhausted",
    ),
    (
        "a connector that raises is tried twice more",
        facts(bare, State.RUNNING, attempts=2),
        unsent(FailureKind.OTHER, "KeyError"),
        State.PENDING,
        "our_defect",
    ),
    (
        "and then seen by a person",
        facts(bare, State.RUNNING, attempts=3),
        unsent(FailureKind.OTHER, "KeyError"),
        State.REVIEW,
        "our_defect",
    ),
    (
        "a proxy that wants a login closes the gate",
        facts(bare, State.RUNNING),
        unsent(FailureKind.PROXY_AUTH, "407"),
        State.PENDING,
        "proxy_login",
    ),
    (
        "a payload that fits no field is failed",
        facts(bare, State.RUNNING),
        unsent(FailureKind.LOCAL, "name: too long"),
        State.FAILED,
        "our_defect",
    ),
    (
        "but not in doubt",
        facts(key_only, State.RUNNING, doubt=True),
        unsent(FailureKind.LOCAL, "name: too long"),
        State.REVIEW,
        "our_defect",
    ),
    (
        "a newer version is there already",
        facts(conditional, State.RUNNING),
        conflict(Conflict.VERSION),
        State.DISCARDED,
        "stale",
    ),
    (
        "a newer version is there, and ours in doubt",
        facts(conditional, State.RUNNING, doubt=True),
        conflict(Conflict.VERSION),
        State.REVIEW,
        "newer_there",
    ),
    (
        "the last look before a repeat found something",
        facts(findable, State.RUNNING),
        Looked((same,)),
        State.UNCERTAIN,
        "found_before_repeat",
    ),
    (
        "the third lost worker is the operation's fault",
        facts(bare, State.RUNNING, lapses=2),
        Lapsed(),
        State.REVIEW,
        "poison",
    ),
    (
        "given back",
        facts(bare, State.RUNNING),
        unsent(FailureKind.ABORTED, "stop"),
        State.PENDING,
        "given_back",
    ),
)
def test_before_the_marker(known: Facts, seen: Seen, state: State, code: str) -> None:
    leads_to(known, seen, state, code)


@pytest.mark.parametrize("state", [State.RUNNING, State.SENT, State.UNCERTAIN, State.ACCEPTED])
def test_the_breaker_counts_the_remotes_faults_and_not_ours(state: State) -> None:
    ours = (FailureKind.OTHER, FailureKind.LOCAL, FailureKind.ADDRESS, FailureKind.ABORTED)
    for kind in ours:
        seen = unsent(kind, "ours")
        verdict = follows(facts(findable, state, doubt=state is State.UNCERTAIN), seen)
        assert verdict.breath is Breath.NEUTRAL, kind
    for seen in (unreached, silence):
        known = facts(findable, state, doubt=state is State.UNCERTAIN)
        assert follows(known, seen).breath is Breath.BAD


@pytest.mark.parametrize("state", [State.RUNNING, State.SENT, State.UNCERTAIN, State.ACCEPTED])
def test_what_concerns_the_whole_connection_closes_its_gate(state: State) -> None:
    known = facts(findable, state, doubt=state is State.UNCERTAIN)
    for kind, halt in (
        (FailureKind.CERTIFICATE, Halt.CERTIFICATE),
        (FailureKind.PROXY_AUTH, Halt.CREDENTIAL),
    ):
        seen = unsent(kind, "shut")
        assert follows(known, seen).halt is halt
    assert follows(known, dead_login).halt is Halt.CREDENTIAL


# --- looking --------------------------------------------------------------------------------------


@rows(
    (
        "one object, as we meant it: it happened",
        looking(findable, 1.0),
        Looked((same,)),
        State.CONFIRMED,
        "found",
    ),
    (
        "one object, other payload: a person (F67)",
        looking(findable),
        Looked((other,)),
        State.REVIEW,
        "found_different",
    ),
    (
        "one object, older version: a person",
        looking(findable),
        Looked((replace(same, version="6"),)),
        State.REVIEW,
        "found_different",
    ),
    (
        "one object, a version that is no number of ours: a person",
        looking(findable),
        Looked((replace(same, version="draft"),)),
        State.REVIEW,
        "found_different",
    ),
    (
        "one object with our version",
        looking(findable),
        Looked((replace(same, version="7"),)),
        State.CONFIRMED,
        "found",
    ),
    (
        "two objects: a person (F66)",
        looking(findable),
        Looked((same, replace(same, remote_ref="42"))),
        State.REVIEW,
        "several_found",
    ),
    (
        "in the bin over there: a person (F68)",
        looking(findable),
        Looked((replace(same, place="bin"),)),
        State.REVIEW,
        "found_put_away",
    ),
    (
        "in the bin is where a deletion puts it",
        looking(deletion_look),
        Looked((replace(other, place="bin"),)),
        State.CONFIRMED,
        "gone",
    ),
    (
        "an object without an id is no answer",
        looking(findable),
        Looked((replace(same, remote_ref=""),)),
        State.UNCERTAIN,
        "looking",
    ),
    (
        "our job, still running",
        looking(polled),
        Looked((Candidate("job-1", matches=False, running=True),)),
        State.ACCEPTED,
        "job_found",
    ),
    (
        "page 1 only is no answer (F65)",
        looking(findable, 500.0, absent_for=100.0),
        Looked(complete=False),
        State.UNCERTAIN,
        "looking",
    ),
    (
        "a look that timed out is no answer (F64)",
        looking(findable, 500.0, absent_for=100.0),
        silence,
        State.UNCERTAIN,
        "looking",
    ),
    (
        "a look that was throttled is no answer",
        looking(findable, 500.0, absent_for=100.0),
        throttled,
        State.UNCERTAIN,
        "looking",
    ),
    (
        "a look that was forbidden is no answer",
        looking(findable, 500.0, absent_for=100.0),
        denied,
        State.UNCERTAIN,
        "looking",
    ),
    (
        "a look that nothing came of for a day goes to a person",
        looking(findable, 500.0, age=DAY),
        silence,
        State.REVIEW,
        "undecided",
    ),
    (
        "absence, before a late copy is spent, proves nothing (F41)",
        looking(findable, 59.0),
        nothing,
        State.UNCERTAIN,
        "looking",
    ),
    (
        "the first absence after that may only be the index (F62)",
        looking(findable, 70.0),
        nothing,
        State.UNCERTAIN,
        "looking",
    ),
    (
        "the second, a whole lag later, is trusted",
        looking(findable, 95.0, absent_for=25.0),
        nothing,
        State.RETRY,
        "absent",
    ),
    (
        "the second, too soon after the first, is not",
        looking(findable, 95.0, absent_for=15.0),
        nothing,
        State.UNCERTAIN,
        "looking",
    ),
    (
        "a first absence that began too early does not count (max_exec was raised since)",
        looking(findable, 95.0, absent_for=40.0),
        nothing,
        State.UNCERTAIN,
        "looking",
    ),
    (
        "a look that began too early does not count, however late it ended",
        looking(exactly_findable, 65.0, look_took=10.0),
        nothing,
        State.UNCERTAIN,
        "looking",
    ),
    (
        "an exact look needs no second one",
        looking(exactly_findable, 65.0),
        nothing,
        State.RETRY,
        "absent",
    ),
    (
        "after a step of the clock no wait is trusted (A4)",
        looking(exactly_findable, 65.0, clock_jumped=True),
        nothing,
        State.UNCERTAIN,
        "looking",
    ),
    (
        "without max_exec absence is never trusted",
        looking(unsaid, DAY - 1, absent_for=HOUR),
        nothing,
        State.UNCERTAIN,
        "looking",
    ),
    (
        "and ends with a person",
        looking(unsaid, DAY, absent_for=HOUR, age=DAY),
        nothing,
        State.REVIEW,
        "undecided",
    ),
    (
        "one automatic repeat after an absence, then a person",
        looking(findable, 95.0, absent_for=25.0, repeats=1),
        nothing,
        State.REVIEW,
        "absent_again",
    ),
    (
        "no attempts left after an absence",
        looking(findable, 95.0, absent_for=25.0, attempts=8),
        nothing,
        State.REVIEW,
        "exhausted",
    ),
    (
        "a key, not found: the same key again at once",
        looking(key_and_look, 1.0),
        nothing,
        State.RETRY,
        "repeat_by_key",
    ),
    (
        "a dead key, not found: as without a key",
        looking(key_and_look, 70.0, first_sent_ago=HOUR),
        nothing,
        State.UNCERTAIN,
        "looking",
    ),
    (
        "a dead key, absence trusted",
        looking(key_and_look, 95.0, first_sent_ago=HOUR, absent_for=25.0),
        nothing,
        State.RETRY,
        "absent",
    ),
    (
        "our key says nothing about a doubt an earlier operation left (F121)",
        looking(key_and_look, 10.0, inherited=True),
        nothing,
        State.UNCERTAIN,
        "looking",
    ),
    (
        "an inherited doubt ends with an absence that is trusted",
        looking(key_and_look, 95.0, absent_for=25.0, inherited=True),
        nothing,
        State.RETRY,
        "absent",
    ),
    (
        "an update under a key that has not arrived is repeated",
        looking(key_update, 1.0),
        Looked((other,)),
        State.RETRY,
        "repeat_harmless",
    ),
    (
        "unless the key is dead",
        looking(key_update, 1.0, first_sent_ago=HOUR),
        Looked((other,)),
        State.REVIEW,
        "key_used_up",
    ),
    (
        "create-if-absent, not there: the same condition again",
        looking(create_if_absent, 1.0),
        nothing,
        State.RETRY,
        "repeat_harmless",
    ),
    (
        "create-if-absent, not there, and no attempts left",
        looking(create_if_absent, 1.0, attempts=8),
        nothing,
        State.REVIEW,
        "exhausted",
    ),
    (
        "a conditional update that has not arrived is repeated",
        looking(conditional, 1.0),
        Looked((other,)),
        State.RETRY,
        "repeat_harmless",
    ),
    (
        "a newer version than ours is there: ours is no longer wanted",
        looking(conditional, 1.0),
        Looked((replace(other, version="8"),)),
        State.DISCARDED,
        "stale",
    ),
    (
        "an object to change that is gone: a person",
        looking(conditional),
        nothing,
        State.REVIEW,
        "vanished",
    ),
    (
        "full state, not yet as meant, late copy possible: look again",
        looking(full_state_look, 30.0),
        Looked((other,)),
        State.UNCERTAIN,
        "looking",
    ),
    (
        "full state, late copy spent: repeat",
        looking(full_state_look, 61.0),
        Looked((other,)),
        State.RETRY,
        "repeat_harmless",
    ),
    (
        "full state, no look: repeat once the late copy is spent",
        looking(full_state, 30.0),
        Looked((other,)),
        State.RETRY,
        "repeat_harmless",
    ),
    (
        "full state by an id of ours, not there: repeat",
        looking(put, 61.0),
        nothing,
        State.RETRY,
        "repeat_harmless",
    ),
    (
        "full state, max_exec not stated: never by itself",
        looking(full_state_unsaid, DAY - 1),
        Looked((other,)),
        State.UNCERTAIN,
        "looking",
    ),
    (
        "and ends with a person",
        looking(full_state_unsaid, DAY, age=DAY),
        Looked((other,)),
        State.REVIEW,
        "undecided",
    ),
    (
        "a deletion: it is gone",
        looking(deletion_look, 1.0),
        nothing,
        State.CONFIRMED,
        "gone",
    ),
    (
        "a deletion that inherits a doubt: gone may mean not there yet",
        looking(replace(deletion_look, authoritative=True), 30.0, inherited=True),
        nothing,
        State.UNCERTAIN,
        "looking",
    ),
    (
        "a deletion: still there",
        looking(deletion_look, 61.0),
        Looked((other,)),
        State.RETRY,
        "repeat_harmless",
    ),
    (
        "a command that may be repeated is, when its look does not show it",
        looking(replace(full_state, kind=Kind.COMMAND), 61.0),
        Looked((other,)),
        State.RETRY,
        "repeat_harmless",
    ),
    (
        "after a restore, neither as last seen nor as meant: a person",
        looking(full_state_look, 61.0, restored=True),
        Looked((other,)),
        State.REVIEW,
        "changed_meanwhile",
    ),
    (
        "after a restore, as last seen: send",
        looking(full_state_look, 61.0, restored=True, as_last_seen=True),
        Looked((other,)),
        State.RETRY,
        "repeat_harmless",
    ),
    (
        "a lost looker is replaced at once",
        looking(findable),
        Lapsed(),
        State.UNCERTAIN,
        "looking",
    ),
    (
        "three lost lookers in a row: a person",
        looking(findable, lapses=2),
        Lapsed(),
        State.REVIEW,
        "poison",
    ),
    (
        "a look that was given back",
        looking(findable),
        unsent(FailureKind.ABORTED, "stop"),
        State.UNCERTAIN,
        "look_given_back",
    ),
)
def test_looking(known: Facts, seen: Seen, state: State, code: str) -> None:
    verdict = leads_to(known, seen, state, code)
    if verdict.state is State.UNCERTAIN:
        assert verdict.doubt, "what is looked for stays in doubt"


def test_absence_clears_the_doubt_and_counts_as_the_one_repeat() -> None:
    verdict = follows(looking(findable, 95.0, absent_for=25.0), nothing)
    assert not verdict.doubt
    assert verdict.adds_repeat
    assert verdict.assumption == "A3"


def test_the_first_absence_that_may_count_is_remembered() -> None:
    assert not follows(looking(findable, 59.0), nothing).absent
    assert not follows(looking(findable, 65.0, look_took=10.0), nothing).absent
    assert follows(looking(findable, 70.0), nothing).absent
    assert not follows(looking(findable, 75.0, absent_for=5.0), nothing).absent
    assert follows(looking(findable, 75.0, absent_for=20.0), nothing).absent


def test_a_repeat_by_a_key_that_is_not_atomic_waits_after_a_look_too() -> None:
    action = replace(key_and_look, key_atomic=False)
    verdict = follows(looking(action, 20.0), nothing)
    assert verdict.state is State.RETRY
    assert verdict.delay == pytest.approx(40.0)


def test_full_state_whose_last_byte_nobody_knows_is_not_looked_at_for_ever() -> None:
    # Whatever left, left before it became uncertain: its age is a wait that is certain.
    known = replace(looking(full_state_look), since_last=None)
    assert follows(replace(known, age=59.0), Looked((other,))).state is State.UNCERTAIN
    assert follows(replace(known, age=61.0), Looked((other,))).state is State.RETRY


def test_what_a_look_found_is_stored() -> None:
    candidate = replace(same, remote_version="r9", fields={"name": "Anna"})
    verdict = follows(looking(findable), Looked((candidate,)))
    assert verdict.done == Done(
        "41", "r9", {"name": "Anna"}, note="A look found it, equal in every field we own."
    )


@pytest.mark.parametrize("action", [findable, exactly_findable, unsaid, full_state_look])
def test_looks_follow_their_schedule_and_are_never_late_for_a_trusted_absence(
    action: Write,
) -> None:
    steps = [look_delay(looking(action, 1.0, looks=n), LIMITS, 0.5) for n in range(8)]
    if action.max_exec is None:
        assert steps[:5] == [5, 20, 60, 300, 900]
        assert all(720 <= step <= 1080 for step in steps[5:])
    else:
        assert all(step <= 59.1 for step in steps)
    if action is findable:
        assert look_delay(looking(action, 61.0, looks=4), LIMITS, 0.5) < 0.1
        second = look_delay(looking(action, 65.0, looks=4, absent_for=1.0), LIMITS, 0.5)
        assert second == pytest.approx(19.0, abs=0.1)


# --- polling --------------------------------------------------------------------------------------


def poll(**more: Any) -> Facts:
    return facts(polled, State.ACCEPTED, **more)


@rows(
    (
        "still at work",
        poll(),
        Progress(JobState.RUNNING),
        State.ACCEPTED,
        "working",
    ),
    (
        "finished for our version",
        poll(),
        Progress(JobState.FINISHED, "v7", "v7", "41"),
        State.CONFIRMED,
        "finished",
    ),
    (
        "finished for another version (F93)",
        poll(),
        Progress(JobState.FINISHED, "v6", "v7", "41"),
        State.REVIEW,
        "other_version",
    ),
    (
        "finished for nobody knows which version",
        poll(),
        Progress(JobState.FINISHED, "", "v7", "41"),
        State.REVIEW,
        "other_version",
    ),
    (
        "finished without a result",
        facts(replace(polled, yields_ref=True), State.ACCEPTED),
        Progress(JobState.FINISHED, "v7", "v7"),
        State.REVIEW,
        "no_result",
    ),
    (
        "ended in an error",
        poll(),
        Progress(JobState.FAILED, text="corrupt file"),
        State.FAILED,
        "job_failed",
    ),
    (
        "ended in an error, while an earlier copy is in doubt",
        poll(doubt=True),
        Progress(JobState.FAILED),
        State.REVIEW,
        "job_failed",
    ),
    (
        "a job they do not know",
        poll(),
        Progress(JobState.UNKNOWN),
        State.REVIEW,
        "unknown_job",
    ),
    (
        "a job that is a 404",
        poll(),
        missing,
        State.REVIEW,
        "unknown_job",
    ),
    (
        "asking failed",
        poll(),
        silence,
        State.ACCEPTED,
        "working",
    ),
    (
        "slowness starts no second job",
        poll(age=DAY),
        Progress(JobState.RUNNING),
        State.REVIEW,
        "job_too_long",
    ),
    (
        "a lost worker asks again",
        poll(),
        Lapsed(),
        State.ACCEPTED,
        "working",
    ),
    (
        "three lost workers",
        poll(lapses=2),
        Lapsed(),
        State.REVIEW,
        "poison",
    ),
    (
        "nonsense",
        poll(),
        done,
        State.ACCEPTED,
        "working",
    ),
)
def test_polling(known: Facts, seen: Seen, state: State, code: str) -> None:
    verdict = leads_to(known, seen, state, code)
    if verdict.state is State.ACCEPTED:
        assert verdict.doubt == known.doubt


def test_a_poll_does_not_forget_a_doubt() -> None:
    assert follows(poll(doubt=True), Progress(JobState.RUNNING)).doubt


# --- waiting, as the sweep asks -------------------------------------------------------------------


@rows(
    (
        "what is due waits its turn",
        facts(bare, State.PENDING),
        Lapsed(),
        State.PENDING,
        "waiting",
    ),
    (
        "so does a retry",
        facts(bare, State.RETRY),
        Lapsed(),
        State.RETRY,
        "waiting",
    ),
    (
        "and a repeat under a living key",
        facts(key_only, State.RETRY, doubt=True),
        Lapsed(),
        State.RETRY,
        "waiting",
    ),
    (
        "a repeat whose key died is looked for (F52)",
        facts(key_and_look, State.RETRY, doubt=True, first_sent_ago=HOUR),
        Lapsed(),
        State.UNCERTAIN,
        "key_used_up",
    ),
    (
        "looked for even when nothing else is left",
        facts(key_and_look, State.RETRY, doubt=True, first_sent_ago=HOUR, attempts=8),
        Lapsed(),
        State.UNCERTAIN,
        "key_used_up",
    ),
    (
        "or goes to a person",
        facts(key_only, State.RETRY, doubt=True, first_sent_ago=HOUR),
        Lapsed(),
        State.REVIEW,
        "key_used_up",
    ),
    (
        "a repeat that is harmless by itself waits",
        facts(full_state, State.RETRY, doubt=True, first_sent_ago=DAY),
        Lapsed(),
        State.RETRY,
        "waiting",
    ),
    (
        "a retry without attempts goes to a person",
        facts(findable, State.RETRY, attempts=8),
        Lapsed(),
        State.REVIEW,
        "exhausted",
    ),
    (
        "a retry a day old goes to a person",
        facts(findable, State.RETRY, age=DAY),
        Lapsed(),
        State.REVIEW,
        "exhausted",
    ),
    (
        "a late result that names an object stops a waiting repeat (F120)",
        facts(findable, State.RETRY),
        Looked((same,)),
        State.UNCERTAIN,
        "named_by_late_result",
    ),
    (
        "what rests, rests",
        facts(findable, State.FAILED),
        Lapsed(),
        State.FAILED,
        "at_rest",
    ),
)
def test_waiting(known: Facts, seen: Seen, state: State, code: str) -> None:
    leads_to(known, seen, state, code)


# --- doubt from the start (row 22; protocol §12, §17) ---------------------------------------------

INHERITED: Sequence[tuple[str, Write, State, State]] = (
    # class, declaration, doubt of an earlier operation, doubt about itself after a restore
    ("a", key_only, State.REVIEW, State.RETRY),
    ("a+look", key_and_look, State.UNCERTAIN, State.RETRY),
    ("a update", key_update, State.UNCERTAIN, State.UNCERTAIN),
    ("b", create_if_absent, State.UNCERTAIN, State.UNCERTAIN),
    ("b update", conditional, State.UNCERTAIN, State.UNCERTAIN),
    ("b′", full_state, State.REVIEW, State.REVIEW),
    ("b′+look", full_state_look, State.UNCERTAIN, State.UNCERTAIN),
    ("c", findable, State.UNCERTAIN, State.UNCERTAIN),
    ("d", bare, State.REVIEW, State.REVIEW),
)


@pytest.mark.parametrize("row", INHERITED, ids=[row[0] for row in INHERITED])
def test_an_operation_that_starts_in_doubt_goes_as_unknown(
    row: tuple[str, Write, State, State],
) -> None:
    _, action, of_another, of_itself = row
    known = facts(action, State.PENDING)
    for own_key, expected in ((False, of_another), (True, of_itself)):
        verdict = inherit(known, LIMITS, why="Because.", own_key=own_key)
        assert verdict.state is expected
        assert verdict.doubt
        assert verdict.code == "inherited_doubt"
        assert verdict.text.startswith("Because.")


@pytest.mark.parametrize("action", [key_only, key_and_look, *CLASSES.values()])
@pytest.mark.parametrize(
    "state",
    [State.PENDING, State.RETRY, State.RUNNING, State.SENT, State.UNCERTAIN, State.ACCEPTED],
)
@pytest.mark.parametrize("own_key", [False, True])
def test_taking_up_a_doubt_is_a_move_the_sweep_may_make(
    action: Write, state: State, own_key: bool
) -> None:
    # One that may not be made would stop the sweep for everybody.
    verdict = inherit(facts(action, state), LIMITS, why="Because.", own_key=own_key)
    assert verdict.state is state or allowed(state, verdict.state, Actor.SWEEP)


def test_a_restored_operation_whose_key_is_dead_is_not_repeated() -> None:
    known = facts(key_only, State.PENDING, first_sent_ago=HOUR)
    assert inherit(known, LIMITS, why="", own_key=True).state is State.REVIEW


# --- what an action lost, holds, waits, advice ----------------------------------------------------


def test_an_action_without_its_key_drops_to_its_next_class() -> None:
    assert degraded(key_and_look, {"lost": "key"}).safety is SafetyClass.C
    assert degraded(key_and_look, {"lost": "find"}).safety is SafetyClass.A
    assert degraded(findable, {"lost": "find"}).safety is SafetyClass.D
    assert degraded(findable, None) == findable
    assert degraded(findable, {"lost": "something"}) == findable
    assert not degraded(findable, {"lost": "find"}).can_look


def test_dropped_signs_are_said() -> None:
    assert follows(facts(key_only), Done("41", echo=Echo.MISSING)).degrade == "key"
    assert follows(facts(findable), Done("41", echo=Echo.MISSING)).degrade == "find"


@pytest.mark.parametrize(
    ("action", "hold"),
    [
        (key_only, None),
        (conditional, None),
        (create_if_absent, 60.0),
        (full_state, 60.0),
        (full_state_unsaid, LIMITS.uncertain_max),
        (findable, None),
    ],
)
def test_the_stream_waits_where_a_late_copy_can_do_harm(action: Write, hold: float | None) -> None:
    assert hold_for(action, LIMITS) == hold
    assert follows(facts(action), silence).hold == hold


def test_backoff_doubles_within_its_bounds() -> None:
    assert [backoff(n, LIMITS, 0.0) for n in range(10)] == [5.0] * 10
    assert [backoff(n, LIMITS, 1.0) for n in range(9)] == [
        5, 10, 20, 40, 80, 160, 320, 640, 900,
    ]  # fmt: skip
    assert backoff(10**6, LIMITS, 1.0) == 900


def test_the_first_poll_comes_when_the_remote_asked_for_it_within_reason() -> None:
    assert follows(facts(polled), Accepted("j", poll_after=3.0)).delay == 3.0
    assert follows(facts(polled), Accepted("j", poll_after=-3.0)).delay == 0.0
    assert follows(facts(polled), Accepted("j", poll_after=1e9)).delay == LIMITS.accepted_max


@pytest.mark.parametrize(
    ("action", "advice"),
    [
        (bare, Advice.LINK),
        (replace(bare, kind=Kind.DELETE), Advice.NONE),
    ],
)
def test_nobody_is_advised_to_look_where_the_hub_cannot(action: Write, advice: Advice) -> None:
    assert follows(facts(action), silence).advice is advice


def test_every_declared_class_is_in_the_tables() -> None:
    assert {action.safety for action in CLASSES.values()} == set(SafetyClass)
    assert Capability.NOTHING == bare.capabilities
