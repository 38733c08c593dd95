"""No log line shows a secret, whichever way it came into the record."""

import io
import logging
import logging.config

import pytest
from django.conf import settings


@pytest.fixture
def log():
    """A logger with the formatter of the settings, and what it wrote."""
    written = io.StringIO()
    configuration = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": settings.LOGGING["formatters"],
        "handlers": {
            "memory": {"class": "logging.StreamHandler", "formatter": "line", "stream": written}
        },
        "loggers": {"tests.logs": {"handlers": ["memory"], "level": "DEBUG", "propagate": False}},
    }
    logging.config.dictConfig(configuration)
    logger = logging.getLogger("tests.logs")
    yield logger, written
    logger.handlers.clear()


def test_line_names_its_logger_and_keeps_its_words(log):
    logger, written = log
    logger.warning("operation %s waits for connection %s", 17, "shop")
    assert "WARNING tests.logs operation 17 waits for connection shop" in written.getvalue()


@pytest.mark.parametrize("secret", ["SECRET_KEY", "HUB_CREDENTIAL_KEYS"])
def test_own_keys_are_masked_in_arguments_and_tracebacks(log, secret):
    logger, written = log
    value = getattr(settings, secret)
    value = value if isinstance(value, str) else value[0]
    logger.error("started with %s", value)
    try:
        raise ValueError(f"cannot use {value}")
    except ValueError:
        logger.exception("failed")
    assert "started with" in written.getvalue()
    assert "ValueError" in written.getvalue()
    assert value not in written.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer planted-secret-word",
        'refused {"access_token": "planted-secret-word"}',
        "password=planted-secret-word",
        "cannot reach postgresql://hub:planted-secret-word@127.0.0.1:5432/hub today",
    ],
)
def test_what_reads_like_a_credential_is_masked(log, text):
    logger, written = log
    logger.error(text)
    assert "planted-secret-word" not in written.getvalue()
    assert written.getvalue().strip()


def test_address_keeps_its_host(log):
    logger, written = log
    logger.error("cannot reach postgresql://hub:planted-secret-word@127.0.0.1:5432/hub today")
    assert "postgresql://127.0.0.1:5432/hub today" in written.getvalue()
