"""The table of allowed moves is the table of protocol §5, row by row."""

from itertools import product

import pytest

from hub.states import (
    ALLOWED,
    CLAIMABLE,
    FINAL,
    LEASABLE,
    MOVES,
    MOVING,
    RESTING,
    Actor,
    State,
    allowed,
)

# Written down from the protocol, not from the code: row, from, to, by. The last three of row 23 go
# beyond its words: a late result that names an object contradicts what came to rest, and where
# there is nothing to look with, a person has to see it.
TABLE = """
1 - pending submit,worker,person | 1 - discarded submit,worker,person
2 pending running worker | 2 retry running worker
3 running pending worker,sweep | 3 running retry worker,sweep
4 running sent worker
5 running failed worker | 5 running discarded worker
6 running review worker,sweep
7 sent confirmed worker
8 sent accepted worker
9 sent retry worker,sweep
10 sent uncertain worker,sweep
11 sent failed worker
12 sent review worker,sweep
13 uncertain uncertain worker | 13 accepted accepted worker
14 uncertain confirmed worker | 14 uncertain accepted worker
14 uncertain failed worker | 14 uncertain discarded worker
15 uncertain retry worker
16 uncertain review worker,sweep | 16 accepted review worker,sweep
17 accepted confirmed worker | 17 accepted failed worker
18 pending discarded submit,person | 18 retry discarded submit,person
19 retry review worker,sweep
20 failed retry person | 20 failed discarded person
21 review confirmed person | 21 review retry person
21 review uncertain person | 21 review discarded person
22 pending uncertain sweep | 22 pending retry sweep | 22 pending review sweep
22 retry uncertain sweep | 22 retry retry sweep | 22 retry review sweep
22 running uncertain sweep | 22 running retry sweep | 22 running review sweep
22 sent uncertain sweep | 22 sent retry sweep | 22 sent review sweep
22 uncertain uncertain sweep | 22 uncertain review sweep
22 accepted uncertain sweep | 22 accepted accepted sweep | 22 accepted review sweep
23 retry uncertain worker,sweep | 23 running uncertain worker,sweep
23 failed review worker | 23 review review worker | 23 retry review worker
24 retry review person | 24 uncertain review person | 24 accepted review person
"""


def _table() -> set[tuple[int, State | None, State, Actor]]:
    result = set()
    for entry in TABLE.replace("\n", "|").split("|"):
        if entry.strip():
            row, before, after, actors = entry.split()
            start = None if before == "-" else State(before)
            result |= {(int(row), start, State(after), Actor(a)) for a in actors.split(",")}
    return result


def test_the_moves_are_those_of_the_protocol() -> None:
    mine = {(m.row, m.before, m.after, actor) for m in MOVES for actor in m.actors}
    assert mine == _table()
    assert {m.row for m in MOVES} == set(range(1, 25))


def test_every_state_counts_as_exactly_one_thing() -> None:
    assert MOVING | RESTING | FINAL == set(State)
    assert len(MOVING) + len(RESTING) + len(FINAL) == len(State)
    assert CLAIMABLE < MOVING
    assert LEASABLE < MOVING
    assert not CLAIMABLE & LEASABLE


@pytest.mark.parametrize("after", State)
def test_what_is_final_stays_so(after: State) -> None:
    for before, actor in product(FINAL, Actor):
        assert not allowed(before, after, actor)


def test_what_rests_is_moved_by_a_person_only_or_shown_to_one() -> None:
    for before, after, actor in product(RESTING, State, Actor):
        if allowed(before, after, actor):
            assert actor is Actor.PERSON or after is State.REVIEW


def test_a_lapsed_sent_never_becomes_plainly_claimable() -> None:
    assert (State.SENT, State.PENDING) not in ALLOWED  # W2
    assert (State.UNCERTAIN, State.PENDING) not in ALLOWED


def test_bytes_may_leave_from_a_lease_alone() -> None:
    assert {before for before, after in ALLOWED if after is State.SENT} == {State.RUNNING}
    assert {before for before, after in ALLOWED if after is State.RUNNING} == CLAIMABLE


def test_every_state_can_be_reached_and_left() -> None:
    reached: set[State | None] = {None}
    while more := {after for before, after in ALLOWED if before in reached} - reached:
        reached |= more
    assert reached == {None, *State}
    rests = RESTING | FINAL
    for state in MOVING:
        seen: set[State] = {state}
        while further := {b for a, b in ALLOWED if a in seen} - seen:
            seen |= further
        assert seen & rests, f"{state} never comes to rest"
