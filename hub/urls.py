"""Every address the hub answers to."""

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path
from django.views.generic import RedirectView

urlpatterns: list[URLPattern | URLResolver] = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("i18n/", include("django.conf.urls.i18n")),
    path("health/", include("hub.health_views")),
    path("admin/", admin.site.urls),
]
