"""Cases, candidates and decisions: to be read here, to be settled on the operation's page."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.timesince import timesince
from django.utils.translation import gettext_lazy as _

from hub.admin.base import (
    AgeFilter,
    ConnectionFilter,
    Lookups,
    ReadOnlyAdmin,
    ReasonFilter,
    TenantFilter,
    json_cell,
    preformatted,
)
from hub.admin.operation import story_link
from hub.models import Candidate, Decision, ReviewCase
from hub.panel import words
from hub.sql import database_now


class OpenFilter(admin.SimpleListFilter):
    """Open cases unless said otherwise."""

    title = _("open")
    parameter_name = "closed"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Lookups:
        return [("1", _("closed")), ("all", _("all"))]

    def queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() == "all":
            return rows
        if self.value() == "1":
            return rows.filter(closed_at__isnull=False)
        # As a subquery, so that the index of open cases is where the search begins.
        still_open = ReviewCase.objects.filter(closed_at__isnull=True).order_by().values("pk")
        return rows.filter(pk__in=still_open)

    def choices(self, changelist: Any) -> Any:
        for choice in super().choices(changelist):
            if choice["query_string"] == changelist.get_query_string(remove=[self.parameter_name]):
                choice = {**choice, "display": _("open")}
            yield choice


class OpenedFilter(AgeFilter):
    title = _("waiting")
    path = "opened_at"


@admin.register(ReviewCase)
class ReviewCaseAdmin(ReadOnlyAdmin):
    list_display = (
        "id", "subject", "story", "for_whom", "why", "advised", "assumption", "count", "waiting",
        "closed_at",
    )  # fmt: skip
    list_filter = (
        OpenFilter, TenantFilter, ConnectionFilter, "subject", ReasonFilter, OpenedFilter,
    )  # fmt: skip
    list_select_related = ("tenant", "connection")
    heavy = ("connection__secrets",)
    change_form_template = "hub/panel/case_form.html"
    exclude = ("operation", "advice", "reason_code")
    readonly_fields = ("story", "why", "advised")

    def scans(self, request: HttpRequest) -> bool:
        """Open cases are few and have their index; the closed ones are many."""
        return super().scans(request) and "closed" in request.GET

    @admin.display(description=_("operation"))
    def story(self, row: ReviewCase) -> SafeString | str:
        return story_link(row.operation_id)

    @admin.display(description=_("for whom"))
    def for_whom(self, row: ReviewCase) -> str:
        return f"{row.tenant} → {row.connection.name}"

    @admin.display(description=_("reason"))
    def why(self, row: ReviewCase) -> str:
        return words.reason(row.reason_code)

    @admin.display(description=_("recommended action"))
    def advised(self, row: ReviewCase) -> str:
        return words.decision(row.advice) if row.advice else "–"

    @admin.display(description=_("waiting"))
    def waiting(self, row: ReviewCase) -> str:
        return timesince(row.opened_at, row.closed_at or database_now(), depth=1)


@admin.register(Candidate)
class CandidateAdmin(ReadOnlyAdmin):
    list_display = ("id", "story", "remote_ref", "matches", "place", "seen_at")
    list_filter = ("matches",)
    list_select_related = ("case",)
    heavy = ("fields", "differences")
    values = ("shown_fields", "shown_differences")
    fields = (
        "story", "remote_ref", "matches", "reference", "version", "url", "place", "seen_at",
        "shown_fields", "shown_differences",
    )  # fmt: skip
    readonly_fields = ("story", "shown_fields", "shown_differences")

    @admin.display(description=_("operation"))
    def story(self, row: Candidate) -> SafeString | str:
        return story_link(row.case.operation_id)

    @admin.display(description=_("its fields"))
    def shown_fields(self, row: Candidate) -> SafeString:
        return preformatted(json_cell(row.fields))

    @admin.display(description=_("differences"))
    def shown_differences(self, row: Candidate) -> SafeString:
        return preformatted(json_cell(row.differences))


class DecisionFilter(admin.SimpleListFilter):
    """What was chosen."""

    title = _("decision")
    parameter_name = "action"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Lookups:
        return list(words.DECISIONS.items())

    def queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        return rows.filter(action=self.value()) if self.value() else rows


@admin.register(Decision)
class DecisionAdmin(ReadOnlyAdmin):
    list_display = ("id", "at", "shown_action", "story", "by_name", "reason", "done", "result")
    list_filter = (DecisionFilter, "done")
    fields = (
        "at", "shown_action", "story", "by_name", "reason", "done", "result", "seen_state",
        "seen_token", "remote_ref",
    )  # fmt: skip
    readonly_fields = ("story", "shown_action")

    @admin.display(description=_("operation"))
    def story(self, row: Decision) -> SafeString | str:
        return story_link(row.operation_id)

    @admin.display(description=_("decision"))
    def shown_action(self, row: Decision) -> str:
        return words.decision(row.action)
