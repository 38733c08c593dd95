"""Minimum check: the same change delivered twice is one operation and one contact (F1-F3, F6)."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from django.db import connection

from hub import outbox
from hub.bell import ring_on_commit
from hub.models import Operation, ReviewCase
from tests.harness.world import CONTACT, World

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[2]


def test_one_after_the_other(world: World) -> None:
    stand_in = world.stand_in()
    bitrix = world.connect(stand_in)
    world.work(1)
    first = world.submit(bitrix)
    world.settle()
    second = world.submit(bitrix)
    assert second.operation_id == first.operation_id
    assert not second.fresh
    assert second.state.value == "confirmed"
    world.settle()
    assert Operation.objects.count() == 1
    assert len(stand_in.simulator.ledger()) == 1


def test_twenty_threads_at_once(world: World) -> None:
    stand_in = world.stand_in()
    bitrix = world.connect(stand_in)
    world.work(1)
    ready = threading.Barrier(20)
    found: list[int | Exception] = []

    def deliver() -> None:
        try:
            ready.wait(20)
            found.append(world.submit(bitrix).operation_id)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller would have seen it
            found.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=deliver) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 20
    assert len(set(found)) == 1, found
    world.settle()
    assert Operation.objects.count() == 1
    assert len(stand_in.simulator.items("acme")) == 1


def test_two_processes_at_once(world: World) -> None:
    stand_in = world.stand_in()
    bitrix = world.connect(stand_in)
    world.work(1)
    lines = "\n".join(
        json.dumps([bitrix.name, "contact.create", str(number), 1, CONTACT]) for number in range(50)
    )
    processes = [
        subprocess.Popen(
            [sys.executable, str(ROOT / "manage.py"), "hub_submit", "--lines"],
            env=world.environment,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said: list[tuple[str, str]] = []
    talks = [
        threading.Thread(target=lambda p=one: said.append(p.communicate(lines, 60)))
        for one in processes
    ]
    for talk in talks:
        talk.start()
    for talk in talks:
        talk.join(70)
    assert [one.returncode for one in processes] == [0, 0], said
    first, second = (out.split() for out, _ in said)
    assert first == second
    assert len(set(first)) == 50
    for number, operation_id in enumerate(first):
        world.acknowledged(int(operation_id), f"contact.create {number} v1")
    world.settle()
    assert Operation.objects.count() == 50
    assert len(stand_in.simulator.items("acme")) == 50


def test_the_same_intent_with_another_payload_is_drift(world: World) -> None:
    stand_in = world.stand_in()
    bitrix = world.connect(stand_in)
    world.work(1)
    first = world.submit(bitrix)
    for _ in range(3):
        with pytest.raises(outbox.Drift) as caught:
            world.submit(bitrix, fields=CONTACT | {"last_name": "Other"})
        assert caught.value.operation_id == first.operation_id
    world.settle()
    assert Operation.objects.count() == 1
    case = ReviewCase.objects.get()
    assert (case.subject, case.count) == ("drift", 3)
    assert stand_in.simulator.items("acme")[0]["lastName"] == CONTACT["last_name"]


def test_a_bell_rung_three_times_or_for_nothing_does_nothing_more(world: World) -> None:
    stand_in = world.stand_in()
    bitrix = world.connect(stand_in)
    world.work(2)
    submitted = world.submit(bitrix)
    for _ in range(3):
        ring_on_commit()
    world.settle()
    ring_on_commit()
    assert world.state(submitted) == "confirmed"
    assert world.operation(submitted).attempt_set.count() == 1
