"""The rows the hub keeps: one noun a file. Models carry constraints and facts about one row, no
verbs.
"""

from hub.models.connection import Connection
from hub.models.gate import Bucket, Gate
from hub.models.installation import Heartbeat, Installation
from hub.models.mapping import Mapping
from hub.models.operation import Attempt, Dependency, Evidence, Operation
from hub.models.review import Candidate, Decision, Note, ReviewCase
from hub.models.tenant import Tenant

__all__ = [
    "Attempt",
    "Bucket",
    "Candidate",
    "Connection",
    "Decision",
    "Dependency",
    "Evidence",
    "Gate",
    "Heartbeat",
    "Installation",
    "Mapping",
    "Note",
    "Operation",
    "ReviewCase",
    "Tenant",
]
