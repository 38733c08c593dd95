"""What can go wrong on order: the catalogue of faults, and the orders waiting to be met."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from random import Random
from typing import Any, NamedTuple


class Role(Enum):
    """Where in a request a fault acts. One order of each role may meet the same request."""

    EFFECT = "changes what is saved"
    DELAY = "changes when"
    ANSWER = "changes what the caller gets to see, or whether anything runs"


class Reach(Enum):
    """Which calls a fault can meet at all."""

    ANY = "any"
    WRITE = "write"
    SAVE = "add or update"
    LIST = "list"
    ADD_OR_LIST = "add or list"


class Fault(NamedTuple):
    """One entry of the catalogue. ``seconds`` is used when an order names none."""

    text: str
    role: Role
    reach: Reach = Reach.ANY
    seconds: float = 0.0


CATALOGUE: Mapping[str, Fault] = {
    "answer_lost_before_commit": Fault(
        "nothing runs; the connection closes without an answer (after `seconds`)", Role.ANSWER
    ),
    "answer_lost_after_commit": Fault(
        "the call runs; the connection closes without an answer (after `seconds`)", Role.ANSWER
    ),
    "late_commit": Fault(
        "the connection closes at once; the write runs `seconds` later",
        Role.ANSWER,
        Reach.WRITE,
        2.0,
    ),
    "cut_body": Fault("the call runs; the answer stops half-way", Role.ANSWER),
    "html_body": Fault("the call runs; the answer is 200 with an HTML login page", Role.ANSWER),
    "not_json": Fault("the call runs; the answer is 200 with text that is not JSON", Role.ANSWER),
    "broken_gzip": Fault("the call runs; the answer claims gzip and is not", Role.ANSWER),
    "coded_5xx_before_commit": Fault("nothing runs; 500 INTERNAL_SERVER_ERROR", Role.ANSWER),
    "coded_5xx_after_commit": Fault("the call runs; 500 INTERNAL_SERVER_ERROR", Role.ANSWER),
    "uncoded_5xx_before_commit": Fault("nothing runs; 502 with a gateway's HTML page", Role.ANSWER),
    "uncoded_5xx_after_commit": Fault("the call runs; 502 with a gateway's HTML page", Role.ANSWER),
    "throttle": Fault("nothing runs; 503 QUERY_LIMIT_EXCEEDED", Role.ANSWER),
    "operation_time_limit": Fault("nothing runs; 429 OPERATION_TIME_LIMIT", Role.ANSWER),
    "overload_limit": Fault(
        "nothing runs; 503 OVERLOAD_LIMIT, the vendor's manual block", Role.ANSWER
    ),
    "access_denied": Fault("nothing runs; 400 ACCESS_DENIED", Role.ANSWER),
    "invalid_credentials": Fault("nothing runs; 401 INVALID_CREDENTIALS", Role.ANSWER),
    "expired_token": Fault("nothing runs; 401 expired_token", Role.ANSWER),
    "portal_deleted": Fault("nothing runs; 500 PORTAL_DELETED", Role.ANSWER),
    "wrong_echo": Fault(
        "the call runs; the answer shows another external identifier", Role.ANSWER, Reach.SAVE
    ),
    "empty_list": Fault(
        "the list answers empty, as for a user without read rights", Role.ANSWER, Reach.LIST
    ),
    "slow_list": Fault(
        "the list is taken at once and answered after `seconds`", Role.DELAY, Reach.LIST, 2.0
    ),
    "slow_answer": Fault(
        "the call runs at once and is answered after `seconds`", Role.DELAY, seconds=2.0
    ),
    "slow_execution": Fault(
        "the call waits `seconds`, then runs and is answered, caller gone or not",
        Role.DELAY,
        seconds=2.0,
    ),
    "index_lag": Fault(
        "add: lists show the record after `seconds`; list: records younger than that are hidden",
        Role.EFFECT,
        Reach.ADD_OR_LIST,
        5.0,
    ),
    "field_ignored": Fault(
        "external identifier and version are dropped when saving", Role.EFFECT, Reach.SAVE
    ),
    "clear_ignored": Fault(
        "empty values are not saved, though the answer shows them empty", Role.EFFECT, Reach.SAVE
    ),
    "duplicate_execution": Fault("the write runs twice, answered once", Role.EFFECT, Reach.WRITE),
}

RUNS_NOTHING = frozenset(
    {
        "answer_lost_before_commit",
        "coded_5xx_before_commit",
        "uncoded_5xx_before_commit",
        "throttle",
        "operation_time_limit",
        "overload_limit",
        "access_denied",
        "invalid_credentials",
        "expired_token",
        "portal_deleted",
        "late_commit",
    }
)
"""Answer faults under which the call does not run while the caller waits."""


@dataclass(slots=True)
class Order:
    """A fault waiting for its request. ``left`` below zero means for ever."""

    id: int
    fault: str
    method: str
    left: int
    seconds: float
    reference: str | None
    portal: str | None
    status: int | None
    probability: float
    random: Random
    met: int = 0

    def shown(self) -> dict[str, Any]:
        """The order as ``GET /_sim/faults`` lists it."""
        return {
            "id": self.id,
            "fault": self.fault,
            "method": self.method,
            "times": self.left,
            "seconds": self.seconds,
            "reference": self.reference,
            "portal": self.portal,
            "status": self.status,
            "probability": self.probability,
            "met": self.met,
        }


@dataclass(frozen=True, slots=True)
class Subject:
    """What an order is compared with. ``verb`` is add, update, delete, list, get or empty."""

    portal: str
    method: str
    verb: str
    reference: Callable[[], str | None]


_REACHED = {
    Reach.WRITE: frozenset({"add", "update", "delete", "batch"}),
    Reach.SAVE: frozenset({"add", "update"}),
    Reach.LIST: frozenset({"list"}),
    Reach.ADD_OR_LIST: frozenset({"add", "list"}),
}
Picked = dict[Role, Order]
_ORDER_NAMES = frozenset(
    "method fault times reference portal seconds probability seed status".split()
)


@dataclass(slots=True)
class Orders:
    """All pending orders, in the order they were given."""

    pending: list[Order] = field(default_factory=list)
    _ids: Any = field(default_factory=lambda: itertools.count(1))

    def place(self, given: Mapping[str, Any]) -> Order:
        """Accept an order; raises ValueError saying what is wrong with it."""
        unknown = set(given) - _ORDER_NAMES
        if unknown:
            raise ValueError(f"unknown names in the order: {', '.join(sorted(unknown))}")
        name = str(given.get("fault"))
        if name not in CATALOGUE:
            raise ValueError(f"unknown fault {name!r}; known: {', '.join(CATALOGUE)}")
        seconds = given.get("seconds")
        status = given.get("status")
        order = Order(
            id=next(self._ids),
            fault=name,
            method=str(given.get("method", "*")).lower().removesuffix(".json"),
            left=int(given.get("times", 1)),
            seconds=CATALOGUE[name].seconds if seconds is None else float(seconds),
            reference=given.get("reference"),
            portal=given.get("portal"),
            status=None if status is None else int(status),
            probability=float(given.get("probability", 1.0)),
            random=Random(given.get("seed", 0)),  # noqa: S311 - a repeatable schedule of faults
        )
        if order.left:
            self.pending.append(order)
        return order

    def pick(self, subject: Subject) -> Picked:
        """The orders that meet this request, at most one per role; each is used up by one."""
        picked: Picked = {}
        for order in list(self.pending):
            fault = CATALOGUE[order.fault]
            if fault.role in picked or not self._meets(order, fault, subject):
                continue
            picked[fault.role] = order
            order.met += 1
            if order.left > 0:
                order.left -= 1
                if not order.left:
                    self.pending.remove(order)
        return picked

    def _meets(self, order: Order, fault: Fault, subject: Subject) -> bool:
        if order.method != "*" and not fnmatchcase(subject.method, order.method):
            return False
        if fault.reach is not Reach.ANY and subject.verb not in _REACHED[fault.reach]:
            return False
        if order.portal is not None and order.portal != subject.portal:
            return False
        if order.reference is not None and order.reference != subject.reference():
            return False
        return order.probability >= 1.0 or order.random.random() < order.probability

    def clear(self) -> None:
        """Forget every pending order."""
        self.pending.clear()
