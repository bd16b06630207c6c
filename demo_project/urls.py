"""The admin, a redirect to it, and the recorded races."""

from django.contrib import admin
from django.urls import path
from django.views.generic import RedirectView

from demo_project.demo.views import races

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("admin/", admin.site.urls),
    path("races/", races, name="races"),
]
