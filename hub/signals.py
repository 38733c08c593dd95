"""For local code that has to act on a confirmation in the very transaction that stores it."""

from django.dispatch import Signal

confirmed = Signal()
"""Sent with `operation_id` and `remote_ref`, inside the transaction that confirms the operation.

A listener that raises is tried once more alone; raising again sends the operation to review
(protocol §6.6).
"""
