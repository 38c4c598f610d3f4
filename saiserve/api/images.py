"""Images in requests: data URIs are read, http and https ones noted for `remote_images`, all others refused."""

from __future__ import annotations

import base64
import binascii

from saiserve.api.body import invalid
from saiserve.api.image_hosts import place_of
from saiserve.chat.request import ImagePart
from saiserve.errors import ApiError

MEDIA_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


def image_from_url(url: str, param: str) -> ImagePart:
    """Read a `data:` URI (RFC 2397); an http or https URL comes back as such.

    Raises:
        ApiError: 400 for any other scheme, and for data that is not base64 of a known image type.
    """
    scheme, _, rest = url.partition(":")
    if scheme.lower() != "data":
        if place_of(url) is None:
            raise not_fetched(param)
        return ImagePart(media_type="", url=url, at=param)
    header, comma, payload = rest.partition(",")
    media_type, *attributes = header.lower().split(";")
    if not comma or "base64" not in attributes:
        raise invalid(f"{param}: the data: URI must be base64.", param)
    return image_from_base64(media_type.strip(), payload, param)


def not_fetched(param: str) -> ApiError:
    """Return the error for an image that is not in the request itself."""
    return invalid(
        f"{param}: only data: URIs are taken, and http and https ones of hosts that IMAGE_URLS lists.", param
    )


def image_from_base64(media_type: str, payload: str, param: str) -> ImagePart:
    """Read base64 image data.

    Raises:
        ApiError: 400 for an unknown media type or bad base64.
    """
    if media_type not in MEDIA_TYPES:
        raise invalid(f"{param}: {media_type[:60]!r} is not one of {', '.join(sorted(MEDIA_TYPES))}.", param)
    try:
        return ImagePart(media_type=media_type, data=base64.b64decode(payload, validate=True))
    except (binascii.Error, ValueError) as error:
        raise invalid(f"{param}: the image is not valid base64.", param) from error
