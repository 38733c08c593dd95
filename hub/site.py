"""The hub's admin site: its overview, its own pages, its order of models, what stays out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.contrib.admin.apps import AdminConfig
from django.db.models.base import ModelBase
from django.http import HttpRequest
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
        (
            "Operation",
            "ReviewCase",
            "Candidate",
            "Decision",
            "Note",
            "Attempt",
            "Evidence",
            "Dependency",
            "Mapping",
        ),
    ),
    (
        "configuration",
        _("Configuration"),
        ("Tenant", "Connection", "Gate", "Bucket", "Heartbeat", "Installation"),
    ),
    ("access", _("Access"), ("User", "Group")),
)


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
        from hub.panel import case, connection, operation

        def own(view: Any) -> Any:
            return self.admin_view(view)

        return [
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
        for label, title, names in GROUPS:
            found = [models.pop(name) for name in names if name in models]
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

    def index(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> TemplateResponse:
        """The overview: what waits, for whom, since when, why."""
        from hub.panel import overview

        return super().index(request, {**overview.figures(request), **(extra_context or {})})
