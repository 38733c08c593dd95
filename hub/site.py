"""The hub's admin site: its overview, its own pages, its order of models, what stays out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.contrib.admin.apps import AdminConfig
from django.contrib.auth import REDIRECT_FIELD_NAME
from django.db.models.base import ModelBase
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, URLResolver, path, reverse
from django.utils.translation import gettext_lazy as _

OUT_OF_REACH = frozenset({"django_q"})
"""Apps whose models never enter the admin. Whoever may add a Django-Q2 schedule can run any
importable function.
"""

GROUPS = (
    (
        "work",
        _("Work"),
        ("ReviewCase", "Operation", "Mapping", "Decision"),
        ("Candidate", "Note", "Attempt", "Evidence", "Dependency"),
    ),
    (
        "configuration",
        _("Configuration"),
        ("Connection", "Tenant"),
        ("Gate", "Bucket", "Heartbeat", "Installation"),
    ),
    ("access", _("Access"), ("User", "Group", "Scope", "Reveal", "Refusal"), ()),
)
"""The navigation: label, title, the lists of every day, and those that explain one row of them."""
TITLES = {"ReviewCase": _("Review")}
"""What the navigation calls a list, where that is not the name of its model."""
COUNTED = 999
"""Open cases the badge counts to."""


class HubAdminConfig(AdminConfig):
    """Stands in INSTALLED_APPS for `django.contrib.admin`, so that every registration lands on our
    site.
    """

    default_site = "hub.site.HubAdminSite"


class HubAdminSite(admin.AdminSite):
    """Django's admin with an overview as its index, the pages of operations, and models in three
    groups.
    """

    site_title = _("Integration hub")
    site_header = _("Integration hub")
    site_url = None
    index_title = _("Overview")
    index_template = "hub/overview.html"
    empty_value_display = "–"
    # Django's own needs a script to open, and says nothing of what waits.
    enable_nav_sidebar = False

    def register(
        self,
        model_or_iterable: type[Any] | Iterable[type[Any]],
        admin_class: type[Any] | None = None,
        **options: Any,
    ) -> None:
        """As Django's; models of `OUT_OF_REACH` are left out, whoever registers them."""
        models = (
            [model_or_iterable] if isinstance(model_or_iterable, ModelBase) else model_or_iterable
        )
        wanted = [model for model in models if model._meta.app_label not in OUT_OF_REACH]
        if wanted:
            super().register(wanted, admin_class, **options)

    def get_urls(self) -> list[URLPattern | URLResolver]:
        from hub.panel import case, connection, operation, overview

        def own(view: Any) -> Any:
            return self.admin_view(view)

        return [
            path("overview/live/", own(overview.live), name="overview_live"),
            path("operations/<int:pk>/", own(operation.story), name="operation_story"),
            path("cases/<int:pk>/close/", own(case.close), name="case_close"),
            path("connections/<int:pk>/test/", own(connection.test), name="connection_test"),
            path("connections/<int:pk>/pause/", own(connection.pause), name="connection_pause"),
            path("connections/<int:pk>/resume/", own(connection.resume), name="connection_resume"),
            path("connections/<int:pk>/retire/", own(connection.retire), name="connection_retire"),
            *super().get_urls(),
        ]

    def get_app_list(
        self, request: HttpRequest, app_label: str | None = None
    ) -> list[dict[str, Any]]:
        """The models a user may see in the groups of `GROUPS`; what no group names comes last."""
        apps = super().get_app_list(request, app_label)
        if app_label is not None:
            return apps
        models = {model["object_name"]: model for app in apps for model in app["models"]}
        groups = []
        for label, title, *both in GROUPS:
            found = [models.pop(name) for name in (*both[0], *both[1]) if name in models]
            if found:
                groups.append(
                    {
                        "name": title,
                        "app_label": label,
                        "app_url": reverse("admin:index", current_app=self.name),
                        "has_module_perms": True,
                        "models": found,
                    }
                )
        for app in apps:
            left = [model for model in app["models"] if model["object_name"] in models]
            if left:
                groups.append({**app, "models": left})
        return groups

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        """As Django's, with the navigation of whoever asks."""
        context = super().each_context(request)
        return {**context, "hub_nav": navigation(request, context["available_apps"])}

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """As Django's; who was on the way to nowhere in particular starts where their work is."""
        extra = extra_context or {}
        if not {REDIRECT_FIELD_NAME} & {*request.GET, *request.POST}:
            extra = {REDIRECT_FIELD_NAME: reverse("start"), **extra}
        return super().login(request, extra)

    def index(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> TemplateResponse:
        """The overview: does it move, what waits, for whom, since when, why."""
        from hub.panel import overview

        return super().index(request, {**overview.page(request), **(extra_context or {})})


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the navigation."""

    title: Any
    address: str
    here: bool
    badge: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """One of the groups of the navigation: what is needed daily, and what is folded away."""

    label: str
    title: Any
    daily: tuple[Entry, ...]
    folded: tuple[Entry, ...]

    @property
    def open(self) -> bool:
        """Whether one of the folded lists is the present page."""
        return any(one.here for one in self.folded)


def navigation(request: HttpRequest, groups: list[dict[str, Any]]) -> list[Group]:
    """The groups a user sees, from what `HubAdminSite.get_app_list` found for them."""
    folded = {name for _label, _title, _daily, names in GROUPS for name in names}
    found = []
    for group in groups:
        entries: dict[bool, list[Entry]] = {False: [], True: []}
        for model in group["models"]:
            if not model.get("admin_url"):
                continue
            name = model["object_name"]
            entries[name in folded].append(
                Entry(
                    TITLES.get(name, model["name"]),
                    model["admin_url"],
                    request.path.startswith(model["admin_url"]),
                    _waiting(request) if name == "ReviewCase" else "",
                )
            )
        found.append(
            Group(group["app_label"], group["name"], tuple(entries[False]), tuple(entries[True]))
        )
    return found


def _waiting(request: HttpRequest) -> str:
    """How many cases wait for a person, as a badge says it; empty when none does."""
    from hub import access
    from hub.models import ReviewCase

    rows = ReviewCase.objects.filter(closed_at__isnull=True).order_by()
    count = access.visible(request.user, rows).values("pk")[: COUNTED + 1].count()
    return f"{COUNTED}+" if count > COUNTED else str(count or "")


def start(request: HttpRequest) -> HttpResponse:
    """Where somebody's work begins: the review list for those who decide cases, else the overview.

    A superuser may decide, too, but is here to operate the hub.
    """
    user = request.user
    decides = user.is_active and not user.is_superuser and user.has_perm("hub.decide_case")
    if decides and user.has_perm("hub.view_reviewcase"):
        return redirect("admin:hub_reviewcase_changelist")
    return redirect("admin:index")
