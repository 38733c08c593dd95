"""The WSGI entry point: `gunicorn hub.wsgi`."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hub.settings")

application = get_wsgi_application()
