"""The scenarios that are searched. Each is one stream with its remote and a budget of faults.

The budgets are as large as a run of seconds allows. A drop is a connection that breaks with the
request under way; a request may also stay unanswered past `max_send` at no cost.
"""

from dataclasses import replace
from typing import Any

from tests.model.rules import Capability, Scenario, Timing

_LAGGING = Timing(index_lag=1)
_SHORT_KEY = Timing(key_ttl=7)
_CREATES = tuple(c for c in Capability if c is not Capability.FULL_STATE)
_KEYED = (Capability.KEY, Capability.KEY_AND_LOOK)


def _one(capability: Capability, name: str = "", **more: Any) -> Scenario:
    """One create, two workers: the outcome of a single operation."""
    base = Scenario(
        name or f"{capability}: create",
        capability,
        ("put",),
        freezes=2 if capability in {Capability.REFERENCE, Capability.NOTHING} else 1,
        refusals=1,
        max_sends=2 if capability is Capability.KEY_AND_LOOK else 3,
        max_lapses=3,
    )
    return replace(base, **more)


def _two(capability: Capability, name: str, **more: Any) -> Scenario:
    """Two versions of one entity: order, holds, inherited doubt."""
    base = Scenario(
        f"{capability}: {name}",
        capability,
        ("put", "put"),
        freezes=0,
        max_sends=2,
        max_lapses=2,
        slow_remote=False,
    )
    return replace(base, **more)


def _all() -> list[Scenario]:
    c, d = Capability.REFERENCE, Capability.NOTHING
    out = [_one(capability) for capability in _CREATES]
    out += [_one(k, f"{k}: create, key not atomic", key_atomic=False, refusals=0) for k in _KEYED]
    out += [
        _one(c, "c: create, search lags", timing=_LAGGING),
        _one(c, "c: create, killed", kills=1, freezes=1),
        _one(d, "d: create, killed", kills=1, freezes=1),
        _one(d, "d: create, poison", freezes=3, drops=0, refusals=0),
        _one(
            Capability.KEY,
            "a: create, short key",
            timing=Timing(lease=5, key_ttl=9),
            refusals=0,
            drops=0,
        ),
        _one(c, "c: create, A3 broken", breaches=1, drops=0, refusals=0, max_sends=2),
    ]
    for capability in Capability:
        exists = capability is Capability.FULL_STATE
        out.append(
            _one(capability, f"{capability}: 503", exists=exists, unavailable=1, freezes=0, drops=0)
        )
        large = capability is Capability.KEY_AND_LOOK
        out += [
            _two(capability, "two updates", exists=True, freezes=0 if large else 1),
            _two(
                capability,
                "two updates, decisions",
                exists=True,
                decisions=1,
                timing=_SHORT_KEY if large else Timing(),
            ),
            _two(capability, "two updates, commits cross", exists=True, late_commit=True),
        ]
    for capability in _CREATES:
        large = capability is Capability.KEY_AND_LOOK
        out += [
            _one(
                capability,
                f"{capability}: create, decisions",
                decisions=2,
                freezes=0,
                slow_remote=False,
                max_sends=2 if capability in _KEYED else 3,
                timing=_SHORT_KEY if large else Timing(),
            ),
            _two(capability, "create, put", freezes=0 if large else 1),
            _two(
                capability,
                "create, put, decisions",
                decisions=1 if capability in _KEYED else 2,
                timing=_SHORT_KEY if large else Timing(),
            ),
            _two(
                capability,
                "create, put, commits cross",
                late_commit=True,
                decisions=1,
                timing=_SHORT_KEY if large else Timing(),
            ),
        ]
    out += [
        _two(capability, "two updates, requests repeated", exists=True, copies=1)
        for capability in (Capability.KEY, Capability.CONDITIONAL, Capability.FULL_STATE)
    ]
    out.append(_two(Capability.FULL_STATE, "two updates, short budget", exists=True, max_sends=1))
    out.append(
        _two(c, "create, put, A3 broken", decisions=2, breaches=1, drops=0, freezes=1, max_sends=1)
    )
    out.append(
        _one(
            c,
            "c: create, A3 broken, decisions",
            decisions=1,
            breaches=1,
            drops=0,
            freezes=1,
            max_sends=2,
        )
    )
    b = Capability.CONDITIONAL
    out += [
        _two(b, "create, delete", intents=("put", "delete"), freezes=1),
        _two(b, "create, delete, decisions", intents=("put", "delete"), decisions=2),
    ]
    return out


SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in _all()}
