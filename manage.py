#!/usr/bin/env python3
"""Django's command line for the hub."""

import os
import sys


def main() -> None:
    """Run one management command with the hub's settings."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hub.settings")
    try:
        from django.core.exceptions import ImproperlyConfigured
        from django.core.management import execute_from_command_line
    except ImportError as error:
        raise SystemExit(
            f"{error}. The hub's packages are in .venv: run `make setup` once, "
            "then use `.venv/bin/python manage.py ...`."
        ) from error
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        # What is set wrong is the operator's to mend: the text says how, a traceback would hide it.
        if "--traceback" in sys.argv:
            raise
        sys.stderr.write(f"{error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
