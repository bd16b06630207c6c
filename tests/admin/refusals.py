"""Every page and every form that a superuser is offered, asked for and sent by people who may not."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urljoin

from django.apps import apps
from django.contrib.auth.models import Permission, User

from jobqueue.models import Job
from tests.admin.helpers import client_of, job_page
from tests.browser import rows
from tests.browser.pages import APP, Pages

#: 404: Django has no page of an app of which somebody may see nothing
REFUSED = (302, 403, 404)
#: forms of Django's own parts of a page: they change nothing of ours
_OF_DJANGO = ("logout-form",)


@dataclass
class Form:
    """A form that is sent by POST, with its values and its ways to be sent."""

    address: str
    values: dict = field(default_factory=dict)
    buttons: list = field(default_factory=list)  # (name, value, address of its own)
    actions: list = field(default_factory=list)  # values of the choice of an action

    def ways(self):
        """(address, what is sent) for each of its buttons and actions."""
        for name, value, address in self.buttons or [("", "", "")]:
            own = {name: value} if name else {}
            for action in self.actions or [None]:
                chosen = {} if action is None else {"action": action}
                yield address or self.address, self.values | own | chosen


class Forms(HTMLParser):
    """The forms of a page at `address`."""

    def __init__(self, page, address):
        super().__init__()
        self._address, self._form, self._select, self._area = address, None, None, None
        self._by_id, self.found = {}, []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag == "form":
            self._form = Form(urljoin(self._address, given.get("action") or self._address))
            if given.get("method", "get").lower() == "post" and given.get("id") not in _OF_DJANGO:
                self.found.append(self._form)
            self._by_id[given.get("id")] = self._form
            return
        form = self._by_id.get(given["form"]) if "form" in given else self._form
        if form is not None:
            self._field(form, tag, given)

    def _field(self, form, tag, given):
        name, kind = given.get("name", ""), given.get("type", "submit" if tag == "button" else "text")
        if kind in ("submit", "image") and tag in ("button", "input"):
            own = given.get("formaction")
            form.buttons.append((name, given.get("value") or "", urljoin(self._address, own) if own else ""))
        elif tag == "input" and name and name != "csrfmiddlewaretoken":
            # Ticked, so that what is asked for is more, not less.
            form.values[name] = given.get("value", "on")
        elif tag == "select":
            self._select = form, name
        elif tag == "option" and self._select is not None:
            self._option(*self._select, given)
        elif tag == "textarea":
            self._area = form, name
            form.values[name] = ""

    def _option(self, form, name, given):
        if name == "action":
            form.actions += [given["value"]] if given.get("value") else []
        elif "selected" in given or name not in form.values:
            form.values[name] = given.get("value", "")

    def handle_data(self, data):
        if self._area is not None:
            form, name = self._area
            form.values[name] += data

    def handle_endtag(self, tag):
        if tag == "select":
            self._select = None
        elif tag == "textarea":
            self._area = None
        elif tag == "form":
            self._form = None


def stored():
    """A digest of all rows of the product by table."""
    found = {}
    for model in apps.get_app_config(APP).get_models():
        values = model._default_manager.order_by("pk").values_list()
        found[model.__name__] = hashlib.sha256("\n".join(map(repr, values)).encode()).hexdigest()
    return found


def viewer():
    """A browser of somebody who may see everything and change nothing."""
    user = User.objects.create_user("looks", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label=APP, codename__startswith="view_"))
    return client_of(user)


def offered(root):
    """(address, form) of each form on each page that a superuser may open, which have rows of every kind."""
    pages = Pages(root, rows.QUERIES)
    # What a page offers depends on the state of its job.
    one_each = {status: pk for pk, status in Job.objects.order_by("pk").values_list("pk", "status")}
    return pages.paths, [
        (address, form)
        for address in [*pages.paths.values(), *map(job_page, one_each.values())]
        for form in Forms(root.get(address).content.decode(), address).found
    ]


def pages_shown(addresses):
    """Those of the addresses whose pages are shown to somebody without a permission or without an account."""
    nobody, staff = client_of(None), client_of(User.objects.create_user("new", is_staff=True))
    return [one for one in addresses for who in (nobody, staff) if who.get(one).status_code not in REFUSED]


def forms_carried_out(forms):
    """(forms that were sent, those after which a row was another one), sent by somebody who may only look."""
    client, sent, wrong = viewer(), 0, []
    before = stored()
    for _page, form in forms:
        for address, values in form.ways():
            response = client.post(address, values)
            sent += 1
            after = stored()
            changed = [name for name in after if after[name] != before[name]]
            if changed or response.status_code >= 500:
                wrong.append((address, values, response.status_code, changed))
                before = after
    return sent, wrong
