"""Requests that are not ours, replies that were tampered with: all refused, none by accident."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saiserve import limits
from saiserve.peers.wire import (
    FrameOpener,
    FrameSealer,
    PeerKeys,
    ReplayGuard,
    RequestSigner,
    RequestVerifier,
    SignedRequest,
    WireError,
)

A, B, C = b"instanca", b"instancb", b"instancc"
PATH = "/cluster/peer/generate"
KEYS = PeerKeys(["a secret of some length"])


def signed(body: bytes = b"body", *, keys: PeerKeys = KEYS, to: bytes = B, path: str = PATH) -> SignedRequest:
    return RequestSigner(keys, "node-a", A).sign("POST", path, body, to)


def test_a_signed_request_is_read_and_let_in_once() -> None:
    verifier = RequestVerifier(KEYS, B)
    one = signed()
    request = verifier.check("POST", PATH, one.header)
    assert (request.source, request.source_instance, request.mac) == ("node-a", A, one.mac)
    verifier.admit(request, b"body")
    with pytest.raises(WireError, match="before"):
        verifier.admit(verifier.check("POST", PATH, one.header), b"body")


@pytest.mark.parametrize(
    ("method", "path", "instance", "match"),
    [
        ("GET", PATH, B, "verify"),
        ("POST", "/cluster/peer/embed", B, "verify"),
        ("POST", PATH, C, "another process"),
    ],
)
def test_a_request_counts_for_one_method_path_and_process(method: str, path: str, instance: bytes, match: str) -> None:
    with pytest.raises(WireError, match=match):
        RequestVerifier(KEYS, instance).check(method, path, signed().header)


def test_another_body_is_refused_and_the_right_one_still_comes_in() -> None:
    verifier = RequestVerifier(KEYS, B)
    request = verifier.check("POST", PATH, signed(b"body").header)
    with pytest.raises(WireError, match="body"):
        verifier.admit(request, b"bodY")
    verifier.admit(request, b"body")


def test_a_signature_of_another_secret_or_cluster_is_refused() -> None:
    for keys in (PeerKeys(["another secret of some length"]), PeerKeys(["a secret of some length"], "staging")):
        with pytest.raises(WireError, match="does not hold"):
            RequestVerifier(KEYS, B).check("POST", PATH, signed(keys=keys).header)


def test_while_secrets_rotate_the_first_signs_and_all_verify() -> None:
    old, both, new = PeerKeys(["old"]), PeerKeys(["new", "old"]), PeerKeys(["new"])
    RequestVerifier(both, B).check("POST", PATH, signed(keys=old).header)
    RequestVerifier(new, B).check("POST", PATH, signed(keys=both).header)
    with pytest.raises(WireError):
        RequestVerifier(old, B).check("POST", PATH, signed(keys=both).header)


def test_secrets_can_be_replaced_while_the_node_runs() -> None:
    keys = PeerKeys(["old secret"])
    verifier, signer = RequestVerifier(keys, B), RequestSigner(keys, "node-a", A)
    keys.replace(["new secret", "old secret"])
    header = signer.sign("POST", PATH, b"", B).header
    assert verifier.check("POST", PATH, header).source == "node-a"
    with pytest.raises(WireError):
        RequestVerifier(PeerKeys(["old secret"]), B).check("POST", PATH, header)
    with pytest.raises(ValueError, match="secret"):
        keys.replace([])
    assert keys.signing is not None


@given(position=st.integers(0, 200), flip=st.integers(1, 255))
def test_any_changed_byte_of_a_signature_is_refused(position: int, flip: int) -> None:
    header = bytearray(signed().header)
    header[position % len(header)] ^= flip
    with pytest.raises(WireError):
        RequestVerifier(KEYS, B).check("POST", PATH, bytes(header))


@given(st.binary(max_size=600))
def test_any_bytes_at_all_are_refused_cleanly(header: bytes) -> None:
    with pytest.raises(WireError):
        RequestVerifier(KEYS, B).check("POST", PATH, header)


@given(st.lists(st.integers(1, 60), max_size=80))
def test_a_counter_comes_in_once_in_any_order_and_old_ones_never(counters: list[int]) -> None:
    guard = ReplayGuard(window=16)
    seen: set[int] = set()
    for counter in counters:
        fresh = counter not in seen and counter > max(seen, default=0) - 16
        assert guard.admit(A, counter) == fresh
        if fresh:
            seen.add(counter)


def test_the_processes_remembered_are_bounded() -> None:
    guard = ReplayGuard(instances_max=3)
    for number in range(5):
        assert guard.admit(bytes([number]) * 8, 1)
    assert len(guard) == 3
    assert not guard.admit(bytes([4]) * 8, 1)


def reply(payloads: list[bytes], *, mac: bytes = b"m" * 16, key: bytes = b"k" * 32) -> tuple[list[bytes], FrameOpener]:
    sealer = FrameSealer(key, mac)
    return [*(sealer.data(payload) for payload in payloads[:-1]), sealer.last(payloads[-1])], FrameOpener(key, mac)


@given(
    payloads=st.lists(st.binary(max_size=40), min_size=1, max_size=8), cuts=st.lists(st.integers(1, 30), max_size=30)
)
def test_frames_come_out_whole_however_the_bytes_are_cut(payloads: list[bytes], cuts: list[int]) -> None:
    frames, opener = reply(payloads)
    data, got, at = b"".join(frames), [], 0
    for size in [*cuts, len(data)]:
        got += opener.feed(data[at : at + size])
        at += size
    opener.end()
    assert got == payloads


def read_all(opener: FrameOpener, data: bytes, got: list[bytes]) -> None:
    for index in range(len(data)):
        got += opener.feed(data[index : index + 1])
    opener.end()


@given(payloads=st.lists(st.binary(max_size=20), min_size=1, max_size=5), data=st.data())
def test_any_flip_or_cut_of_a_reply_is_noticed(payloads: list[bytes], data: st.DataObject) -> None:
    frames, opener = reply(payloads)
    whole = bytearray(b"".join(frames))
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        whole[at] ^= data.draw(st.integers(1, 255))
    else:
        del whole[at:]
    got: list[bytes] = []
    with pytest.raises(WireError):
        read_all(opener, bytes(whole), got)
    assert got == payloads[: len(got)]


def test_frames_cannot_be_dropped_swapped_repeated_or_taken_from_another_reply() -> None:
    for change in ([1, 2, 3], [1, 0, 2, 3], [0, 0, 1, 2, 3], [0, 1, 3], [0, 1, 2, 3, 3], [3]):
        frames, opener = reply([b"a", b"b", b"c", b"d"])
        with pytest.raises(WireError):
            read_all(opener, b"".join(frames[index] for index in change), [])
    frames, _ = reply([b"a"], mac=b"n" * 16)
    _, opener = reply([b""])
    with pytest.raises(WireError):
        opener.feed(frames[0])


def test_a_frame_too_long_is_refused_before_it_is_read_and_never_written() -> None:
    _, opener = reply([b""])
    with pytest.raises(WireError, match="length"):
        opener.feed((limits.PEER_FRAME_BYTES_MAX + 1).to_bytes(4, "big"))
    with pytest.raises(WireError, match="limit"):
        FrameSealer(b"k" * 32, b"m" * 16).data(bytes(limits.PEER_FRAME_BYTES_MAX))


def test_no_secret_and_no_key_is_in_what_is_printed() -> None:
    one = signed()
    printed = repr(KEYS) + repr(vars(KEYS)) + repr(one) + repr(RequestVerifier(KEYS, B).check("POST", PATH, one.header))
    for hidden in (b"a secret", KEYS.signing.request, KEYS.signing.frame):
        assert repr(hidden)[2:-1] not in printed
