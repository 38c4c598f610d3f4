"""Images by URL: fetched from the hosts an operator allows (`IMAGE_URLS`), within bounds, or refused.

A name is resolved once and the very address that was judged is the one that is asked, so that a second answer of the
name server cannot lead elsewhere. Redirects are followed by the same rules. Proxies of the environment are not used:
behind one nobody here would see the address.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin

import trio

from saiserve import limits
from saiserve.api.body import invalid
from saiserve.api.image_hosts import ImageHosts, Place, media_type_of, place_of
from saiserve.api.images import MEDIA_TYPES, not_fetched
from saiserve.chat.request import GenerationRequest, ImagePart, Message, Part
from saiserve.errors import ApiError

if TYPE_CHECKING:
    import ssl

    import httpx2

REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True)
class RemoteImages:
    """What fetches images for one node."""

    hosts: ImageHosts

    async def fetch(self, parts: Sequence[ImagePart]) -> dict[str, ImagePart]:
        """Return the images of some URLs, each fetched once and counted as often as it is shown.

        Raises:
            ApiError: 400 that says which one cannot be had, and why.
        """
        found: dict[str, ImagePart] = {}
        at, room = parts[0].at, limits.IMAGES_BYTES_MAX
        if len(parts) > limits.IMAGES_FETCHED_MAX:
            raise invalid(f"{at}: at most {limits.IMAGES_FETCHED_MAX} images are fetched for one request.", at)
        places = {part.url: part.at for part in parts}
        times = Counter(part.url for part in parts)
        with trio.move_on_after(limits.IMAGES_FETCH_S) as waiting:
            async with _client() as client:
                for url, at in places.items():
                    most = min(limits.IMAGE_BYTES_MAX, room // times[url])
                    found[url] = await _Fetch(self.hosts, client, at, most).image(url)
                    room -= len(found[url].data) * times[url]
        if waiting.cancelled_caught:
            raise invalid(f"{at}: the image did not come within {limits.IMAGES_FETCH_S:g} s.", at)
        return found


def _client() -> httpx2.AsyncClient:
    """No connection is used twice: they are told apart by address, and one address may serve many names."""
    import httpx2  # a node that fetches no images needs none

    return httpx2.AsyncClient(
        verify=_trust(),
        trust_env=False,
        follow_redirects=False,
        timeout=None,
        limits=httpx2.Limits(max_keepalive_connections=0),
    )


@cache
def _trust() -> ssl.SSLContext:
    """Reading the certificates takes tens of milliseconds, in which no stream goes on: once is enough."""
    import httpx2

    return httpx2.create_ssl_context(trust_env=False)


@dataclass(frozen=True, slots=True)
class _Fetch:
    """The fetching of one image."""

    hosts: ImageHosts
    client: httpx2.AsyncClient
    at: str
    bytes_max: int

    async def image(self, url: str) -> ImagePart:
        for _ in range(limits.IMAGE_REDIRECTS_MAX + 1):
            place = place_of(url)
            if place is None:
                raise self._refused("this is no plain http or https URL")
            if not self.hosts.allows(place):
                raise self._refused(f"images are not fetched from {place.host[:80]} (IMAGE_URLS)")
            response = await self._ask(url, place)
            try:
                if response.status_code not in REDIRECTS or "location" not in response.headers:
                    return ImagePart(*await self._read(response))
                url = _joined(url, response.headers["location"])
            finally:
                await response.aclose()
        raise self._refused(f"it is redirected more than {limits.IMAGE_REDIRECTS_MAX} times")

    async def _ask(self, url: str, place: Place) -> httpx2.Response:
        """Send the request to an address that was judged."""
        import httpx2

        address = await self._address(place)
        try:
            target = httpx2.URL(url)
            request = self.client.build_request(
                "GET",
                target.copy_with(host=address),
                headers={"host": target.netloc.decode("ascii"), "accept": "image/*", "accept-encoding": "identity"},
                extensions={"sni_hostname": place.host},
            )
            return await self.client.send(request, stream=True)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._refused(f"{place.host[:80]} cannot be reached: {type(error).__name__}") from error

    async def _address(self, place: Place) -> str:
        try:
            found = await trio.socket.getaddrinfo(place.host, place.port, type=trio.socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # the latter: a label that is empty or too long
            raise self._refused(f"{place.host[:80]} has no address") from error
        addresses = [str(entry[4][0]) for entry in found]
        if not addresses or not all(self.hosts.allows_address(place, address) for address in addresses):
            raise self._refused(f"{place.host[:80]} is not on the public internet; IMAGE_URLS does not list it by name")
        return addresses[0]

    async def _read(self, response: httpx2.Response) -> tuple[str, bytes]:
        """Return the media type, by the first bytes, and the bytes."""
        import httpx2

        from saiserve.engines.upstream.reading import pieces_of  # brings the engine's readers along

        if response.status_code != 200:
            raise self._refused(f"its server answers {response.status_code}")
        if response.headers.get("content-encoding", "identity") != "identity":
            raise self._refused("its server compresses it though it was asked not to")
        length = response.headers.get("content-length", "")
        data = bytearray()
        try:
            if length.isdigit() and int(length[:20]) > self.bytes_max:
                raise self._too_large()
            async with aclosing(pieces_of(response)) as pieces:
                async for piece in pieces:
                    data += piece
                    if len(data) > self.bytes_max:
                        raise self._too_large()
        except httpx2.HTTPError as error:
            raise self._refused("its server broke off") from error
        media_type = media_type_of(bytes(data[:16]))
        if not media_type:
            raise self._refused(f"it is none of {', '.join(sorted(MEDIA_TYPES))}")
        return media_type, bytes(data)

    def _too_large(self) -> ApiError:
        left = (
            "" if self.bytes_max == limits.IMAGE_BYTES_MAX else f", what is left of {limits.IMAGES_BYTES_MAX} for all"
        )
        return self._refused(f"it is larger than {self.bytes_max} bytes{left}")

    def _refused(self, reason: str) -> ApiError:
        return invalid(f"{self.at}: {reason}.", self.at)


async def with_images(request: GenerationRequest, remote: RemoteImages | None) -> GenerationRequest:
    """Return a request whose images are all there.

    Raises:
        ApiError: 400 when one is not, and may not or cannot be fetched.
    """
    wanted = [part for message in request.messages or () for part in _remote_parts(message)]
    if not wanted:
        return request
    if remote is None:
        raise not_fetched(wanted[0].at)
    found = await remote.fetch(wanted)
    return replace(request, messages=tuple(_with(message, found) for message in request.messages or ()))


def _joined(url: str, location: str) -> str:
    """Return where a redirect leads; empty when that is no URL."""
    try:
        return urljoin(url, location)
    except ValueError:
        return ""


def _remote_parts(message: Message) -> list[ImagePart]:
    """Return the images of a message that are named by a URL alone."""
    return [part for part in message.parts if isinstance(part, ImagePart) and part.url]


def _with(message: Message, found: Mapping[str, ImagePart]) -> Message:
    parts: list[Part] = [
        found[part.url] if isinstance(part, ImagePart) and part.url else part for part in message.parts
    ]
    return replace(message, parts=tuple(parts))
