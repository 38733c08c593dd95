"""The last door before a log: a line names its time and its logger, and shows no secret."""

from __future__ import annotations

import logging
from functools import cached_property
from urllib.parse import urlsplit

from django.conf import settings

from hub.redaction import Scrubber

LONGEST = 20_000
"""Characters of one record, its traceback included."""


class ScrubbedFormatter(logging.Formatter):
    """Formats a record, then masks the hub's own keys and whatever reads like a credential.

    It works on the finished text, so a secret in an argument, an exception or a traceback is
    masked, too. Credentials of a connection are masked where they are known (`hub.credentials`);
    this is the net below.
    """

    @cached_property
    def _scrubber(self) -> Scrubber:
        password = str(settings.DATABASES["default"].get("PASSWORD") or "")
        mail = str(settings.EMAIL_HOST_PASSWORD or "")
        secrets = [settings.SECRET_KEY, *settings.HUB_CREDENTIAL_KEYS, password, mail]
        return Scrubber(secret for secret in secrets if secret)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a user's name and password in an address are dropped by pattern."""
        text = super().format(record)
        return self._scrubber.text(_without_logins(text), LONGEST)


def _without_logins(text: str) -> str:
    """`text` with `scheme://user:password@host` shortened to `scheme://host` in each word."""
    if "@" not in text or "://" not in text:
        return text
    words = []
    for word in text.split(" "):
        if "://" in word and "@" in word:
            try:
                login = urlsplit(word).netloc.rpartition("@")[0]
            except ValueError:
                login = ""
            if ":" in login:
                word = word.replace(f"{login}@", "", 1)
        words.append(word)
    return " ".join(words)
