"""A small cluster of workers for tests: one parent that forks drains and replaces those that die.

`python -m tests.harness.supervisor COUNT FILE` writes a line ``+PID`` or ``-PID`` into FILE for every child that
comes or goes. A killed parent leaves its children behind, as any parent does; whoever killed it sees to them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path


def main(count: int, record: Path) -> int:
    """Keep `count` drains running until SIGTERM; their exit is waited for."""
    import django

    django.setup()
    from hub.delivery import Drain

    children: set[int] = set()
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def write(line: str) -> None:
        with record.open("a") as file:
            file.write(line + "\n")

    signal.signal(signal.SIGTERM, stop)
    while True:
        while len(children) < count and not stopping:
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                code = 1
                try:
                    Drain(budget=600.0, signals=True).run()
                    code = 0
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(code)
            children.add(pid)
            write(f"+{pid}")
        if not children:
            return 0
        try:
            gone, _ = os.wait()
        except ChildProcessError:
            gone = 0
        children.discard(gone)
        write(f"-{gone}")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2])))
