"""An operation's story as plain data: for the command line, the pages and the tests alike."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from hub.models import Operation


def _when(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment is not None else None


def _loaded(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text


def as_dict(operation_id: int) -> dict[str, Any] | None:
    """All that is known of an operation; None when there is none. The payload itself is not in
    it.
    """
    row = (
        Operation.objects.select_related("connection", "tenant")
        .filter(pk=operation_id)
        .defer("payload")
        .first()
    )
    if row is None:
        return None
    return {
        "id": row.pk,
        "tenant": row.tenant.slug,
        "connection": row.connection.name,
        "action": row.action,
        "object_type": row.object_type,
        "source_system": row.source_system,
        "source_id": row.source_id,
        "version": row.version,
        "generation": row.generation,
        "state": row.state,
        "state_since": _when(row.state_since),
        "reason_code": row.reason_code,
        "reason": row.reason_text,
        "maybe_executed": row.maybe_executed,
        "operation_key": row.operation_key,
        "remote_key": row.remote_key,
        "reference": row.reference,
        "remote_ref": row.remote_ref,
        "next_at": _when(row.next_at),
        "attempts_used": row.attempts,
        "lease_token": row.lease_token,
        "supersedes": row.supersedes_id,
        "created_at": _when(row.created_at),
        "confirmed_at": _when(row.confirmed_at),
        "attempts": [
            {
                "token": a.token,
                "purpose": a.purpose,
                "worker": a.worker,
                "claimed_at": _when(a.claimed_at),
                "marked_at": _when(a.marked_at),
                "left": a.left,
                "request_digest": a.request_digest,
                "settled_at": _when(a.settled_at),
                "outcome": a.outcome,
                "verdict": a.verdict,
                "error_class": a.error_class,
                "status": a.status,
                "duration_ms": a.duration_ms,
                "seen": _loaded(a.seen),
                "stale": a.stale,
            }
            for a in row.attempt_set.order_by("token")
        ],
        "evidence": [
            {
                "at": _when(e.at),
                "actor": e.actor,
                "kind": e.kind,
                "text": e.text,
                "token": e.token,
                "data": e.data,
            }
            for e in row.evidence_set.order_by("at", "id")
        ],
        "decisions": [
            {
                "at": _when(d.at),
                "action": d.action,
                "by": d.by_name,
                "reason": d.reason,
                "done": d.done,
                "result": d.result,
                "remote_ref": d.remote_ref,
            }
            for d in row.decisions.order_by("at", "id")
        ],
    }


def as_text(told: dict[str, Any]) -> str:
    """The same, for a person at a terminal."""
    doubt = ", may have been executed" if told["maybe_executed"] else ""
    lines = [
        f"operation {told['id']}: {told['action']} {told['object_type']} {told['source_id']} "
        f"version {told['version']} on {told['connection']} ({told['tenant']})",
        f"  {told['state']}{doubt} since {told['state_since']}",
        f"  {told['reason'] or 'no remark'}",
        f"  remote id {told['remote_ref'] or '-'}, reference {told['reference']}",
        f"  idempotency key {told['remote_key']}",
    ]
    for a in told["attempts"]:
        late = ", came too late to count" if a["stale"] else ""
        lines.append(
            f"  attempt {a['token']} ({a['purpose']}, {a['claimed_at']}): "
            f"{a['outcome'] or 'under way'} {a['verdict']}{late}"
        )
    lines += [f"  {e['at']} {e['actor']}: {e['text']}" for e in told["evidence"]]
    lines += [
        f"  {d['at']} {d['by']} decided {d['action']} ({d['reason']}): {d['result']}"
        for d in told["decisions"]
    ]
    return "\n".join(lines)
