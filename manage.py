#!/usr/bin/env python3
"""Django's command line for the hub."""

import os
import sys


def main() -> None:
    """Run one management command with the hub's settings."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hub.settings")
    try:
        from django.core.management import execute_from_command_line
    except ImportError as error:
        raise SystemExit(
            f"{error}. The hub's packages are in .venv: run `make setup` once, "
            "then use `.venv/bin/python manage.py ...`."
        ) from error
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
