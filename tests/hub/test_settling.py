"""Settling: values that get past the door are the fault of one result, not of its batch."""

from typing import Any

import pytest

from hub import moves
from hub.models import Evidence, ReviewCase
from tests.harness.world import World

FIELDS = {"name": "Ann"}


@pytest.mark.parametrize("error", [ValueError("surrogates not allowed"), TypeError("no JSON")])
def test_a_value_that_cannot_be_stored_goes_to_a_person_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """F72, F125: the batch falls back row by row; the culprit is in doubt, with the id it named."""
    remote = world.fake_remote()
    connection = world.connect(remote)
    remote.order("slow", "POST", seconds=0.2, times=6)
    done = [world.submit(connection, "c.create", str(n), 1, FIELDS) for n in range(6)]
    odd = done[3]
    real = moves.settle

    def settle(wanted: Any, now: Any = None) -> Any:
        for one in wanted:
            if one.subject.id == odd.operation_id and one.verdict.done is not None:
                raise error
        return real(wanted, now)

    monkeypatch.setattr(moves, "settle", settle)
    world.settle()
    assert [world.state(one) for one in done if one is not odd] == ["confirmed"] * 5
    row = world.operation(odd)
    assert (row.state, row.reason_code, row.maybe_executed) == ("review", "not_storable", True)
    assert "It was done (remote id " in row.reason_text
    assert row.lapses == 0
    assert Evidence.objects.filter(operation_id=row.pk, data__startswith="remote id").exists()
    assert ReviewCase.objects.get(closed_at=None).advice == "link"
    assert len([one for one in remote.log if one.method != "GET"]) == 6
