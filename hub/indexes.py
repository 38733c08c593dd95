"""Conditions written so that both databases answer them from the partial indexes of operations.

SQLite uses a partial index only where the index's own condition stands in the query, and it does
not look into parameters for it: the values have to be literals.
"""

from __future__ import annotations

from typing import Any

from django.db.models import Q, QuerySet, Value

from hub.models import Operation
from hub.models.operation import CLAIMABLE, CLOSED, STATE_LABELS


class Literal(Value):
    """A word of ours, such as a state, that goes into the statement as it is; nobody's input."""

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[str | int, ...]]:
        text = str(self.value)
        if not (text.isascii() and text.isalpha()):
            raise ValueError(f"{text!r} is no plain word")
        return f"'{text}'", ()


CLAIMABLE_NOW = Q(state__in=[Literal(state) for state in CLAIMABLE], parked=False)
_OPEN = [Literal(state) for state, _label in STATE_LABELS if state not in CLOSED]
UNFINISHED = ~Q(state__in=[Literal(state) for state in CLOSED]) & Q(state__in=_OPEN)


TO_LOOK_AT = Q(state__in=[Literal("uncertain"), Literal("accepted")])


def unfinished(state: str = "") -> QuerySet[Any]:
    """The primary keys of all operations that are not finished, or of those in one such state.

    To be used as a subquery (`pk__in=unfinished()`): whatever else is asked for, SQLite then begins
    with the small index, also where no statistics tell it how small that is.
    """
    rows = Operation.objects.filter(UNFINISHED).order_by()
    return (rows.filter(state=state) if state else rows).values("pk")
