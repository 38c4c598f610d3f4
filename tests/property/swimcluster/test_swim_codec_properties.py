"""Bytes in any shape: what is encoded comes back, what is not of the protocol is one kind of error."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swimcluster.address import Address
from swimcluster.codec import Decoder, encode_body, encode_envelope, encode_message, encode_sender
from swimcluster.config import Config
from swimcluster.errors import DecodeError
from swimcluster.keyring import Keyring
from swimcluster.mac import (
    HELLO_MAGIC,
    REFUSAL_MAGIC,
    VERSION,
    FrameKind,
    Hello,
    RejectedError,
    binding_of,
    encode_hello,
    open_frame,
    seal,
    split_hello,
)
from swimcluster.messages import (
    Ack,
    Alive,
    Broadcast,
    Dead,
    Introduce,
    Left,
    Nack,
    NotMe,
    Ping,
    PingReq,
    Request,
    Response,
    Suspect,
    Sync,
    SyncReply,
    User,
)
from swimcluster.statistics import Statistics
from swimcluster.unpacking import SMALL_BYTES

CONFIG = Config.lan(name="a", keys=[b"k" * 16])
KEYRING = Keyring("default", (b"k" * 16,))
INSTANCE = b"instance"

names = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=12).filter(str.isprintable)
hosts = st.one_of(st.ip_addresses().map(str), st.from_regex(r"\A[a-z][a-z0-9.-]{0,30}\Z")).filter(
    lambda host: host not in {"0.0.0.0", "::"}
)
ports = st.integers(1, 65535)
counts = st.integers(0, 2**64 - 1)
versions = st.integers(0, 2**62)
instances = st.binary(min_size=8, max_size=8)
key_ids = st.integers(0, 4).flatmap(lambda n: st.binary(min_size=4 * n, max_size=4 * n))
metadata = st.binary(max_size=512)

messages = st.one_of(
    st.builds(Ping, counts, names, instances),
    st.builds(Ack, counts),
    st.builds(Nack, counts),
    st.builds(NotMe, counts),
    st.builds(PingReq, counts, names, instances, hosts, ports),
    st.builds(Alive, names, hosts, ports, versions, instances, versions, metadata, key_ids),
    st.builds(Suspect, names, versions, instances, versions, st.one_of(st.just(""), names)),
    st.builds(Dead, names, versions, instances, versions, st.one_of(st.just(""), names)),
    st.builds(Left, names, versions, instances, versions),
    st.builds(Introduce),
    st.builds(User, st.binary(max_size=300)),
    st.builds(Broadcast, names, instances, counts, st.binary(max_size=256)),
    st.builds(Sync, st.integers(0, 1)),
    st.builds(SyncReply, st.integers(0, 3), versions),
    st.builds(Request, st.binary(max_size=300)),
    st.builds(Response, st.binary(max_size=300)),
)


def body(chosen: list, *, vitals: bytes = b"", counter: int = 0) -> bytes:
    sender = encode_sender("b", Address("10.0.0.2", 7), epoch=3, incarnation=4)
    envelope = encode_envelope(sender, vitals_counter=counter, vitals=vitals)
    return encode_body(envelope, [encode_message(message) for message in chosen])


@given(st.lists(messages, max_size=40), st.binary(max_size=128), counts)
def test_every_packet_comes_back_as_it_was(chosen, vitals, counter):
    decoder = Decoder(CONFIG)
    for _ in range(2):  # The second time from what the decoder remembers.
        packet = decoder.decode(INSTANCE, body(chosen, vitals=vitals, counter=counter))
        assert packet.messages == tuple(chosen)
        assert [type(message) for message in packet.messages] == [type(message) for message in chosen]
        assert (packet.name, packet.address, packet.epoch) == ("b", Address("10.0.0.2", 7), 3)
        assert (packet.incarnation, packet.vitals, packet.vitals_counter) == (4, vitals, counter)


def test_many_messages_come_back_too():
    many = [Ack(i) for i in range(70_000)]
    decoder = Decoder(Config.lan(name="a", keys=[b"k" * 16], members_max=65_536))
    assert decoder.decode(INSTANCE, body(many)).messages == tuple(many)


@pytest.mark.parametrize("count", [20, 21, 25, 70_000])
@pytest.mark.parametrize("known", [False, True])
def test_of_more_messages_than_a_table_takes_the_first_are_taken_and_the_others_counted(count, known):
    decoder = Decoder(Config.lan(name="a", keys=[b"k" * 16], members_max=2))
    many = [Ack(i) for i in range(count)]
    for _ in range(1 + known):
        packet = decoder.decode(INSTANCE, body(many))
        assert packet.messages == tuple(many[:20])
        assert packet.left_out == count - 20


@pytest.mark.parametrize(
    ("fields", "number", "rest"),
    [
        (4, 5000, b""),  # fewer messages than the header says
        (4, 2**32 - 1, b"\x92\x02\x07" * 2000),
        (4, 20, b"\x92\x02\x07" * 2000),  # more messages than the header says
        (3, 5000, b"\x92\x02\x07" * 5000),
        (5, 5000, b"\x92\x02\x07" * 5000),
        (4, 5000, b"\x92\x02\xdd\xff\xff\xff\xff" * 5000),
        (4, 5000, b"\x92\x63\x07" * 5000),  # no such kind of message
        (4, 5000, b"\xc1" * 5000),
    ],
)
def test_a_large_body_that_is_not_what_its_headers_say_is_refused(fields, number, rest):
    sender = encode_sender("b", Address("h", 7), epoch=3, incarnation=4)[1:]
    data = bytes((0x90 | fields,)) + sender + b"\x00\xc4\x00" + b"\xdd" + number.to_bytes(4, "big") + rest
    decoder = Decoder(Config.lan(name="a", keys=[b"k" * 16], members_max=2))
    with pytest.raises(DecodeError):
        decoder.decode(INSTANCE, data.ljust(SMALL_BYTES + 1, b"\xc0" if not rest else rest[:1]))


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_any_bytes_give_a_packet_or_a_decode_error(data):
    with pytest.raises(DecodeError):
        Decoder(CONFIG).decode(INSTANCE, data)


plain = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(),
        st.text(max_size=8),
        st.binary(max_size=9),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=10), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=20,
)


@settings(max_examples=400)
@given(plain, plain, plain, st.one_of(plain, st.lists(plain, max_size=5)))
def test_any_msgpack_gives_a_packet_or_a_decode_error(sender, counter, vitals, items):
    for fields in ([sender, counter, vitals, items], [msgpack.packb(sender), 1, b"", items], items):
        try:
            Decoder(CONFIG).decode(INSTANCE, msgpack.packb(fields))
        except DecodeError:
            continue
        assert not items or all(isinstance(item, list) for item in items)


@settings(max_examples=300)
@given(messages, st.data())
def test_a_message_with_one_field_of_another_type_or_size_is_refused(message, data):
    decoder = Decoder(CONFIG)
    whole = msgpack.unpackb(encode_message(message), use_list=False)
    decoder.decode(INSTANCE, body([message]))
    place = data.draw(st.integers(0, len(whole) - 1))
    wrong = data.draw(st.sampled_from([None, True, 1.0, -1, "", "\n", b"x" * 2000, {}, [], 2**63 + 2**62, "0.0.0.0"]))
    altered = (*whole[:place], wrong, *whole[place + 1 :])
    envelope = encode_envelope(
        encode_sender("b", Address("h", 7), epoch=3, incarnation=4), vitals_counter=0, vitals=b""
    )
    try:
        packet = decoder.decode(INSTANCE, encode_body(envelope, [msgpack.packb(altered)]))
    except DecodeError:
        return
    accepted = packet.messages[0]
    assert (type(accepted), *accepted) == (type(accepted), *altered[1:])
    assert [type(a) for a in accepted] == [type(a) for a in altered[1:]]
    assert wrong in {"", 2**63 + 2**62, "0.0.0.0", b"x" * 2000}


@pytest.mark.parametrize("extra", [(1,), ()])
def test_a_message_with_too_many_or_too_few_fields_is_refused(extra):
    envelope = encode_envelope(
        encode_sender("b", Address("h", 7), epoch=3, incarnation=4), vitals_counter=0, vitals=b""
    )
    data = encode_body(envelope, [msgpack.packb((2, *extra, *extra))])
    with pytest.raises(DecodeError, match="fields"):
        Decoder(CONFIG).decode(INSTANCE, data)


@pytest.mark.parametrize(
    "sender",
    [[], ["b", "h", 7, 3], ["b", "h", 0, 3, 4], ["b", "0.0.0.0", 7, 3, 4], ["", "h", 7, 3, 4], ["b", "h", 7, -1, 4]],
)
def test_a_sender_out_of_shape_is_refused(sender):
    with pytest.raises(DecodeError, match="sender"):
        Decoder(CONFIG).decode(INSTANCE, msgpack.packb([msgpack.packb(sender), 0, b"", []]))


def test_deep_nesting_extension_types_and_vitals_over_the_limit_are_refused():
    for data in (b"\x91" * 1000, msgpack.packb(msgpack.ExtType(5, b"x")), body([], vitals=b"v" * 129), b"\xc1"):
        with pytest.raises(DecodeError):
            Decoder(CONFIG).decode(INSTANCE, data)


def test_what_a_decoder_remembers_is_bounded():
    from swimcluster.codec import REMEMBERED

    decoder = Decoder(CONFIG)
    for i in range(REMEMBERED + 10):
        sender = encode_sender(f"n{i}", Address("10.0.0.2", 1 + i), epoch=i, incarnation=0)
        envelope = encode_envelope(sender, vitals_counter=0, vitals=b"")
        news = encode_message(Left(f"n{i}", i, INSTANCE, 0))
        decoder.decode(INSTANCE, encode_body(envelope, [news]))
    for remembered in (decoder._addresses, decoder._senders, decoder._news):
        assert len(remembered) <= REMEMBERED


# Frames ---------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=300), counts, st.sampled_from(list(FrameKind)))
def test_a_sealed_body_opens_again_and_only_as_its_kind(content, counter, kind):
    data = seal(KEYRING, kind, INSTANCE, counter, content)
    assert open_frame(KEYRING, kind, data) == (INSTANCE, counter, content)
    for other in set(FrameKind) - {kind}:
        with pytest.raises(RejectedError, match="malformed"):
            open_frame(KEYRING, other, data)


def test_every_byte_flip_and_every_truncation_is_a_clean_rejection():
    counters = set(Statistics.__dataclass_fields__)
    data = seal(KEYRING, FrameKind.DATAGRAM, INSTANCE, 7, body([Ack(3), Ping(4, "b", INSTANCE)]))
    for place in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            with pytest.raises(RejectedError) as rejected:
                open_frame(KEYRING, FrameKind.DATAGRAM, bytes(flipped))
            assert rejected.value.counter in counters
        with pytest.raises(RejectedError):
            open_frame(KEYRING, FrameKind.DATAGRAM, data[:place])
    with pytest.raises(RejectedError):
        open_frame(KEYRING, FrameKind.DATAGRAM, data + b"\0")


def test_each_reason_of_a_rejection_has_its_counter():
    data = seal(KEYRING, FrameKind.DATAGRAM, INSTANCE, 7, body([]))

    def reason(keyring: Keyring, altered: bytes) -> str:
        with pytest.raises(RejectedError) as rejected:
            open_frame(keyring, FrameKind.DATAGRAM, altered)
        return rejected.value.counter

    assert reason(Keyring("other", (b"k" * 16,)), data) == "dropped_cluster"
    assert reason(Keyring("default", (b"l" * 16,)), data) == "dropped_key"
    assert reason(Keyring("default", ()), data) == "dropped_key"
    assert reason(KEYRING, data[:2] + b"\x09" + data[3:]) == "dropped_version"
    assert reason(KEYRING, data[:-1] + b"\0") == "dropped_mac"
    assert reason(KEYRING, b"") == "dropped_malformed"


def test_a_reply_fits_no_other_request():
    binding, other = binding_of(INSTANCE, 7), binding_of(INSTANCE, 8)
    data = seal(KEYRING, FrameKind.REPLY, b"answerer", 1, body([]), binding=binding)
    open_frame(KEYRING, FrameKind.REPLY, data, binding)
    for wrong in (other, b""):
        with pytest.raises(RejectedError, match="mac"):
            open_frame(KEYRING, FrameKind.REPLY, data, wrong)


@given(st.text(max_size=16), st.lists(st.binary(min_size=4, max_size=4), max_size=4), st.binary(max_size=20))
def test_a_hello_comes_back_with_what_follows(cluster, ids, rest):
    data = encode_hello(HELLO_MAGIC, cluster, tuple(ids)) + rest
    assert split_hello(HELLO_MAGIC, data) == (Hello(VERSION, cluster, tuple(ids)), rest)
    with pytest.raises(RejectedError):
        split_hello(REFUSAL_MAGIC, data)


@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_any_bytes_after_a_hellos_magic_give_a_hello_or_a_rejection(tail):
    for data in (tail, HELLO_MAGIC + tail, HELLO_MAGIC + bytes((VERSION, 0, len(tail))) + tail):
        try:
            hello, _ = split_hello(HELLO_MAGIC, data)
        except RejectedError:
            continue
        assert hello.version != VERSION or isinstance(hello.cluster, str)


@pytest.mark.parametrize("content", [5, [], ["a"], [1, b""], ["a", b"abc"], ["a", "b"]])
def test_a_hello_out_of_shape_is_rejected(content):
    packed = msgpack.packb(content)
    with pytest.raises(RejectedError):
        split_hello(HELLO_MAGIC, HELLO_MAGIC + bytes((VERSION, 0, len(packed))) + packed)
