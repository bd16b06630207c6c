"""The Idempotency-Key header: one effect, the first response again, and the statuses of the draft."""

import gzip
import json

import pytest
from django.contrib.auth.models import AnonymousUser
from django.http import HttpResponse, JsonResponse, StreamingHttpResponse
from django.test import RequestFactory
from django.views.decorators.gzip import gzip_page

from jobqueue.exceptions import InvalidType, NotSupported
from jobqueue.idempotency import idempotent_view
from tests.app.models import Ticket
from tests.marks import finding
from tests.races.actors import holding

plain = pytest.mark.django_db


@idempotent_view()
def sell(request):
    """Sell a ticket."""
    body = json.loads(request.body or b"{}")
    Ticket.objects.create(number=str(Ticket.objects.count() + 1), buyer=body.get("buyer", ""))
    if body.get("fail"):
        return HttpResponse(status=body["fail"])
    response = JsonResponse({"number": Ticket.objects.count()}, status=201)
    response["Location"] = "/tickets/1"
    return response


def post(key="k", view=sell, method="post", user=None, path="/tickets", meta=(), **body):
    headers = {} if key is None else {"HTTP_IDEMPOTENCY_KEY": key}
    headers |= dict(meta)
    request = RequestFactory().generic(method.upper(), path, json.dumps(body), "application/json", **headers)
    request.user = user or AnonymousUser()
    return view(request)


@plain
def test_the_same_request_again_gets_the_same_response_and_no_second_effect():
    first, again = post(), post()
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.content == again.content
    assert (again["Location"], again["Content-Type"]) == ("/tickets/1", "application/json")
    assert Ticket.objects.count() == 1


@plain
def test_another_key_path_method_or_user_is_another_request(django_user_model):
    ann, bob = (django_user_model(pk=n) for n in (1, 2))
    for options in ({}, {"key": "K"}, {"path": "/other"}, {"method": "put"}, {"user": ann}, {"user": bob}):
        assert post(**options).status_code == 201
    assert Ticket.objects.count() == 6


@plain
@finding("M9")
@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ({"HTTP_AUTHORIZATION": "Token A"}, {"HTTP_AUTHORIZATION": "Token B"}),
        ({"HTTP_AUTHORIZATION": "Token A"}, {}),
        ({"HTTP_HOST": "one.example.com"}, {"HTTP_HOST": "two.example.com"}),
    ],
    ids=["tokens", "a token and none", "hosts"],
)
def test_who_is_known_by_a_header_only_does_not_get_anothers_response(mine, theirs, settings):
    settings.ALLOWED_HOSTS = ["*"]
    first, other = post(meta=mine, buyer="ann"), post(meta=theirs, buyer="ann")
    assert first.content != other.content
    assert [post(meta=meta, buyer="ann").content for meta in (mine, theirs)] == [first.content, other.content]
    assert Ticket.objects.count() == 2


@plain
def test_a_user_who_is_known_keeps_the_key_when_the_token_is_made_anew(django_user_model):
    ann = django_user_model(pk=1)
    first, again = (post(user=ann, meta={"HTTP_AUTHORIZATION": f"Bearer {n}"}).content for n in (1, 2))
    assert first == again


@plain
def test_the_host_is_compared_as_hosts_are(settings):
    settings.ALLOWED_HOSTS = ["*"]
    first, again = (post(meta={"HTTP_HOST": host}).content for host in ("Shop.example.com", "shop.example.com"))
    assert first == again


@plain
@finding("M9")
def test_a_view_may_say_who_asks():
    mine = idempotent_view(scope=lambda request: ("tenant", request.headers["X-Tenant"]))(sell.__wrapped__)

    def ask(tenant, token="A"):
        return post(view=mine, meta={"HTTP_X_TENANT": tenant, "HTTP_AUTHORIZATION": token}).content

    first, other = ask("one"), ask("two")
    assert first != other
    assert ask("one", token="made anew") == first
    assert Ticket.objects.count() == 2
    for wrong in (None, 1.5, ["one"]):
        with pytest.raises(InvalidType, match="scope"):
            post(view=idempotent_view(scope=lambda request, wrong=wrong: wrong)(sell.__wrapped__))
    with pytest.raises(InvalidType, match="scope"):
        idempotent_view(scope="tenant")
    assert Ticket.objects.count() == 2


@plain
@finding("M9")
@pytest.mark.parametrize("status", [408, 409, 425, 429])
def test_an_answer_that_asks_to_come_again_is_not_kept(status):
    assert post(fail=status).status_code == status
    assert not Ticket.objects.exists(), "it is undone, so that what is done again is done once"
    assert post().status_code == 201
    assert Ticket.objects.count() == 1


@plain
def test_quotes_are_those_of_structured_fields():
    assert post('"k"').content == post("k").content
    assert Ticket.objects.count() == 1


@plain
@pytest.mark.parametrize("key", [None, "", '""', "x" * 256, "ä", "a\tb"])
def test_no_key_or_a_bad_one_is_400(key):
    response = post(key)
    assert response.status_code == 400
    assert response["Content-Type"] == "application/problem+json"
    assert "Idempotency-Key" in json.loads(response.content)["detail"]
    assert not Ticket.objects.exists()


@plain
def test_where_it_is_not_required_no_key_is_no_promise_and_safe_methods_pass():
    free = idempotent_view(required=False)(sell.__wrapped__)
    assert [post(None, view=free).status_code for _ in range(2)] == [201, 201]
    assert post("", view=free).status_code == 400
    assert post(None, method="get").status_code == 201
    assert sell.__doc__ == "Sell a ticket."


@plain
def test_another_body_under_the_same_key_is_422():
    post(buyer="ann")
    response = post(buyer="bob")
    assert response.status_code == 422
    assert Ticket.objects.get().buyer == "ann"


@plain
def test_an_error_of_the_server_undoes_everything_and_frees_the_key_but_one_of_the_client_is_kept():
    assert post(fail=503).status_code == 503
    assert not Ticket.objects.exists()
    assert post().status_code == 201
    assert post("bad", fail=402).status_code == post("bad", fail=402).status_code == 402
    assert Ticket.objects.count() == 2


@plain
def test_streams_and_coroutines_are_refused():
    stream = idempotent_view()(lambda request: StreamingHttpResponse(iter([b"x"])))
    with pytest.raises(NotSupported, match="streaming"):
        post(view=stream)

    async def later(request):
        pass

    with pytest.raises(NotSupported, match="coroutines"):
        idempotent_view()(later)


@pytest.mark.django_db(transaction=True)
def test_while_the_first_is_under_way_it_is_409():
    impatient = idempotent_view(timeout_seconds=0)(sell.__wrapped__)
    with holding(lambda: post(view=impatient)):
        response = post(view=impatient)
    assert response.status_code == 409
    assert post(view=impatient).status_code == 201
    assert Ticket.objects.count() == 1


@plain
def test_a_compressed_response_comes_back_as_one():
    @idempotent_view()
    @gzip_page
    def long(request):
        return HttpResponse("long " * 200)

    def ask():
        headers = {"HTTP_IDEMPOTENCY_KEY": "k", "HTTP_ACCEPT_ENCODING": "gzip"}
        return long(RequestFactory().post("/long", **headers))

    first, again = ask(), ask()
    assert first["Content-Encoding"] == again["Content-Encoding"] == "gzip"
    assert gzip.decompress(again.content) == b"long " * 200
