"""Minimum check: the remote saved, and its answer was lost (F34, F35, F36, F38, F41, F48)."""

import pytest

from tests.harness.world import World

pytestmark = pytest.mark.processes

UNKNOWN = (
    "answer_lost_after_commit",
    "answer_lost_before_commit",
    "cut_body",
    "html_body",
    "not_json",
    "broken_gzip",
    "coded_5xx_before_commit",
    "coded_5xx_after_commit",
    "uncoded_5xx_before_commit",
    "uncoded_5xx_after_commit",
)


@pytest.mark.parametrize("fault", [*UNKNOWN, "late_commit"])
def test_one_contact_whatever_became_of_the_answer(world: World, fault: str) -> None:
    stand_in = world.stand_in()
    bitrix = world.connect(stand_in)
    stand_in.simulator.fault(
        fault, method="crm.item.add", seconds=0.3 if fault == "late_commit" else 0
    )
    world.work(1)
    submitted = world.submit(bitrix)
    world.settle()
    assert world.state(submitted) == "confirmed", world.story(submitted)
    assert len(stand_in.simulator.items("acme")) == 1
