"""Keys: how they are written, what they open, and that nothing opens by accident."""

from __future__ import annotations

import pytest

from saiserve.auth import Access, Auth, ClientKey, parse_client_keys, required_access
from saiserve.errors import ApiError, SettingsError


def test_keys_have_names_and_their_names_alone_are_shown():
    keys = parse_client_keys(" alice:secret-one , secret-two,, bob : x:y ")
    assert [(key.name, key.secret) for key in keys] == [
        ("alice", b"secret-one"),
        ("key2", b"secret-two"),
        ("bob", b"x:y"),
    ]
    assert "secret" not in repr(keys)


def test_a_name_without_a_key_is_refused_because_an_empty_key_would_open_to_all():
    with pytest.raises(SettingsError, match="API_KEY"):
        parse_client_keys("alice:")


@pytest.mark.parametrize(
    ("method", "path", "access"),
    [
        ("GET", "/health", Access.OPEN),
        ("HEAD", "/ready", Access.OPEN),
        ("POST", "/health", Access.CLIENT),
        ("GET", "/health/", Access.CLIENT),
        ("GET", "/", Access.CLIENT),
        ("HEAD", "/", Access.OPEN),
        ("OPTIONS", "/v1/models", Access.OPEN),
        ("GET", "/cluster/state", Access.OPERATOR),
        ("GET", "/cluster", Access.OPERATOR),
        ("GET", "/clusters", Access.CLIENT),
        ("GET", "/metrics", Access.OPERATOR),
        ("GET", "/v1/models", Access.CLIENT),
    ],
)
def test_what_a_path_needs(method, path, access):
    assert required_access(method, path) is access


def test_on_a_single_box_a_client_key_opens_the_operators_routes():
    alone = Auth([ClientKey("a", b"k")])
    assert alone.authenticate("GET", "/cluster/state", [(b"x-api-key", b"k")]) == "a"
    member = Auth([ClientKey("a", b"k")], [b"new", b"old"])
    with pytest.raises(ApiError):
        member.authenticate("GET", "/cluster/state", [(b"x-api-key", b"k")])
    for secret in (b"new", b"old"):
        assert member.authenticate("GET", "/cluster/state", [(b"X-SAI-Cluster", secret)]) == "operator"


def test_two_different_keys_in_one_request_are_refused_and_the_same_twice_is_one():
    auth = Auth([ClientKey("a", b"k"), ClientKey("b", b"l")])
    headers = [(b"x-api-key", b"k"), (b"authorization", b"Bearer l")]
    with pytest.raises(ApiError):
        auth.authenticate("GET", "/v1/models", headers)
    same = [(b"x-api-key", b"k"), (b"authorization", b"bearer k")]
    assert auth.authenticate("GET", "/v1/models", same) == "a"


def test_no_key_at_all_opens_nothing_and_bytes_beyond_ascii_are_just_wrong():
    auth = Auth([])
    for headers in ([], [(b"x-api-key", b"")], [(b"authorization", b"Bearer k\xe9y")]):
        with pytest.raises(ApiError):
            auth.authenticate("GET", "/v1/models", headers)
