"""What a search is told: the capability, the numbers, the budgets, and the rules in force.

`Rules()` is the protocol as it must be. A planted weakness is the same object with one rule off,
so a weakness and the cure it removes stand beside each other.
"""

from dataclasses import dataclass
from enum import StrEnum


class Capability(StrEnum):
    """How an unknown outcome is resolved (protocol §8)."""

    KEY = "a"
    KEY_AND_LOOK = "a + look"
    CONDITIONAL = "b"
    FULL_STATE = "b′"
    REFERENCE = "c"
    NOTHING = "d"

    __hash__ = str.__hash__  # an enum's own is a Python call, and the search hashes millions


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol, one switch each; False plants the weakness named beside it."""

    marker: bool = True  # W1: row 4, committed before the first byte
    lapsed_sent_in_doubt: bool = True  # W2: rows 9, 10, 12 instead of plain `pending`
    settle_by_token: bool = True  # W3: §6.6
    guard: bool = True  # W4: §6.4
    absence_waits: bool = True  # W5: §9.4
    timeout_is_unknown: bool = True  # W6: §10
    unavailable_is_unknown: bool = True  # W7: §10, a 503 the contract does not list
    key_stays: bool = True  # W8: §7, `remote_key` derived once
    doubt_blocks_stream: bool = True  # W15: C4 and row 2
    hold: bool = True  # W15: §12
    exhausted_to_review: bool = True  # W22: row 19
    lapsed_repeat_keeps_doubt: bool = True  # W26: row 3
    key_life_checked: bool = True  # W27: row 2
    refusal_after_doubt_is_unknown: bool = True  # W28: row 11
    stream_reread_at_marker: bool = True  # W29: row 4
    margin_after_marker: bool = True  # W30: §6.4 and §9.1
    doubt_inherited: bool = True  # W31: §12
    late_result_stops_repeat: bool = True  # W32: row 23

    # Not weaknesses of the list: sentences of the page that can be read in two ways. True is the
    # reading that survives the search; `test_model.py` shows what the other one costs.
    key_life_at_marker: bool = True
    discarded_doubt_holds: bool = True
    inherited_doubt_needs_absence: bool = True
    inherited_doubt_keeps_quiet: bool = True
    inherited_delete_needs_absence: bool = True
    stale_leaves_the_queue: bool = True
    hold_from_the_marker: bool = True
    inherited_doubt_once: bool = True
    retry_inherits: bool = True
    pending_can_exhaust: bool = True
    late_result_stops_heir: bool = True
    late_result_stops_look: bool = True
    late_result_renews_doubt: bool = True


@dataclass(frozen=True)
class Timing:
    """Whole ticks. The search counts down from these; nothing reads a clock.

    `lease` must be at least `max_send + 2·margin` (§6); the rest of it is time to prepare.
    """

    lease: int = 4
    max_send: int = 1
    margin: int = 1
    max_exec: int = 2
    index_lag: int = 0
    key_ttl: int = 9
    key_slack: int = 1  # the tenth of `key_ttl` that §8 leaves unused

    @property
    def quiet(self) -> int:
        """From the marker until the request can no longer be executed (§9.1)."""
        return self.margin + self.max_send + self.max_exec

    @property
    def right_to_send(self) -> int:
        """From the claim until the worker's own right to send ends (§6.1)."""
        return self.lease - self.max_send - self.margin


@dataclass(frozen=True)
class Scenario:
    """One search: what is submitted, to which remote, and how much may go wrong.

    Every budget is a count over the whole history. `exists` says that the entity is at the remote
    and mapped before the first submit. `intents` are versions 1, 2 ... of one stream.
    """

    name: str
    capability: Capability
    intents: tuple[str, ...]  # "put" or "delete"
    exists: bool = False
    key_atomic: bool = True
    slow_remote: bool = True  # class a: a request may be at work while a second one arrives
    workers: int = 2
    kills: int = 0
    freezes: int = 1
    drops: int = 1
    refusals: int = 0
    copies: int = 0
    decisions: int = 0
    breaches: int = 0
    unavailable: int = 0
    max_sends: int = 3
    max_lapses: int = 3
    late_commit: bool = False  # version 2 may become visible before version 1 (F118)
    timing: Timing = Timing()
