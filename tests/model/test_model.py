"""The protocol has no counterexample; each planted weakness, and each wrong reading, has one."""

from dataclasses import replace

import pytest

from tests.model.invariants import INVARIANTS
from tests.model.rules import Rules
from tests.model.scenarios import SCENARIOS
from tests.model.search import search
from tests.model.weaknesses import PLANTED, READINGS, WEAKNESSES, Plant, finds


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_protocol_keeps_its_promises(name: str) -> None:
    result = search(SCENARIOS[name], Rules())
    assert result.counterexample is None, result.counterexample.story()
    assert result.states > 50  # a search that meets nothing proves nothing


WANTED = {
    "c: create, killed": (
        "is killed",
        "freezes (marked",
        "the guard aborts",
        "its X for v1 is stale",
        "lapsed while running → pending",
        "lapsed while sent → uncertain",
        "found → confirmed (14)",
        "not there → retry",
        "not there → review",
        "a late copy: the remote carries out",
    ),
    "a: create": (
        "lapsed while running → retry",
        "still working on the key",
        "gives the first answer again",
        "the key of v1 is dead → review",
        "it names an object, so v1 → uncertain (23)",
        "settles R for v1 → failed",
        "settles R for v1 → retry",
        "settles T for v1 → retry",
        "settles K for v1 → retry",
    ),
    "b: create, delete, decisions": (
        "v2 inherits the doubt of v1 → uncertain (22)",
        "may only mean: not there yet",
        "has nothing to delete",
        "it happened (21)",
        "look again (21)",
        "out of the machine's hands (24)",
    ),
    "c: create, put, decisions": (
        "send again as a new generation (21)",
        "finds no mapping: a create takes its place",
        "found something else → review",
    ),
    "d: create, put, commits cross": (
        "stale on arrival",
        "stale at the claim",
        "finds a mapping: an update takes its place",
        "the claim hits no row",
    ),
    "d: create, poison": ("lapsed while running → review",),
    "c: two updates, commits cross": ("is stale at the marker → discarded (5)",),
    "b′: two updates, commits cross": ("held at the marker",),
    "a: two updates, decisions": ("and supersedes v1 (18)", "v1 withdrawn (21)"),
}


@pytest.mark.parametrize("name", WANTED)
def test_what_it_is_about_did_happen(name: str) -> None:
    """A search that never meets its case proves nothing."""
    happened = search(SCENARIOS[name], Rules(), progress=False).happened
    missing = [text for text in WANTED[name] if not any(text in told for told in happened)]
    assert not missing


@pytest.mark.parametrize(
    ("weakness", "plant"),
    [
        pytest.param(weakness, plant, id=f"{weakness}-{plant.scenario}")
        for weakness, plants in PLANTED.items()
        for plant in plants
    ],
)
def test_a_planted_weakness_is_found(weakness: str, plant: Plant) -> None:
    found = plant.hunt()
    assert found is not None, f"{weakness} ({WEAKNESSES[weakness]}) is not seen in {plant.scenario}"
    assert not found.broken.startswith("I21"), "a promise about effects must break, not only rest"


@pytest.mark.parametrize(
    ("weakness", "scenario"),
    [("W1", "c: create, put"), ("W1", "d: create, put"), ("W4", "c: create, put")],
)
def test_without_it_the_remote_gets_it_twice(weakness: str, scenario: str) -> None:
    rules = PLANTED[weakness][0].rules
    found = search(SCENARIOS[scenario], rules, ["I1"], progress=False).counterexample
    assert found is not None


def test_a_stale_settle_does_harm_and_is_not_only_forbidden() -> None:
    """W3 must be seen by its effect, too: a stale *nothing left* reopens what another has sent."""
    others = [name for name in INVARIANTS if name != "I5"]
    rules = replace(Rules(), settle_by_token=False)
    found = search(SCENARIOS["c: create, put"], rules, others, progress=False).counterexample
    assert found is not None
    assert found.broken.startswith("I1")


@pytest.mark.parametrize("reading", READINGS)
def test_the_other_reading_of_a_sentence_is_wrong(reading: str) -> None:
    sentence, plant = READINGS[reading]
    assert plant.hunt() is not None, sentence


def test_a_story_reads_one_line_per_move() -> None:
    found = finds("W5")
    assert found is not None
    lines = found.story().splitlines()
    assert len(lines) == 1 + len(found.moves)
    assert lines[1].split(maxsplit=1)[1].startswith("v1 is submitted")
