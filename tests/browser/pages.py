"""The pages of the product in an admin site, found by its URL patterns: nobody has to name a page that is added."""

from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.urls import URLPattern, reverse

APP = "jobqueue"
#: Django makes an address for each row, but these tables are one page about all rows
_NO_PAGES = {"jobqueue_lockstat_change", "jobqueue_lockstat_history"}


class Pages:
    """The pages that `client` may open. `unknown` are addresses that answer neither with a page nor with a refusal."""

    def __init__(self, client, queries=None, site=admin.site):
        self._client, self._site, self._queries = client, site, queries or {}
        self.paths, self.unknown = {}, {}
        self.rowless = set()
        self._look("app_list", reverse("admin:app_list", args=[APP]))
        for name, converters in _patterns(site.get_urls()):
            if name.startswith(f"{APP}_") and name not in _NO_PAGES:
                self._add(name, converters)

    def _add(self, name, converters):
        if not converters:
            query = self._queries.get(name)
            self._look(name, reverse(f"admin:{name}") + (f"?{urlencode(query)}" if query else ""))
        elif len(converters) == 1:
            model = self._models()[name.split("_")[1]]
            row = model.objects.order_by("-pk").first()
            if row is None:
                self.rowless.add(model.__name__)
            else:
                key = row.pk.hex() if isinstance(row.pk, bytes) else quote(row.pk)
                self._look(name, reverse(f"admin:{name}", args=[key]))

    def _models(self):
        return {model._meta.model_name: model for model in self._site._registry if model._meta.app_label == APP}

    def _look(self, name, path):
        response = self._client.get(path)
        status, kind = response.status_code, response.get("Content-Type", "")
        if status == 200 and kind.startswith("text/html"):
            self.paths[name] = path
        elif status not in (200, 302, 403, 405) or response.get("Location") == reverse("admin:index"):
            # Django leads there from the address of a row that it has not found.
            self.unknown[name] = f"{path}: {status}"


def _patterns(known):
    """(name, converters) of each named address."""
    for one in known:
        if isinstance(one, URLPattern):
            if one.name:
                yield one.name, one.pattern.converters
        elif not one.namespace:
            yield from _patterns(one.url_patterns)
