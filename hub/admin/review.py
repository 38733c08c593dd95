"""Cases, candidates and decisions: to be read here, to be settled on the operation's page."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from hub import review
from hub.admin.base import (
    AgeFilter,
    CaseReasonFilter,
    ConnectionFilter,
    Lookups,
    ReadOnlyAdmin,
    TenantFilter,
)
from hub.admin.operation import story_link
from hub.models import Candidate, Decision, Note, ReviewCase
from hub.models.review import Subject
from hub.panel import choices, drift, words
from hub.panel.operation import SEE_VALUES
from hub.panel.values import shown_json


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
        OpenFilter, TenantFilter, ConnectionFilter, "subject", CaseReasonFilter, OpenedFilter,
    )  # fmt: skip
    list_select_related = ("tenant", "connection__gate", "operation")
    heavy = (
        "connection__secrets", "operation__payload", "operation__progress",
        "operation__reason_text",
    )  # fmt: skip
    change_form_template = "hub/panel/case_form.html"
    exclude = ("operation", "advice", "reason_code", "summary")
    readonly_fields = ("story", "why", "told")

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **options: Any
    ) -> HttpResponse:
        case = options.get("obj")
        if case is not None:
            settled = choices.of_case(case, request.user)
            values = request.user.has_perm(SEE_VALUES)
            context |= {
                "buttons": settled.buttons,
                "advice": settled.advice,
                "may_decide": request.user.has_perm(review.DECIDE),
                "values": values,
                "came_again": drift.came_again(case.operation, values=values)
                if case.subject == Subject.DRIFT and case.operation is not None
                else [],
            }
        return super().render_change_form(request, context, *args, **options)

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """The list, with what is advised for each row of the page, asked for all at once."""
        page = super().get_changelist_instance(request)
        rows = list(page.result_list)
        found = choices.of_cases(rows)
        for row in rows:
            row.advised = str(found[row.pk].advice)
        page.result_list = rows
        return page

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
        """Verb and strength; asked of all rows of the page at once (`get_changelist_instance`)."""
        found: str = getattr(row, "advised", "")
        return found or "–"

    @admin.display(description=_("what happened"))
    def told(self, row: ReviewCase) -> SafeString | str:
        return words.in_english(row.summary) or "–"

    @admin.display(description=_("waiting"))
    def waiting(self, row: ReviewCase) -> str:
        # Of a list's many rows none asks the database for its clock.
        return words.ago(row.opened_at, row.closed_at or timezone.now(), depth=1)


@admin.register(Candidate)
class CandidateAdmin(ReadOnlyAdmin):
    list_display = ("id", "story", "remote_ref", "matches", "place", "seen_at")
    list_filter = ("matches",)
    list_select_related = ("case",)
    heavy = ("fields", "differences")
    values = ("shown_fields", "shown_differences")
    fields = (
        "story", "remote_ref", "matches", "reference", "version", "url", "place", "seen_at",
        "refused_at", "refused_by", "shown_fields", "shown_differences",
    )  # fmt: skip
    readonly_fields = ("story", "shown_fields", "shown_differences")

    def operation_of(self, obj: Any) -> int | None:
        found: int | None = obj.case.operation_id
        return found

    @admin.display(description=_("operation"))
    def story(self, row: Candidate) -> SafeString | str:
        return story_link(row.case.operation_id)

    @admin.display(description=_("its fields"))
    def shown_fields(self, row: Candidate) -> SafeString:
        return shown_json(row.fields)

    @admin.display(description=_("differences"))
    def shown_differences(self, row: Candidate) -> SafeString:
        return shown_json(row.differences)


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
    list_display = (
        "id", "at", "shown_action", "story", "by_name", "reason", "done", "shown_result",
    )  # fmt: skip
    list_filter = (DecisionFilter, "done")
    fields = (
        "at", "shown_action", "story", "by_name", "reason", "done", "shown_result", "seen_state",
        "seen_token", "remote_ref", "advice_shown", "effects",
    )  # fmt: skip
    readonly_fields = ("story", "shown_action", "shown_result")

    @admin.display(description=_("operation"))
    def story(self, row: Decision) -> SafeString | str:
        return story_link(row.operation_id)

    @admin.display(description=_("decision"))
    def shown_action(self, row: Decision) -> str:
        return words.decision(row.action)

    @admin.display(description=_("result"))
    def shown_result(self, row: Decision) -> str:
        """In the reader's language; a refusal was worded in that of whoever met it."""
        return (row.done and words.decided(row.action, row.remote_ref)) or row.result


@admin.register(Note)
class NoteAdmin(ReadOnlyAdmin):
    list_display = ("id", "at", "story", "by_name", "text")
    list_select_related = ("case",)
    fields = ("at", "story", "by_name", "text")
    readonly_fields = ("story",)

    @admin.display(description=_("operation"))
    def story(self, row: Note) -> SafeString | str:
        return story_link(row.case.operation_id)
