"""Minimum check: bad data ends in something a person can read, at once and once (F7, F10, F46)."""

from collections.abc import Callable
from subprocess import CompletedProcess
from typing import Any

import pytest

from hub import outbox
from hub.contract import BadPayload
from hub.models import Operation, ReviewCase
from tests.harness.world import CONTACT, World

pytestmark = pytest.mark.processes

DEEP: Any = []
for _ in range(200):
    DEEP = [DEEP]

AT_THE_DOOR: dict[str, tuple[dict[str, Any], str, str]] = {
    "U+0000": ({"first_name": "An\0n"}, "first_name", "U+0000"),
    "lone surrogate": ({"first_name": "An\ud800n"}, "first_name", "surrogate"),
    "NaN": ({"first_name": float("nan")}, "first_name", ""),
    "infinity": ({"first_name": float("inf")}, "first_name", ""),
    "5,000 digits": ({"first_name": 10**4999}, "first_name", ""),
    "too deep": ({"first_name": DEEP}, "first_name", "deep"),
    "unknown field": ({"first_name": "Ann", "shoe_size": 43}, "shoe_size", ""),
    "wrong type": ({"first_name": ["Ann"]}, "first_name", ""),
    "too long": ({"first_name": "x" * 100_000}, "first_name", ""),
}


@pytest.mark.parametrize("name", AT_THE_DOOR)
def test_refused_at_the_door_with_field_and_reason(world: World, name: str) -> None:
    fields, field, reason = AT_THE_DOOR[name]
    bitrix = world.connect(world.stand_in())
    with pytest.raises(BadPayload) as caught:
        outbox.submit(bitrix, "contact.create", source_id="1", version=1, fields=fields)
    text = str(caught.value)
    assert field in text
    assert reason.lower() in text.lower()
    assert len(text) < 500
    text.encode()  # it can be shown: no lone surrogate of its own
    assert "\0" not in text
    assert Operation.objects.count() == 0


@pytest.mark.parametrize(
    ("json", "word"),
    [
        ('{"first_name": "Ann", "first_name": "Eve"}', "first_name"),
        ('{"first_name": NaN}', "NaN"),
        ('{"first_name": ' + "9" * 5000 + "}", ""),
        ('{"first_name": "Ann"', ""),
        ("[1, 2]", ""),
        ('{"first_name": "\\u0000"}', "first_name"),
        ('{"first_name": "\\ud800"}', "first_name"),
    ],
)
def test_refused_on_the_command_line_with_exit_code_2(
    world: World, manage: Callable[..., CompletedProcess[str]], json: str, word: str
) -> None:
    bitrix = world.connect(world.stand_in())
    done = manage("hub_submit", bitrix.name, "contact.create", "1", "1", json)
    assert done.returncode == 2, done.stderr
    assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert Operation.objects.count() == 0


def test_what_the_remote_refuses_fails_once_with_its_words(world: World) -> None:
    stand_in = world.stand_in()
    bitrix = world.connect(stand_in)
    stand_in.simulator.fault("access_denied", method="crm.item.add")
    world.work(1)
    denied = world.submit(bitrix)
    world.settle()
    row = world.operation(denied)
    assert row.state in ("failed", "review"), world.story(denied)
    assert not row.maybe_executed
    assert "denied" in (row.reason_text + ReviewCase.objects.get().summary).lower()
    assert row.attempt_set.count() == 1
    assert len(stand_in.simulator.requests()) == 1


def test_bad_rows_among_good_ones_cost_the_good_ones_nothing(world: World) -> None:
    stand_in = world.stand_in()
    bitrix = world.connect(stand_in)
    refused = [3, 7]
    made = []
    world.work(1)
    for number in range(10):
        made.append(world.submit(bitrix, source_id=str(number)))
        if number in refused:
            stand_in.simulator.fault(
                "access_denied", reference=world.operation(made[-1]).reference, times=-1
            )
    world.settle()
    states = [world.state(one) for one in made]
    assert states.count("confirmed") >= 8
    assert all(state in ("failed", "review", "confirmed") for state in states)


def test_fields_that_look_like_the_keys_own_separators_are_different_entities(world: World) -> None:
    stand_in = world.stand_in()
    bitrix = world.connect(stand_in)
    world.work(1)
    made = [
        world.submit(bitrix, source_id=source_id, source_system=system, fields=CONTACT)
        for system, source_id in (("a|b", "c"), ("a", "b|c"), ("a:b", "c"), ("a", "b:c"))
    ]
    world.settle()
    assert len({world.operation(one).operation_key for one in made}) == 4
    assert len(stand_in.simulator.items("acme")) == 4
