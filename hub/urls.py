"""Every address the hub answers to."""

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path

urlpatterns: list[URLPattern | URLResolver] = [
    path("i18n/", include("django.conf.urls.i18n")),
    path("health/", include("hub.health_views")),
    path("admin/", admin.site.urls),
]
