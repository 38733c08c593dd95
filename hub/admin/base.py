"""What all lists of the admin share: they only read, and they never count or sort a whole table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import F, Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.functional import Promise
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from hub.admin.search import number
from hub.indexes import Literal
from hub.models import Connection, Operation, ReviewCase, Tenant
from hub.models.operation import CLOSED, STATE_LABELS
from hub.panel import words
from hub.panel.operation import SEE_VALUES
from hub.registry import UnknownIntegration, integrations
from hub.sql import database_now
from hub.sql import rows as sql_rows

COUNTED = 5_000
"""Rows a list counts to, and pages through; beyond it a filter or a search is the way."""


class CappedPaginator(Paginator):
    """Counts no further than `COUNTED`: a full count of ten million rows takes seconds."""

    @cached_property
    def count(self) -> int:
        rows = self.object_list
        if not isinstance(rows, QuerySet):
            return len(rows)
        return rows.order_by().values("pk")[:COUNTED].count()


REACH = 100_000
"""Where a filter has no index, it looks through so many rows, the newest."""
_PAGING = {"q", "p", "all", "state", "_facets", "_changelist_filters"}


class AskedByFilters(admin.ModelAdmin):
    """A list that is asked by its filters only.

    Django lets an address ask for any column of the row itself (`?payload__contains=...`): guess by
    guess that reads what the page keeps from whoever may not see it.
    """

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        if "\x00" in str(value):
            return False  # no row can hold it, and one database refuses even the question
        return super().lookup_allowed(lookup, value, request) and any(
            lookup == name or (is_column and lookup.startswith(f"{name}__"))
            for name, is_column in map(_asked, self.get_list_filter(request))
        )


def _asked(list_filter: Any) -> tuple[str, bool]:
    """What an address asks a filter by, and whether that is a column with its lookups."""
    if isinstance(list_filter, type):
        return str(getattr(list_filter, "parameter_name", "")), False
    return (list_filter if isinstance(list_filter, str) else list_filter[0]), True


class BoundedChangeList(ChangeList):
    """A list whose filters never scan a long past, and which says so."""

    def get_queryset(
        self, request: HttpRequest, exclude_parameters: list[str | None] | None = None
    ) -> QuerySet[Any]:
        rows = super().get_queryset(request, exclude_parameters)
        if self.model_admin.scans(request):  # type: ignore[attr-defined]
            newest = self.model._default_manager.order_by("-pk").values_list("pk", flat=True)
            last = newest.first() or 0
            if last > REACH:
                rows = rows.filter(pk__gt=last - REACH)
                text = _("Filtered among the newest %(number)s rows; search for older ones.")
                messages.info(request, text % {"number": REACH})
        return rows


class ReadOnlyAdmin(AskedByFilters):
    """Rows that only the engine writes.

    `values` names what holds personal data (see `SEE_VALUES`).
    """

    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    list_max_show_all = 200
    ordering = ("-pk",)
    sortable_by = ()
    actions = None
    change_form_template = "hub/panel/row_form.html"
    values: tuple[str, ...] = ()
    heavy: tuple[str, ...] = ()
    """Columns no list loads."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request)
        match = request.resolver_match
        # The page of one row shows all its columns; every other use is a list.
        if self.heavy and not (match and match.url_name and match.url_name.endswith("_change")):
            rows = rows.defer(*self.heavy)
        return rows

    def get_changelist(self, request: HttpRequest, **options: Any) -> type[ChangeList]:
        return BoundedChangeList

    def scans(self, request: HttpRequest) -> bool:
        """Whether what was asked for may have no index to lead to it: a filter, and no search."""
        return not request.GET.get("q") and bool(set(request.GET) - _PAGING)

    def operation_of(self, obj: Any) -> int | None:
        """The operation a row is part of; None when it is part of none."""
        return getattr(obj, "operation_id", None)

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **options: Any
    ) -> HttpResponse:
        obj = options.get("obj")
        context["hub_operation"] = self.operation_of(obj) if obj is not None else None
        return super().render_change_form(request, context, *args, **options)

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        fields = super().get_fields(request, obj)
        if request.user.has_perm(SEE_VALUES):
            return fields
        return [name for name in fields if name not in self.values]


def json_cell(text: str) -> str:
    """Stored JSON, laid out to be read; other text as it is."""
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, indent=2)
    except ValueError:
        return text


def preformatted(text: str) -> SafeString:
    """A block of text that keeps its lines."""
    return format_html('<pre class="hub-pre">{}</pre>', text)


def lines(texts: Sequence[str]) -> SafeString:
    """Texts below each other."""
    return format_html_join("", "<div>{}</div>", ((text,) for text in texts))


# --- filters --------------------------------------------------------------------------------------

Lookups = list[tuple[str, Any]]


class _ColumnFilter(admin.SimpleListFilter):
    """Asks one column for a number."""

    path = ""
    by_index = True
    """Whether an index may be chosen that begins with the column; False where such a one leads
    through all of the past, and another to the few rows that are looked for."""

    def queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        pk = number(self.value() or "")
        if pk is None:
            return rows
        if self.by_index:
            return rows.filter(**{self.path: pk})
        name = f"{self.path}_of_row"
        return rows.alias(**{name: F(self.path) + 0}).filter(**{name: pk})


class TenantFilter(_ColumnFilter):
    """Whose data it is."""

    title = _("tenant")
    parameter_name = "tenant"
    path = "tenant_id"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Lookups:
        return [(str(pk), name) for pk, name in Tenant.objects.values_list("pk", "name")]


class ConnectionFilter(_ColumnFilter):
    """Which connection it is about."""

    title = _("connection")
    parameter_name = "connection"
    path = "connection_id"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Lookups:
        return [(str(pk), name) for pk, name in Connection.objects.values_list("pk", "name")]


class ActionFilter(admin.SimpleListFilter):
    """What was meant; the choices are what installed integrations declare, so no table is searched
    for them.
    """

    title = _("action")
    parameter_name = "action"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Lookups:
        names: set[str] = set()
        for config in integrations():
            try:
                names |= set(config.connector_class().actions)
            except UnknownIntegration:
                continue
        return [(name, name) for name in sorted(names)]

    def queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        return rows.filter(action=self.value()) if self.value() else rows


class ReasonFilter(admin.SimpleListFilter):
    """Why it stands where it stands; offered are the reasons there are, of all that could be."""

    title = _("reason")
    parameter_name = "reason"

    def present(self, request: HttpRequest) -> set[str]:
        """The codes of the rows such a list shows, by a bounded look at the newest of them."""
        raise NotImplementedError

    def lookups(self, request: HttpRequest, model_admin: Any) -> Lookups:
        codes = self.present(request) | {self.value() or ""}
        return sorted(
            ((code, words.reason(code)) for code in codes if code), key=lambda one: one[1]
        )

    def queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        return rows.filter(reason_code=self.value()) if self.value() else rows


EACH = 1_000
"""Rows of each state, the newest, among which reasons are looked for."""


class OperationReasonFilter(ReasonFilter):
    """The reasons of what is not finished are read; those of the millions behind are known, and
    what the newest rows have is added.
    """

    def present(self, request: HttpRequest) -> set[str]:
        state = request.GET.get("state", "")
        ends = {state} if state in CLOSED else set(CLOSED)
        found = set[str]()
        if state in (*CLOSED, "all") or (not state and request.GET.get("q")):
            for end in ends:
                found |= set(words.FINAL_REASONS[end])
            newest = Operation.objects.order_by("-pk").values_list("state", "reason_code")[:EACH]
            found |= {code for end, code in newest if end in ends}
        if state not in CLOSED:
            known = [code for code, _label in STATE_LABELS if code not in CLOSED]
            found |= unfinished_reasons([state] if state in known else known)
        return found


def unfinished_reasons(states: Sequence[str]) -> set[str]:
    """The reasons of unfinished operations, the newest of each state, by their small index."""
    closed = ", ".join(f"'{Literal(state).value}'" for state in CLOSED)
    newest = " UNION ALL ".join(
        f"SELECT * FROM (SELECT reason_code FROM {Operation._meta.db_table} "  # noqa: S608
        f"WHERE NOT (state IN ({closed})) AND state = %s "
        f"ORDER BY state_since DESC LIMIT {EACH}) AS s{place}"
        for place, _state in enumerate(states)
    )
    found = sql_rows(f"SELECT DISTINCT reason_code FROM ({newest}) AS r", list(states))  # noqa: S608
    return {str(code) for (code,) in found}


class CaseReasonFilter(ReasonFilter):
    """The reasons of open cases, which are few; of the others those of the newest."""

    def present(self, request: HttpRequest) -> set[str]:
        cases = ReviewCase.objects.values_list("reason_code", flat=True)
        if request.GET.get("closed"):
            return set(cases.order_by("-pk")[:EACH])
        return set(cases.filter(closed_at__isnull=True).order_by("-opened_at", "-pk")[: 5 * EACH])


AGES: list[tuple[str, str | Promise, timedelta]] = [
    ("1m", _("more than 1 minute"), timedelta(minutes=1)),
    ("15m", _("more than 15 minutes"), timedelta(minutes=15)),
    ("1h", _("more than 1 hour"), timedelta(hours=1)),
    ("1d", _("more than 1 day"), timedelta(days=1)),
    ("7d", _("more than 7 days"), timedelta(days=7)),
]


class AgeFilter(admin.SimpleListFilter):
    """For how long."""

    title = _("since")
    parameter_name = "age"
    path = "state_since"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Lookups:
        return [(code, text) for code, text, _length in AGES]

    def queryset(self, request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
        for code, _text, length in AGES:
            if code == self.value():
                return rows.filter(**{f"{self.path}__lt": database_now() - length})
        return rows
