"""The page of the recorded races."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from demo_project.demo.recorded import recorded


def races(request: HttpRequest) -> HttpResponse:
    """Charts and tables of the races that `make prove ISSUE=demo` has run; nothing of this machine."""
    return render(request, "demo/races.html", {"runs": recorded()})
