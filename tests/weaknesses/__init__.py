"""Planted weaknesses: rules of the engine broken on purpose, to prove that the suite sees each.

`make weaknesses` (`python -m tests.weaknesses [IDS...]`) plants one after the other and runs the
tests that have to fail. The product has no switches: `patches.py` changes its code in memory.
"""

from pathlib import Path

VARIABLE = "HUB_TEST_WEAKNESS"
SITE = Path(__file__).resolve().parent / "site"
