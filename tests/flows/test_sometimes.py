"""The run as a whole met what it is about: a check that never meets its case proves nothing."""

import pytest

from tests.harness.sometimes import ALL, Situations

pytestmark = [pytest.mark.processes, pytest.mark.both_databases]


def test_every_wanted_situation_occurred(
    situations: Situations, request: pytest.FixtureRequest
) -> None:
    ran = {item.path.name for item in request.session.items}
    if not {"test_chaos.py", "test_old_after_new.py", "test_restart_mid_work.py"} <= ran:
        pytest.skip("only a run of all flows can say whether each situation occurred")
    missing = [name for name in ALL if not situations.met[name]]
    assert not missing, dict(situations.met)
