"""What an exception report may say: where it happened, never with which values (I15)."""

from __future__ import annotations

import re
from collections.abc import ItemsView
from types import FrameType
from typing import Any

from django.http import HttpRequest
from django.views.debug import SafeExceptionReporterFilter


class NoValues(SafeExceptionReporterFilter):
    """Leaves every local variable and every posted value out, with DEBUG on as well.

    A traceback through a form or a wire call has credentials in its variables under any name, so no
    list of names
    to hide would do.
    """

    hidden_settings = re.compile(
        "API|AUTH|TOKEN|KEY|SECRET|PASS|SIGNATURE|HTTP_COOKIE|CREDENTIAL|SESSION|DATABASE|URL|EMAIL",
        re.IGNORECASE,
    )

    def is_active(self, request: HttpRequest | None) -> bool:
        return True

    def get_post_parameters(self, request: HttpRequest | None) -> Any:
        if request is None:
            return {}
        return dict.fromkeys(request.POST, self.cleansed_substitute)

    def get_traceback_frame_variables(
        self, request: HttpRequest | None, tb_frame: FrameType
    ) -> ItemsView[str, Any]:
        return {}.items()
