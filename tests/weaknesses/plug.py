"""A plugin of pytest (`-p tests.weaknesses.plug`): plants a weakness, and says what became of the
tests.

`HUB_TEST_WEAKNESS` names the weakness. Processes that a test starts get it, too: they find
`site/sitecustomize.py` first on their path. `HUB_TEST_WEAKNESS_REPORT` is where the outcomes go.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.weaknesses import SITE, VARIABLE
from tests.weaknesses.planted import BY_ID

REPORT = "HUB_TEST_WEAKNESS_REPORT"
ROOT = Path(__file__).resolve().parents[2]


def with_site(environment: dict[str, str]) -> dict[str, str]:
    """The environment of another process that has the weakness of this one."""
    there = [str(SITE), str(ROOT), environment.get("PYTHONPATH", "")]
    return environment | {"PYTHONPATH": os.pathsep.join(part for part in there if part)}


class _Weakened(subprocess.Popen):
    """Every process a test starts has the weakness: its own environment would leave it out."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        environment = dict(options.get("env") or os.environ)
        environment[VARIABLE] = os.environ[VARIABLE]
        super().__init__(*arguments, **options | {"env": with_site(environment)})


class _Outcomes:
    """Notes how each phase of each test ended."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._seen: dict[str, dict[str, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        phases = self._seen.setdefault(report.nodeid, {})
        said = ""
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            said = str(crash.message if crash is not None else report.longrepr).strip()
        phases[report.when or ""] = report.outcome
        if said:
            phases["said"] = said[:2000]

    def pytest_sessionfinish(self) -> None:
        self._target.write_text(json.dumps(self._seen))


def pytest_configure(config: pytest.Config) -> None:
    """Note the outcomes, when somebody wants to know."""
    if REPORT in os.environ:
        config.pluginmanager.register(_Outcomes(Path(os.environ[REPORT])))


if VARIABLE in os.environ:
    BY_ID[os.environ[VARIABLE]].plant()
    subprocess.Popen = _Weakened  # type: ignore[misc]
