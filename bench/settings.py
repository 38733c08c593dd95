"""The hub's own settings, and the bench's integration with them.

`BENCH_RAW_Q2=1` puts a tuned, raw Django-Q2 in place of the hub's cluster: the rival.
"""

import os

from hub.settings import *  # noqa: F403 - these are the hub's settings
from hub.settings import INSTALLED_APPS, INTEGRATIONS, SILENCED_SYSTEM_CHECKS

INTEGRATIONS = [*INTEGRATIONS, "bench"]
INSTALLED_APPS = [*INSTALLED_APPS, "bench"]

if os.environ.get("BENCH_RAW_Q2") == "1":
    # The hub's checks of its own cluster do not concern the rival.
    SILENCED_SYSTEM_CHECKS = [*SILENCED_SYSTEM_CHECKS, *(f"hub.E{n:03}" for n in range(1, 30))]
    Q_CLUSTER = {
        "name": "rival",
        "orm": "default",
        "workers": 2,
        "timeout": 60,
        "retry": 120,
        "save_limit": -1,
        "poll": 0.2,
        "catch_up": False,
        "scheduler": False,
        "label": "Django-Q2",
    }
