"""The error answer of the service, as an exception."""

from __future__ import annotations

from typing import Any


class RestError(Exception):
    """An answer ``{"error": code, "error_description": text}`` with an HTTP status."""

    def __init__(self, status: int, code: str, description: str) -> None:
        super().__init__(f"{status} {code}: {description}")
        self.status = status
        self.code = code
        self.description = description

    def body(self) -> dict[str, Any]:
        """The JSON object that is sent."""
        return {"error": self.code, "error_description": self.description}
