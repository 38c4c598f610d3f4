"""Settings: what is refused, with a message that names the mend, and the proof that datagrams fit."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from swimcluster.address import Address
from swimcluster.codec import encode_body, encode_envelope, encode_message, encode_sender
from swimcluster.config import FRAME_OVERHEAD_BYTES, Config
from swimcluster.config_checks import KINDS, RANGES
from swimcluster.errors import ConfigError
from swimcluster.messages import Alive, Ping, Suspect

KEY = b"k" * 16
HERE = Address("10.0.0.1", 7946)


def lan(**settings: object) -> Config:
    return Config.lan(**{"name": "a", "advertise": HERE, "keys": [KEY], **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize("preset", [Config.lan, Config.wan, Config.local])
def test_each_preset_is_valid_and_takes_addresses_as_text(preset):
    config = preset(name="a", advertise="[::1]:7946", seeds=["db-1.lan:7946", HERE], keys=[KEY])
    assert config.advertise == Address("::1", 7946)
    assert config.seeds == (Address("db-1.lan", 7946), HERE)
    assert config.worst_case_bytes <= config.datagram_bytes_max


def test_addresses_and_folders_may_be_given_to_a_preset_as_text():
    config = lan(bind="[::]:7946", state_dir="/var/lib/here")
    assert config.bind == Address("::", 7946)
    assert config.state_dir == Path("/var/lib/here")


def test_every_setting_is_checked_for_its_type():
    assert {field.name for field in fields(Config)} == set(RANGES) | set(KINDS)
    for setting in [field.name for field in fields(Config)]:
        with pytest.raises(ConfigError, match=setting):
            replace(lan(), **{setting: object()})


@pytest.mark.parametrize("setting", sorted(RANGES))
def test_a_number_out_of_its_range_is_refused_by_name(setting):
    low, high = RANGES[setting]
    for value in (low - 2, high + 1):
        with pytest.raises(ConfigError, match=setting):
            replace(lan(), **{setting: type(getattr(lan(), setting))(value)})


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"keys": []}, "insecure=True"),
        ({"insecure": True}, "contradicts"),
        ({"keys": [b"short"]}, "16"),
        ({"keys": [b"x" * 2000]}, "1024"),
        ({"keys": [KEY, KEY]}, "twice"),
        ({"keys": [bytes([i]) * 16 for i in range(5)]}, "at most 4"),
        ({"keys": KEY}, "list"),
        ({"keys": ["a text key of some length"]}, "bytes"),
        ({"seeds": "10.0.0.1:1"}, "list"),
        ({"seeds": None}, "seeds is a list"),
        ({"seeds": [("10.0.0.1", 1)]}, "a seed must be an Address, .* not tuple"),
        ({"keys": None}, "keys is a list"),
        ({"name": 5}, "name must be text, not int"),
        ({"cluster": b"c"}, "cluster must be text, not bytes"),
        ({"insecure": "no", "keys": []}, "insecure must be True or False, not str"),
        ({"buddy": 1}, "buddy must be True or False, not int"),
        ({"probe_order": ["random"]}, "probe_order must be text"),
        ({"advertise": ("10.0.0.1", 1)}, "advertise must be an Address, not tuple"),
        ({"advertise": Address("10.0.0.1", "7946")}, "the port a number"),  # type: ignore[arg-type]
        ({"advertise": Address("10.0.0.1", 70_000)}, "the port a number"),
        ({"bind": 7946}, "bind must be an Address, not int"),
        ({"bind": Address(None, 7946)}, "the host must be text"),  # type: ignore[arg-type]
        ({"bind": "10.0.0.1"}, "no port"),
        ({"state_dir": 5}, "state_dir must be a pathlib.Path, not int"),
        ({"seeds": [Address("10.0.0.1", 0)]}, "port other than 0"),
        ({"advertise": Address("0.0.0.0", 1)}, "routable"),
        ({"advertise": Address("10.0.0.1", 0)}, "routable"),
        ({"advertise": Address("h" * 65, 1)}, "IP address"),
        ({"name": ""}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"name": "new\nline"}, "name"),
        ({"cluster": ""}, "cluster"),
        ({"cluster": "c" * 65}, "cluster"),
        ({"probe_timeout_s": 1.0}, "less than probe_interval_s"),
        ({"probe_order": "sorted"}, "round_robin"),
        ({"seed_retry_max_s": 0.5}, "seed_retry_max_s"),
        ({"request_bytes_max": 16_000_000}, "quarter"),
        ({"metadata_bytes_max": 1000}, "datagram_bytes_max"),
        ({"broadcast_bytes_max": 1000, "datagram_bytes_max": 1300}, "broadcast_bytes_max"),
        ({"probe_intervall_s": 1}, "no setting"),
        ({"indirect_probes": 1.5}, "whole"),
        ({"indirect_probes": True}, "whole"),
        ({"probe_interval_s": "1"}, "number"),
        ({"probe_interval_s": float("nan")}, "probe_interval_s"),
    ],
)
def test_a_bad_setting_is_refused_with_a_sentence_that_names_it(settings, fault):
    with pytest.raises(ConfigError, match=fault):
        lan(**settings)


def test_no_key_ever_shows_in_a_refusal():
    with pytest.raises(ConfigError) as refusal:
        lan(keys=[b"SECRET"])
    assert "SECRET" not in str(refusal.value)


def test_intervals_that_may_be_turned_off_take_zero():
    config = lan(gossip_interval_s=0, push_pull_interval_s=0, reconnect_interval_s=0, source_rate_max=0)
    assert config.gossip_interval_s == 0


def test_the_proof_of_the_budget_counts_what_the_encoder_makes():
    config = lan()
    name, host, most = "n" * 64, "h" * 64, 2**62
    sender = encode_sender(name, Address(host, 65535), epoch=most, incarnation=most)
    envelope = encode_envelope(sender, vitals_counter=2**64 - 1, vitals=b"v" * 128)
    alive = Alive(name, host, 65535, most, b"i" * 8, most, b"m" * 512, b"k" * 16)
    messages = [
        encode_message(Ping(2**32 - 1, name, b"i" * 8)),
        encode_message(Suspect(name, most, b"i" * 8, most, name)),
        encode_message(alive),
    ]
    size = FRAME_OVERHEAD_BYTES + len(encode_body(envelope, messages))
    assert len(messages[2]) <= config.alive_bytes_max
    assert len(envelope) + 3 <= config.envelope_bytes_max
    assert size <= config.worst_case_bytes <= config.datagram_bytes_max


def test_every_setting_is_documented_where_it_is_defined():
    import ast
    import inspect
    import itertools

    body = ast.parse(inspect.getsource(Config)).body[0].body  # type: ignore[attr-defined]
    documented = {
        node.target.id
        for node, after in itertools.pairwise(body)
        if isinstance(node, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    }
    assert documented == {field.name for field in fields(Config)}


@pytest.mark.parametrize(
    "settings",
    [
        {"cluster": "from the \udc80 environment"},
        {"advertise": "a\0b:1"},
        {"advertise": "a\u200bb:1"},
        {"advertise": Address("a b", 1)},
        {"advertise": Address("\udc80", 1)},
        {"advertise": "0:7946"},
        {"advertise": "[::ffff:0.0.0.0]:7946"},
        {"seeds": ["000.0.0.0:7946"]},
    ],
    ids=ascii,
)
def test_text_that_others_refuse_and_addresses_of_nobody_are_no_settings(settings):
    with pytest.raises(ConfigError):
        Config.lan(name="a", keys=[b"sixteen bytes at least"], **settings)
