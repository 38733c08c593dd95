"""The planted weaknesses of this level: each is one rule off, and each must be found.

`python -m tests.model.weaknesses` tells the shortest story of every one; with ids as arguments,
of those. `READINGS` does the same for sentences of the protocol that can be read in two ways.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.model.rules import Rules
from tests.model.scenarios import SCENARIOS
from tests.model.search import Counterexample, search

_CORRECT = Rules()


@dataclass(frozen=True)
class Plant:
    """Rules with one of them off, and a scenario in which that must show."""

    rules: Rules
    scenario: str

    def hunt(self) -> Counterexample | None:
        """Search the scenario; I21 is asked for last, where nothing else broke."""
        return search(SCENARIOS[self.scenario], self.rules).counterexample


WEAKNESSES: dict[str, str] = {
    "W1": "no marker before sending",
    "W2": "a lapsed `sent` goes back to `pending`",
    "W3": "settle without the token in its condition",
    "W4": "no guard before the first byte",
    "W5": '"not found" trusted at once',
    "W6": "a time-out treated as a failure",
    "W7": "a 503 that is not listed treated as a refusal",
    "W8": "a new key per attempt",
    "W15": "the next version is sent while the former is unknown, or without a hold",
    "W22": "attempts used up in doubt end in `failed`",
    "W26": "a lapsed repeat forgets `maybe_executed`",
    "W27": "the life of the key is not checked when a repeat is claimed",
    "W28": "a refusal after an unknown attempt is taken as final",
    "W29": "conditions on the stream are read at the claim only, not at the marker",
    "W30": "guard bound to the lease only, `t_last` counted without the margin",
    "W31": "`discarded` in doubt frees the stream for a create",
    "W32": "a late result that names an object leaves a waiting repeat alone",
}

PLANTED: dict[str, tuple[Plant, ...]] = {
    "W1": tuple(
        Plant(replace(_CORRECT, marker=False), scenario)
        for scenario in ("c: create, killed", "d: create, killed")
    ),
    "W2": tuple(
        Plant(replace(_CORRECT, lapsed_sent_in_doubt=False), scenario)
        for scenario in ("c: create, killed", "d: create, killed")
    ),
    "W3": (Plant(replace(_CORRECT, settle_by_token=False), "c: create, put"),),
    "W4": tuple(
        Plant(replace(_CORRECT, guard=False), scenario)
        for scenario in ("c: create, put", "a: create, key not atomic")
    ),
    "W5": tuple(
        Plant(replace(_CORRECT, absence_waits=False), scenario)
        for scenario in ("c: 503", "c: create, search lags")
    ),
    "W6": tuple(
        Plant(replace(_CORRECT, timeout_is_unknown=False), scenario)
        for scenario in ("a: create", "c: create", "d: create")
    ),
    "W7": tuple(
        Plant(replace(_CORRECT, unavailable_is_unknown=False), scenario)
        for scenario in ("c: 503", "d: 503")
    ),
    "W8": (Plant(replace(_CORRECT, key_stays=False), "a: 503"),),
    "W15": (
        Plant(replace(_CORRECT, doubt_blocks_stream=False), "c: two updates, decisions"),
        Plant(replace(_CORRECT, hold=False), "b′: two updates"),
        Plant(replace(_CORRECT, hold=False), "b: create, delete, decisions"),
    ),
    "W22": (Plant(replace(_CORRECT, exhausted_to_review=False), "b′: two updates, short budget"),),
    "W26": tuple(
        Plant(replace(_CORRECT, lapsed_repeat_keeps_doubt=False), scenario)
        for scenario in ("a: create, key not atomic", "a: two updates")
    ),
    "W27": (Plant(replace(_CORRECT, key_life_checked=False), "a: two updates, commits cross"),),
    "W28": tuple(
        Plant(replace(_CORRECT, refusal_after_doubt_is_unknown=False), scenario)
        for scenario in ("a: create, decisions", "b: 503")
    ),
    "W29": tuple(
        Plant(replace(_CORRECT, stream_reread_at_marker=False), scenario)
        for scenario in ("c: two updates, commits cross", "b′: two updates, commits cross")
    ),
    "W30": (Plant(replace(_CORRECT, margin_after_marker=False), "c: create"),),
    "W31": tuple(
        Plant(replace(_CORRECT, doubt_inherited=False), scenario)
        for scenario in ("c: create, put, decisions", "d: create, put, decisions")
    ),
    "W32": (Plant(replace(_CORRECT, late_result_stops_repeat=False), "c: create, A3 broken"),),
}

READINGS: dict[str, tuple[str, Plant]] = {
    "late-result-at-rest": (
        "§6.7, §16: a late result that names an object is shown in the case. The row must be in "
        "doubt again, or *send again* and *cause corrected* repeat it with the same key",
        Plant(replace(_CORRECT, late_result_renews_doubt=False), "c: create, A3 broken, decisions"),
    ),
    "late-result-during-look": (
        "§6.7: still uncertain, so look now. A look that has seen nothing and settles after the "
        "late result must not count: the token rises here, too",
        Plant(replace(_CORRECT, late_result_stops_look=False), "c: create, put, A3 broken"),
    ),
    "inherited-once": (
        "rows 2 and 4, §12: an inherited doubt stops the claim. That it has been looked into, or "
        "lifted by *send again*, must be stored, or the row never goes out",
        Plant(
            replace(_CORRECT, inherited_doubt_once=False, retry_inherits=False),
            "c: create, put, decisions",
        ),
    ),
    "pending-exhausted": (
        "row 19 starts from `retry` only. A row whose last attempt lapsed before its marker is "
        "`pending` with its attempts used up; a claim that counts them leaves it there for ever",
        Plant(replace(_CORRECT, pending_can_exhaust=False), "d: create"),
    ),
    "late-result-of-discarded": (
        "§6.7: a late result stops the repeat of its own row. One that belongs to a create "
        "discarded in doubt must stop the create that inherited the doubt",
        Plant(replace(_CORRECT, late_result_stops_heir=False), "c: create, put, A3 broken"),
    ),
    "stale-waits": (
        "§12: a stale row is seen at the claim. Were it only passed over there, no row of §5 "
        "would discard it, and, first in line, it would block its stream for ever",
        Plant(replace(_CORRECT, stale_leaves_the_queue=False), "c: two updates, commits cross"),
    ),
    "hold-of-discarded": (
        "§12: the hold names b′ and create-if-absent. Whatever is discarded in doubt needs one, "
        "since no repeat and no look has shown that its copy is spent",
        Plant(replace(_CORRECT, discarded_doubt_holds=False), "d: two updates, decisions"),
    ),
    "hold-of-discarded-key": (
        "§12: a live key absorbs the late copy, so class a needs no hold. Not when the key was "
        "never used by anything but that copy",
        Plant(replace(_CORRECT, discarded_doubt_holds=False), "a: two updates, decisions"),
    ),
    "inherited-key": (
        "row 15, §12: a + look, not found, key alive, so repeat. The key of a create that inherits "
        "its doubt is not the key the late copy carries",
        Plant(
            replace(_CORRECT, inherited_doubt_needs_absence=False),
            "a + look: create, put, decisions",
        ),
    ),
    "inherited-quiet": (
        "§9.1: `t_last` of a create that inherits its doubt was never sent: it must be that of "
        "the row it inherits from",
        Plant(replace(_CORRECT, inherited_doubt_keeps_quiet=False), "c: create, put, decisions"),
    ),
    "inherited-delete": (
        "§12: a delete that inherits doubt looks (row 13) while the hold stops only claims (row "
        '2). "Gone" confirms it at once, and then the late create arrives',
        Plant(
            replace(_CORRECT, inherited_delete_needs_absence=False), "b: create, delete, decisions"
        ),
    ),
    "key-at-marker": (
        "row 2, §8: the life of the key is checked at the claim. The bytes may leave `lease − "
        "max_send` later, and a tenth of a short `key_ttl` does not cover that",
        Plant(replace(_CORRECT, key_life_at_marker=False), "a: create, short key"),
    ),
    "hold-from-marker": (
        "§12: the hold is written by a move that leaves doubt. Where the network repeats requests "
        "(F43), an answered one of b′ has a late copy too",
        Plant(replace(_CORRECT, hold_from_the_marker=False), "b′: two updates, requests repeated"),
    ),
}


def finds(weakness_id: str) -> Counterexample | None:
    """Return a shortest counterexample for one weakness, or None when one of its hunts misses it.

    Raises `KeyError` for an id that does not live at this level.
    """
    found = [plant.hunt() for plant in PLANTED[weakness_id]]
    return None if None in found else found[0]


def main(wanted: Sequence[str]) -> int:
    """Tell the story of each wanted weakness; return how many were not found."""
    missed = 0
    for weakness_id in wanted or WEAKNESSES:
        found = finds(weakness_id)
        missed += found is None
        story = found.story() if found else "NOT FOUND"
        sys.stdout.write(f"{weakness_id}: {WEAKNESSES[weakness_id]}\n{story}\n\n")
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
