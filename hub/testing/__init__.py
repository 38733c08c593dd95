"""What an integration's tests are made of: driving steps with recorded answers, and a fake remote.

`hub.testing.conformance.ConnectorConformance` holds the questions every connector is asked.
"""

import sys

if "pytest" in sys.modules:
    # Before it is imported, so that a failed question shows its values.
    sys.modules["pytest"].register_assert_rewrite("hub.testing.conformance")

from hub.policy import classify
from hub.testing.driving import BadSteps, Reply, answer, drive, observe
from hub.testing.recorded import Recorded, load, load_all
from hub.testing.remote import FakeRemote, Fault, Order

__all__ = [
    "BadSteps",
    "FakeRemote",
    "Fault",
    "Order",
    "Recorded",
    "Reply",
    "answer",
    "classify",
    "drive",
    "load",
    "load_all",
    "observe",
]
