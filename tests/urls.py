"""The admin site, and the metrics as a project shows them."""

from django.contrib import admin
from django.urls import path

from jobqueue import metrics

urlpatterns = [path("admin/", admin.site.urls), path("metrics", metrics.view)]
