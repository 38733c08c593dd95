"""Runs first in every process that a weakened test starts, and plants the same weakness there."""

import os
import sys

if "HUB_TEST_WEAKNESS" in os.environ:
    try:
        from tests.weaknesses.planted import BY_ID

        BY_ID[os.environ["HUB_TEST_WEAKNESS"]].plant()
    except BaseException as error:  # noqa: BLE001
        # Python would go on after an error in this file, and the process would be a sound one.
        sys.stderr.write(f"the weakness could not be planted: {error!r}\n")
        sys.stderr.flush()
        os._exit(70)
