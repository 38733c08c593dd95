"""The model admin: one file per file in `hub.models`, read-only but for settings.

The lists answer "what is pending, for whom, since when, why" and stay fast at a million rows: no
full counts, the order
of the primary key, exact search on indexed columns, and no payload is ever loaded for a list.
"""

from hub.admin import (
    access,
    connection,
    gate,
    installation,
    mapping,
    operation,
    review,
    tenant,
)

__all__ = [
    "access",
    "connection",
    "gate",
    "installation",
    "mapping",
    "operation",
    "review",
    "tenant",
]
