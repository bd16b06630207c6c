"""What clients of HTTP raise."""

from __future__ import annotations

import asyncio
import http.client
import json
import urllib.error
import urllib.request
from contextlib import closing

import requests
import urllib3

from tests.failures.real import Real


def by_requests(url):
    requests.get(url, timeout=0.5).raise_for_status()


def by_urllib(url):
    try:
        with urllib.request.urlopen(url, timeout=0.5) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        # It is the answer, too, with an open socket.
        error.close()
        raise


def by_httpx(url):
    import httpx

    httpx.get(url, timeout=0.5, follow_redirects=True).raise_for_status()


def by_aiohttp(url):
    import aiohttp

    async def get():
        limit = aiohttp.ClientTimeout(total=0.5)
        async with aiohttp.ClientSession(timeout=limit) as session, session.get(url) as response:
            response.raise_for_status()
            await response.read()

    asyncio.run(get())


def by_urllib3(url):
    urllib3.PoolManager(retries=urllib3.Retry(1, backoff_factor=0)).request("GET", url, timeout=0.5)


def by_http_client(url):
    connection = http.client.HTTPConnection(url.split("/")[2], timeout=0.5)
    with closing(connection):
        connection.request("GET", "/" + url.split("/", 3)[3])
        connection.getresponse().read()


async def two_at_once(url):
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(asyncio.to_thread(by_requests, url))


class PaymentFailed(Exception):
    """As a project wraps what a library raises."""


def wrapped(url):
    try:
        by_requests(url)
    except requests.RequestException as error:
        raise PaymentFailed("the card was not charged") from error


def with_all_connections_in_use(port):
    pool = urllib3.HTTPConnectionPool("127.0.0.1", port, maxsize=1, block=True)
    pool._get_conn()
    pool._get_conn(timeout=0.01)


#: clients that raise for a status
CLIENTS = {"requests": by_requests, "urllib": by_urllib, "httpx": by_httpx, "aiohttp": by_aiohttp}
ALL = {**CLIENTS, "urllib3": by_urllib3, "http.client": by_http_client}


def real(words, cause, address, clients=ALL):
    """For each client, what it raises for the address that `address(world)` gives."""
    return [
        Real(
            f"{name}: {words}",
            lambda world, get=get: get(address(world)),
            cause,
            needs=name if name in ("httpx", "aiohttp") else None,
        )
        for name, get in clients.items()
    ]


def status(number, cause):
    return real(f"HTTP {number}", cause, lambda world: f"{world.url}/{number}", CLIENTS)


STATUSES = [
    *(one for number in (500, 502, 503, 504, 408, 425, 429, 401, 403) for one in status(number, "dependency")),
    *(one for number in (400, 404, 405, 409, 410, 413, 422) for one in status(number, "data")),
]
TROUBLE = [
    *real("no answer in time", "dependency", lambda world: f"{world.url}/hang"),
    *real("the server hangs up", "dependency", lambda world: f"{world.url}/close"),
    *real("half of an answer", "dependency", lambda world: f"{world.url}/half"),
]
REFUSED = real("the port refuses", "dependency", lambda world: f"http://127.0.0.1:{world.closed_port}/")
UNRESOLVED = real("a name that DNS does not know", "dependency", lambda world: "http://no-such-host.invalid/")
UNTRUSTED = real(
    "a certificate that is not trusted",
    "dependency",
    lambda world: f"{world.secure_url}/200",
    {**CLIENTS, "urllib3": by_urllib3},
)
CIRCLES = real("a circle of redirects", "dependency", lambda world: f"{world.url}/loop", CLIENTS)
_READS_URLS = {name: CLIENTS[name] for name in ("requests", "urllib", "httpx")}
WRONG_URLS = [
    one
    for url in ("no-url", "foo://x/", "http://[::1")
    for one in real(f"the URL {url}", "data", lambda _, url=url: url, _READS_URLS)
]
BODIES = [
    Real(
        "requests: an answer that is no JSON",
        lambda world: requests.get(f"{world.url}/200", timeout=0.5).json(),
        "dependency",
    ),
    Real("json: a text of the job that is no JSON", lambda _: json.loads("{"), "data"),
]
POOLS = [
    Real(
        "urllib3: all connections of a pool in use",
        lambda world: with_all_connections_in_use(world.closed_port),
        "resource",
    )
]
WRAPPED = [
    Real("a group of tasks: HTTP 503 twice", lambda world: asyncio.run(two_at_once(f"{world.url}/503")), "dependency"),
    Real("an exception of the project from HTTP 503", lambda world: wrapped(f"{world.url}/503"), "dependency"),
    Real("an exception of the project from HTTP 404", lambda world: wrapped(f"{world.url}/404"), "data"),
]
GROUPS = [STATUSES, TROUBLE, REFUSED, UNRESOLVED, UNTRUSTED, CIRCLES, WRONG_URLS, BODIES, POOLS, WRAPPED]
