"""Operations and all that happened to them."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from hub.admin import search
from hub.admin.base import (
    ActionFilter,
    AgeFilter,
    BoundedChangeList,
    ConnectionFilter,
    Lookups,
    OperationReasonFilter,
    ReadOnlyAdmin,
    TenantFilter,
    json_cell,
    preformatted,
)
from hub.indexes import unfinished
from hub.models import Attempt, Dependency, Evidence, Operation
from hub.models.operation import CLOSED, STATE_LABELS
from hub.panel import words
from hub.panel.values import shown_json


class StateFilter(admin.SimpleListFilter):
    """Unfinished ones unless said otherwise: they are what has to be seen, and a small index holds
    them.
    """

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Lookups:
        return [("all", _("all")), *STATE_LABELS]

    def queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value == "all" or (value is None and request.GET.get("q")):
            return rows
        if value in CLOSED:
            return rows.filter(state=value)
        if value in dict(STATE_LABELS):
            return rows.filter(pk__in=unfinished(str(value)))
        return rows.filter(pk__in=unfinished())

    def choices(self, changelist: Any) -> Any:
        for choice in super().choices(changelist):
            if choice["query_string"] == changelist.get_query_string(remove=[self.parameter_name]):
                choice = {**choice, "display": _("not finished")}
            yield choice


class OperationTenantFilter(TenantFilter):
    by_index = False


class OperationConnectionFilter(ConnectionFilter):
    by_index = False


class DoubtFilter(admin.SimpleListFilter):
    """Whether it may have happened without our knowing."""

    title = _("did it happen?")
    parameter_name = "doubt"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Lookups:
        return [("1", _("may have happened")), ("0", _("nothing in doubt"))]

    def queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        return rows.filter(maybe_executed=self.value() == "1") if self.value() else rows


class _LeadsToStory(BoundedChangeList):
    """Rows lead to the page of the operation, not to its columns."""

    def url_for_result(self, result: Any) -> str:
        return reverse("admin:operation_story", args=[result.pk])


def story_link(operation_id: int | None) -> SafeString | str:
    """A link to an operation's page, or a dash."""
    if operation_id is None:
        return "–"
    return format_html(
        '<a href="{}">{}</a>', reverse("admin:operation_story", args=[operation_id]), operation_id
    )


@admin.register(Operation)
class OperationAdmin(ReadOnlyAdmin):
    list_display = ("id", "what", "for_whom", "shown_state", "since", "why", "next_at")
    list_filter = (
        StateFilter,
        DoubtFilter,
        OperationTenantFilter,
        OperationConnectionFilter,
        ActionFilter,
        OperationReasonFilter,
        AgeFilter,
    )
    list_select_related = ("tenant", "connection")
    search_fields = ("pk",)
    search_help_text = _(
        "Exact: number, source id, reference, operation key, or the id over there."
    )
    heavy = ("payload", "progress", "reason_text", "connection__secrets")
    exclude = ("payload", "progress", "after", "reason_text")
    readonly_fields = ("told",)

    def operation_of(self, obj: Any) -> int | None:
        return int(obj.pk)

    def get_changelist(self, request: HttpRequest, **options: Any) -> type[ChangeList]:
        return _LeadsToStory

    def scans(self, request: HttpRequest) -> bool:
        """Unfinished operations are few and have their index; the finished ones are many."""
        return super().scans(request) and request.GET.get("state") in ("all", *CLOSED)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Each column is asked by itself through its own index; the answers are a bounded list of
        numbers.
        """
        term = search_term.strip()
        if not term:
            return queryset, False
        return queryset.filter(pk__in=search.operations(term)), False

    @admin.display(description=_("what"))
    def what(self, row: Operation) -> str:
        text = f"{row.action} {row.source_system}/{row.source_id} v{row.version}"
        return f"{text} ({row.generation})" if row.generation > 1 else text

    @admin.display(description=_("for whom"))
    def for_whom(self, row: Operation) -> str:
        return f"{row.tenant} → {row.connection.name}"

    @admin.display(description=_("state"))
    def shown_state(self, row: Operation) -> SafeString:
        doubt = (
            format_html(' <span class="hub-doubt">◐ {}</span>', _("may have happened"))
            if row.maybe_executed
            else ""
        )
        return format_html(
            '<span class="hub-state hub-state-{}">{}</span>{}',
            row.state,
            row.get_state_display(),
            doubt,
        )

    @admin.display(description=_("since"))
    def since(self, row: Operation) -> str:
        # Of a list's many rows none asks the database for its clock.
        return words.ago(row.state_since, timezone.now(), depth=1)

    @admin.display(description=_("reason"))
    def why(self, row: Operation) -> str:
        return words.reason(row.reason_code) if row.reason_code else "–"

    @admin.display(description=_("reason"))
    def told(self, row: Operation) -> SafeString | str:
        return words.in_english(row.reason_text) or "–"


class _OfOperation(ReadOnlyAdmin):
    """Rows of an operation's timeline."""

    list_select_related = ("operation",)
    search_fields = ("operation_id",)
    search_help_text = _("The number of an operation.")
    raw_id_fields = ("operation",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer("operation__payload", "operation__progress")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        return queryset.filter(operation_id=search.number(term) or 0), False

    @admin.display(description=_("operation"))
    def story(self, row: Any) -> SafeString | str:
        return story_link(row.operation_id)


class OutcomeFilter(admin.SimpleListFilter):
    """How an attempt ended."""

    title = _("outcome")
    parameter_name = "outcome"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Lookups:
        return [
            ("open", _("under way")),
            *((str(code), text) for code, text in words.OUTCOMES.items()),
        ]

    def queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() == "open":
            return rows.filter(settled_at__isnull=True)
        return rows.filter(outcome=self.value()) if self.value() else rows


@admin.register(Attempt)
class AttemptAdmin(_OfOperation):
    list_display = (
        "id", "story", "token", "shown_purpose", "claimed_at", "marked_at", "shown_outcome",
        "status", "duration_ms", "stale",
    )  # fmt: skip
    list_filter = (OutcomeFilter, "purpose", "stale")
    heavy = ("seen",)
    values = ("shown_seen",)
    fields = (
        "story", "token", "shown_purpose", "worker", "claimed_at", "marked_at", "left",
        "request_digest", "settled_at", "shown_outcome", "told", "error_class", "status",
        "remote_request_id", "duration_ms", "stale", "shown_seen",
    )  # fmt: skip
    readonly_fields = ("story", "shown_purpose", "shown_outcome", "told", "shown_seen")

    @admin.display(description=_("verdict"))
    def told(self, row: Attempt) -> SafeString | str:
        return words.in_english(row.verdict) or "–"

    @admin.display(description=_("purpose"))
    def shown_purpose(self, row: Attempt) -> str:
        return str(words.PURPOSES.get(row.purpose, row.purpose))

    @admin.display(description=_("outcome"))
    def shown_outcome(self, row: Attempt) -> str:
        return str(words.OUTCOMES.get(row.outcome, _("under way")))

    @admin.display(description=_("what was seen"))
    def shown_seen(self, row: Attempt) -> SafeString | str:
        return preformatted(json_cell(row.seen)) if row.seen else "–"


@admin.register(Evidence)
class EvidenceAdmin(_OfOperation):
    list_display = ("id", "story", "at", "actor", "shown_kind", "told")
    heavy = ("data",)
    values = ("shown_data",)
    fields = ("story", "at", "actor", "shown_kind", "told", "token", "shown_data")
    readonly_fields = ("story", "shown_kind", "told", "shown_data")

    @admin.display(description=_("what happened"))
    def told(self, row: Evidence) -> SafeString | str:
        return words.in_english(row.text) or "–"

    @admin.display(description=_("details"))
    def shown_data(self, row: Evidence) -> SafeString | str:
        return shown_json(row.data) if row.data else "–"

    @admin.display(description=_("kind"))
    def shown_kind(self, row: Evidence) -> str:
        return str(words.EVIDENCE.get(row.kind, row.kind))


@admin.register(Dependency)
class DependencyAdmin(ReadOnlyAdmin):
    list_display = ("id", "shown_child", "shown_parent")
    fields = ("shown_child", "shown_parent")
    readonly_fields = ("shown_child", "shown_parent")

    def operation_of(self, obj: Any) -> int | None:
        return int(obj.child_id)

    @admin.display(description=_("operation"))
    def shown_child(self, row: Dependency) -> SafeString | str:
        return story_link(row.child_id)

    @admin.display(description=_("waits for"))
    def shown_parent(self, row: Dependency) -> SafeString | str:
        return story_link(row.parent_id)
