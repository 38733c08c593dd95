"""The catalogue: every weakness, how it is planted, and the tests that have to see it.

The ids are those of the planted weaknesses in the docs (`docs/faults.md`). Only what is broken on
purpose stands here; nothing of it is imported by the product.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.weaknesses.patches import Patch, Source, Text, plant

SQLITE, POSTGRESQL = "sqlite", "postgresql"
BOTH = (SQLITE, POSTGRESQL)


@dataclass(frozen=True)
class Weakness:
    """One rule of the engine that is off, and the tests that must fail then.

    Each test of `caught_by` must fail on one of the `databases`, and on each of them one must.
    """

    id: str
    wrong: str
    patches: tuple[Patch, ...]
    caught_by: tuple[str, ...]
    databases: tuple[str, ...] = (SQLITE,)

    def plant(self) -> None:
        """Break it in this process, for good."""
        plant(self.patches)


WEAKNESSES = (
    Weakness(
        "W1",
        "no marker before sending",
        (
            Source(
                "hub.delivery",
                "Drain.marker",
                "self._desk.mark(MarkWish(mark, item, tell))",
                'tell("marked")',
            ),
        ),
        ("tests/flows/test_weak_spots.py::test_the_marker_is_there_before_the_first_byte",),
        BOTH,
    ),
    Weakness(
        "W2",
        "a lapsed `sent` goes back to the queue, without doubt",
        (
            Source(
                "hub.sweep",
                "Sweeper._lapsed",
                "verdict = decide(facts, Lapsed(), self.tuning.limits, self._roll())\n",
                "verdict = decide(facts, Lapsed(), self.tuning.limits, self._roll())\n"
                "        if row.state == State.SENT.value:\n"
                '            verdict = Verdict(State.RETRY, "lapsed", "Lost.", adds_lapse=True)\n',
            ),
        ),
        (
            "tests/hub/test_sweep.py::test_lost_after_the_marker_it_is_in_doubt",
            "tests/flows/test_leases.py::test_a_zombie_with_an_answer_in_its_hands[d.create]",
        ),
    ),
    Weakness(
        "W3",
        "settle without the token in its condition",
        (
            Text("hub.moves", "_SETTLE_POSTGRES", "AND o.lease_token = v.token AND", "AND"),
            Text("hub.moves", "_SETTLE_SQLITE", "AND lease_token = :token AND", "AND"),
        ),
        (
            "tests/hub/test_moves.py::test_a_move_that_is_no_longer_ours_changes_nothing[token]",
            "tests/flows/test_weak_spots.py"
            "::test_an_error_that_comes_late_does_not_reopen_what_another_has_sent",
        ),
        BOTH,
    ),
    Weakness(
        "W4",
        "no guard before the first byte",
        (Source("hub.link", "Link._send", "order.guard()", "pass"),),
        (
            "tests/hub/test_http.py"
            "::test_the_guard_comes_after_connecting_and_before_the_first_byte",
            "tests/flows/test_leases.py"
            "::test_a_zombie_with_its_marker_that_wakes_late[c.create-mark.committed]",
        ),
    ),
    Weakness(
        "W5",
        '"not found" trusted at once',
        (
            Source(
                "hub.waits",
                "absence_trusted",
                "    action = facts.action\n",
                "    action = facts.action\n    return True\n",
            ),
        ),
        (
            "tests/hub/test_policy_product.py::test_the_promise_holds_for_every_combination",
            "tests/flows/test_weak_spots.py::test_a_request_that_is_executed_late",
        ),
    ),
    Weakness(
        "W6",
        "a time-out treated as a failure",
        (
            Source(
                "hub.doubts",
                "unknown",
                "    just_left = not lapsed\n",
                "    just_left = not lapsed\n"
                "    if just_left:\n"
                "        return Verdict(State.FAILED, code, text, Outcome.REFUSED)\n",
            ),
        ),
        (
            "tests/harness/test_harness.py"
            "::test_an_unknown_outcome_of_each_class[c.create-after]",
            "tests/hub/test_policy_product.py::test_the_promise_holds_for_every_combination",
        ),
    ),
    Weakness(
        "W7",
        "a 503 with `Retry-After` treated as a refusal",
        (
            Source(
                "hub.answers",
                "classify",
                "    speaks = 400 <= status < 500 and status != 408\n",
                "    if status == 503 and retry_after is not None:\n"
                '        return Refused(ErrorClass.TRANSIENT, "Later.", "", status, retry_after)\n'
                "    speaks = 400 <= status < 500 and status != 408\n",
            ),
        ),
        ("tests/flows/test_weak_spots.py::test_a_503_that_asks_for_patience_after_it_executed",),
    ),
    Weakness(
        "W8",
        "a new key per attempt",
        (
            Source(
                "hub.remote",
                "request_for",
                "remote_key=operation.remote_key,",
                'remote_key=__import__("uuid").uuid4().hex,',
            ),
        ),
        ("tests/harness/test_harness.py::test_an_unknown_outcome_of_each_class[a.create-after]",),
    ),
    Weakness(
        "W10",
        "look, then insert, without a key that is unique",
        (
            Source(
                "hub.outbox",
                "insert",
                "    epoch = epoch or",
                "    if generation == 1:\n"
                '        generation = int.from_bytes(__import__("os").urandom(3), "big") + 2\n'
                "    epoch = epoch or",
            ),
        ),
        ("tests/flows/test_interleavings.py::test_two_submits_of_one_intent",),
        (POSTGRESQL,),
    ),
    Weakness(
        "W11",
        "claimed by a read, then a write",
        (
            Text(
                "hub.claims",
                "_TAKE_IF/False",
                "o.state IN ('pending', 'retry') AND NOT EXISTS",
                "NOT EXISTS",
            ),
            Source("hub.claims", "_candidates", " FOR UPDATE OF o SKIP LOCKED", ""),
        ),
        ("tests/flows/test_interleavings.py::test_two_claims_of_one_row",),
        (POSTGRESQL,),
    ),
    Weakness(
        "W12",
        "a transaction is held open during the call",
        (
            Source(
                "hub.desk",
                "Desk._sleep",
                "        ready, _, _ = select.select(watched, [], [], wait)\n",
                "        if connection.connection is not None:\n"
                '            connection.connection.execute("BEGIN")\n'
                '            connection.connection.execute("SELECT 1 FROM hub_operation LIMIT 1")\n'
                "        ready, _, _ = select.select(watched, [], [], wait)\n"
                "        if connection.connection is not None:\n"
                '            connection.connection.execute("COMMIT")\n',
            ),
        ),
        (
            "tests/flows/test_weak_spots.py::test_no_transaction_is_open_while_a_call_is_out",
            "tests/flows/test_weak_spots.py::test_the_stand_in_sees_no_transaction_span_a_call",
        ),
        BOTH,
    ),
    Weakness(
        "W13",
        "leases by the worker's wall clock",
        (
            Source(
                "hub.claims",
                "claim",
                "    by_lane = {share.connection_id: share for share in shares}\n",
                "    by_lane = {share.connection_id: share for share in shares}\n"
                "    global _ahead\n"
                "    from hub.sql import database_now\n"
                "    _ahead = (now - database_now()).total_seconds()\n",
            ),
            Source(
                "hub.claims",
                "_take_postgres",
                '"leases": [float(share.lease) for share in shares.values()],',
                '"leases": [float(share.lease) + _ahead for share in shares.values()],',
            ),
        ),
        ("tests/flows/test_weak_spots.py::test_a_workers_wall_clock_has_no_say_in_its_leases",),
        (POSTGRESQL,),
    ),
    Weakness(
        "W14",
        "a time-out per read only, no deadline over the whole",
        (
            Source(
                "hub.link",
                "Link.exchange",
                "    timer = self.loop.call_later(max(left, 0.0), self._expire)\n",
                "    read = self._raw\n"
                "    def silent():\n"
                "        nonlocal timer, read\n"
                "        if self._raw == read:\n"
                "            self._expire()\n"
                "        read = self._raw\n"
                "        timer = self.loop.call_later(max(left, 0.0), silent)\n"
                "    timer = self.loop.call_later(max(left, 0.0), silent)\n",
            ),
            Source(
                "hub.link",
                "Link._readable",
                "if not self._over and self._order.clock() >= self._order.deadline:",
                "if False:",
            ),
        ),
        (
            "tests/hub/test_http.py::test_a_dripping_head_ends_at_the_deadline",
            "tests/hub/test_http.py::test_a_dripping_body_is_a_lost_body",
            "tests/flows/test_weak_spots.py"
            "::test_an_answer_that_drips_does_not_outlast_its_lease",
        ),
    ),
    Weakness(
        "W15",
        "the next version passes the former, and waits for no late copy of it",
        (
            Text("hub.claims", "_BLOCKER", "(b.version, b.id) < (o.version, o.id)", "false"),
            Text("hub.claims", "_HELD", "h.hold_until IS NOT NULL", "false"),
            Text("hub.moves", "_MARK_POSTGRES", "h.hold_until IS NOT NULL", "false"),
            Text("hub.moves", "_MARK_SQLITE", "h.hold_until IS NOT NULL", "false"),
        ),
        (
            "tests/hub/test_claims.py::test_who_may_pass_a_lower_version",
            "tests/hub/test_claims.py::test_a_hold_keeps_the_next_back_until_it_ends",
            "tests/hub/test_moves.py::test_no_marker_under_a_hold",
            "tests/flows/test_weak_spots.py::test_a_late_copy_does_not_overwrite_the_next_version",
        ),
        BOTH,
    ),
    Weakness(
        "W19",
        "redirects are followed",
        (
            Source(
                "hub.http",
                "Wire.exchange",
                "        answer = _answer(received, route.max_body, clock() - started)\n",
                "        answer = _answer(received, route.max_body, clock() - started)\n"
                '        there = answer.header("location")\n'
                "        if 300 <= answer.status < 400 and there:\n"
                "            return await self.exchange(\n"
                "                route, replace(call, path=there), max_send=max_send, guard=guard\n"
                "            )\n",
            ),
        ),
        (
            "tests/hub/test_http.py::test_redirects_are_not_followed",
            "tests/flows/test_weak_spots.py::test_a_write_that_is_redirected_goes_nowhere",
        ),
    ),
    Weakness(
        "W20",
        "rate limit per process",
        (
            Source(
                "hub.gate",
                "Tokens._lock",
                "    return min(limit.burst, level + gone * refill)",
                '    mine = globals().setdefault("_mine", {})\n'
                "    level, at = mine.get((limit.scope, limit.group), (limit.burst, self._now))\n"
                "    gone = max(0.0, (self._now - at).total_seconds())\n"
                "    return min(limit.burst, level + gone * refill)",
            ),
            Source(
                "hub.gate",
                "Tokens.store",
                "        if taken:\n"
                "            rows(\n",
                "        if taken:\n"
                '            mine = globals().setdefault("_mine", {})\n'
                "            mine[scope, group] = (\n"
                "                self._levels[scope, group] - taken, self._now)\n"
                "            (lambda *_: None)(\n",
            ),
        ),
        ("tests/flows/test_weak_spots.py::test_workers_share_one_limit",),
        BOTH,
    ),
    Weakness(
        "W21",
        "attempts and lost workers are counted at the settle only",
        (
            Text("hub.claims", "_TAKE_SEND", "attempts = o.attempts + 1", "attempts = o.attempts"),
            Source(
                "hub.moves", "_row", "attempts = s.attempts\n", "attempts = s.attempts + 1\n"
            ),
            Source(
                "hub.moves",
                "_unsettled",
                '"lapses": s.lapses + 1 if v.adds_lapse else 0,',
                '"lapses": s.lapses if v.adds_lapse else 0,',
            ),
        ),
        (
            "tests/hub/test_sweep.py::test_lost_before_the_marker_it_waits_again",
            "tests/flows/test_weak_spots.py::test_an_operation_that_kills_its_workers_is_put_aside",
        ),
        BOTH,
    ),
    Weakness(
        "W22",
        "attempts used up in doubt end in `failed`",
        (
            Source(
                "hub.doubts",
                "unknown",
                "    match action.safety:\n",
                "    if exhausted(given):\n"
                '        return Verdict(State.FAILED, "exhausted", text, Outcome.UNKNOWN)\n'
                "    match action.safety:\n",
            ),
        ),
        (
            "tests/hub/test_policy_product.py::test_the_promise_holds_for_every_combination",
            "tests/flows/test_weak_spots.py::test_attempts_used_up_in_doubt_need_a_person",
        ),
    ),
    Weakness(
        "W24",
        "SQLite with `synchronous=NORMAL`",
        (
            Text(
                "hub.settings",
                "DATABASES/default/OPTIONS/init_command",
                "synchronous=FULL",
                "synchronous=NORMAL",
            ),
        ),
        ("tests/hub/test_checks.py::test_the_database_as_shipped_keeps_its_commits",),
    ),
    Weakness(
        "W25",
        "the sweep is bound to the worker that died",
        (
            Source(
                "hub.sweep",
                "Sweeper._lapsed",
                "Operation.objects.filter(lease_until__lt=now)",
                "Operation.objects.filter(\n"
                "            lease_until__lt=now,\n"
                '            lease_owner__contains=f"-{__import__(\'os\').getpid()}-",\n'
                "        )",
            ),
        ),
        (
            "tests/hub/test_sweep.py::test_a_thousand_leases_of_the_dead",
            "tests/flows/test_weak_spots.py::test_another_process_takes_over_from_the_dead",
        ),
    ),
    Weakness(
        "W26",
        "a lapsed repeat forgets `maybe_executed`",
        (
            Source(
                "hub.sends",
                "before_the_marker",
                '_back(facts, "lapsed",',
                '_back(Facts(State.RUNNING, facts.action), "lapsed",',
            ),
        ),
        (
            "tests/hub/test_sweep.py::test_lost_while_it_prepared_a_repeat_it_stays_in_doubt",
            "tests/flows/test_leases.py::test_a_worker_that_dies_while_it_prepares_a_repeat",
        ),
    ),
    Weakness(
        "W27",
        "the life of the key is not checked when a repeat is claimed",
        (
            Text(
                "hub.claims",
                "_DUE",
                "(o.state = 'retry' AND (o.repeat_until IS NULL OR o.repeat_until > {now}))",
                "(o.state = 'retry')",
            ),
            Source(
                "hub.work", "Work._key_dies_under_way", "if not item.doubt or", "if True or"
            ),
        ),
        (
            "tests/hub/test_claims.py::test_what_is_not_claimed",
            "tests/flows/test_weak_spots.py::test_a_repeat_whose_key_has_died_is_not_claimed",
        ),
        BOTH,
    ),
    Weakness(
        "W28",
        "a refusal after an unknown attempt is taken as final",
        (
            Source(
                "hub.sends",
                "_refused",
                "            if facts.doubt:\n                # The first copy may still be",
                "            if False:\n                # The first copy may still be",
            ),
        ),
        (
            "tests/hub/test_policy_product.py::test_the_promise_holds_for_every_combination",
            "tests/flows/test_weak_spots.py::test_a_repeat_that_is_refused_proves_nothing",
        ),
    ),
    Weakness(
        "W29",
        "conditions on the stream are read at the claim only, not at the marker",
        (
            Text("hub.moves", "_MARK_POSTGRES", "o.full_state AND EXISTS", "false AND EXISTS"),
            Text("hub.moves", "_MARK_SQLITE", "o.full_state AND EXISTS", "false AND EXISTS"),
        ),
        (
            "tests/hub/test_moves.py::test_no_marker_for_a_stale_version",
            "tests/flows/test_interleavings.py"
            "::test_the_marker_sees_a_newer_version_that_came_between",
        ),
        BOTH,
    ),
    Weakness(
        "W30",
        "guard bound to the lease only, `t_last` counted without the margin",
        (
            Source(
                "hub.work",
                "Work._call",
                "asked + drain.tuning.margin,",
                'float("inf"),',
            ),
            Source(
                "hub.sweep",
                "Sweeper._lapsed",
                "+ self.tuning.margin + action.max_send",
                "+ action.max_send",
            ),
        ),
        (
            "tests/hub/test_sweep.py::test_a_copy_may_leave_until_the_margin_is_over",
            "tests/flows/test_leases.py"
            "::test_a_zombie_with_its_marker_that_wakes_early[c.create-mark.committed]",
        ),
    ),
    Weakness(
        "W31",
        "`discarded` in doubt frees the stream for a create",
        (
            Text(
                "hub.claims",
                "_DUE",
                "o.state = 'pending' AND o.yields_ref AND NOT o.doubt_lifted AND EXISTS",
                "false AND EXISTS",
            ),
            Source("hub.sweep", "Sweeper.sweep", "self._inherited,", ""),
        ),
        (
            "tests/hub/test_claims.py"
            "::test_a_create_waits_where_an_earlier_one_may_have_happened",
            "tests/flows/test_weak_spots.py::test_a_create_after_one_withdrawn_in_doubt",
        ),
        BOTH,
    ),
    Weakness(
        "W32",
        "a late result that names an object leaves a waiting repeat alone",
        (
            Source(
                "hub.settling",
                "Settler._follow_late",
                "elif state in (State.RETRY, State.RUNNING):",
                "elif state is State.RUNNING:",
            ),
        ),
        ("tests/flows/test_leases.py::test_a_late_answer_takes_a_waiting_repeat_back",),
    ),
)  # fmt: skip

BY_ID = {one.id: one for one in WEAKNESSES}
