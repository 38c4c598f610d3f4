"""Settings come from flags, environment and file, and a wrong one is refused with a sentence that names it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from saiserve import config
from saiserve.config import SETTINGS, load_settings
from saiserve.errors import SettingsError
from swimcluster.address import Address

STRONG = "a-secret-of-more-than-16"
OTHER = "another-secret-of-more-than-16"


def settings(environment: dict[str, str], file: Path | None = None, **flags: str) -> config.Settings:
    return load_settings(environment, flags, file)


def test_nothing_set_is_a_single_box_with_the_demo_model_and_a_random_key() -> None:
    first, second = settings({}), settings({})
    assert first.models == "smollm2-135m"
    assert not first.is_clustered
    assert first.api_key_generated
    assert first.api_keys[0].secret != second.api_keys[0].secret
    assert len(first.api_keys[0].secret) >= 32


def test_a_flag_outranks_the_environment_and_that_the_file(tmp_path: Path) -> None:
    file = tmp_path / "saiserve.toml"
    file.write_text('port = 1001\nhost = "127.0.0.1"\nmodels = ["4b", "27b"]\nsai_route_log = true\n', "utf-8")
    merged = settings({"PORT": "1002", "HOST": "::1"}, file, PORT="1003")
    assert (merged.port, merged.host, merged.models, merged.route_log) == (1003, "::1", "4b,27b", True)


def test_a_model_may_have_settings_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "saiserve.toml"
    file.write_text('kv_type = "q8_0"\n[model."4b"]\nlanes = 2\nmlock = true\ntensor_split = [3, 1]\n', "utf-8")
    node = settings({"LANES": "9"}, file)
    own, other = node.for_model("q35-4b", "4B"), node.for_model("q35")
    assert (own.lanes, own.mlock, own.tensor_split, own.kv_type) == (2, True, (3.0, 1.0), "q8_0")
    assert other == node
    assert (node.lanes, node.mlock) == (9, False)


def test_contradictions_of_one_model_name_it(tmp_path: Path) -> None:
    file = tmp_path / "saiserve.toml"
    file.write_text('[model."4b"]\nkv_type = "q4_0"\nflash_attention = false\n', "utf-8")
    with pytest.raises(SettingsError, match="KV_TYPE is q4_0 for 4b but FLASH_ATTENTION is 0"):
        settings({}, file)


def test_a_node_told_only_what_to_load_on_demand_loads_nothing_at_start() -> None:
    assert settings({"MODELS_ON_DEMAND": "4b,27b"}).models == "none"
    assert settings({"MODELS_ON_DEMAND": "4b", "MODELS": "smollm2"}).models == "smollm2"


def test_two_variables_make_a_single_box_a_seed() -> None:
    seed = settings({"CLUSTER_SECRET": STRONG, "CLUSTER_ADVERTISE": "10.0.0.10:8081"})
    assert seed.is_clustered
    assert seed.cluster_advertise == Address("10.0.0.10", 8081)
    assert seed.cluster_seeds == ()


def test_secrets_rotate_and_seeds_are_a_list() -> None:
    node = settings(
        {"CLUSTER_SECRET": f"{STRONG},{OTHER}", "CLUSTER_SEED": "10.0.0.10:8081, db.lan ,[::1]:9", "HOST": "127.0.0.1"}
    )
    assert node.cluster_secrets == (STRONG, OTHER)
    assert node.cluster_seeds == (Address("10.0.0.10", 8081), Address("db.lan", 8081), Address("::1", 9))
    assert node.cluster_advertise == Address("127.0.0.1", 8081)


def test_client_keys_may_have_names() -> None:
    keys = settings({"API_KEY": f"alice:{STRONG},{OTHER}"}).api_keys
    assert [(key.name, key.secret) for key in keys] == [("alice", STRONG.encode()), ("key2", OTHER.encode())]
    assert STRONG not in repr(keys)


def test_the_node_is_named_after_host_and_unusual_port() -> None:
    assert settings({}).node_name == config.default_node_name(8081)
    assert settings({"PORT": "9000"}).node_name.endswith("-9000")
    assert settings({"NODE_NAME": "box-1"}).node_name == "box-1"


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"PORT": "eighty"}, "PORT .*whole number"),
        ({"PORT": "0"}, "PORT .*from 1 to 65535"),
        ({"PORT": "70000"}, "PORT .*from 1 to 65535"),
        ({"CLUSTER_SECRET": STRONG, "CLUSTER_ADVERTISE": "0.0.0.0:8081"}, "CLUSTER_ADVERTISE is .*nobody can connect"),
        ({"CLUSTER_SECRET": STRONG, "CLUSTER_ADVERTISE": "[::]:8081"}, "CLUSTER_ADVERTISE is .*nobody can connect"),
        ({"CLUSTER_SECRET": STRONG, "CLUSTER_ADVERTISE": "10.0.0.1:0"}, "CLUSTER_ADVERTISE is .*nobody can connect"),
        ({"CLUSTER_SEED": "10.0.0.10:8081"}, "CLUSTER_SECRET is not"),
        ({"CLUSTER_SEED": "http://x:1", "CLUSTER_SECRET": STRONG}, "CLUSTER_SEED .*not an address"),
        ({"API_KEY": STRONG, "CLUSTER_SECRET": f"{OTHER},{STRONG}"}, "API_KEY equals CLUSTER_SECRET"),
        ({"CLUSTER_SECRET": f"{STRONG},{STRONG}"}, "CLUSTER_SECRET names the same secret twice"),
        ({"CLUSTER_TRANSPORT": "quic"}, "CLUSTER_TRANSPORT .*tcp, udp"),
        ({"CLUSTER_SECRETS": STRONG}, "did you mean CLUSTER_SECRET"),
        ({"CLUSTER_SEEDS": "10.0.0.1:1"}, "did you mean CLUSTER_SEED"),
        ({"SAI_ROUTELOG": "1"}, "did you mean SAI_ROUTE_LOG"),
        ({"SAI_ROUTE_LOG": "maybe"}, "SAI_ROUTE_LOG .*0 or 1"),
        ({"NODE_NAME": "a b"}, "NODE_NAME .*letters"),
        ({"API_KEY": "a:"}, "API_KEY .*has a name and no key; write `name:key`"),
        ({"API_KEY": "a:x1,a:x2"}, "API_KEY .*same name"),
        ({"LANES": "-1"}, "LANES .*from 0"),
        ({"SPEED_FLOOR": "1.5"}, "SPEED_FLOOR .*share from 0 to 1"),
        ({"SPEED_FLOOR": "nan"}, "SPEED_FLOOR .*share from 0 to 1"),
        ({"WINDOW_FULL": "no thanks"}, "WINDOW_FULL .*0 or 1"),
        ({"DRAIN_S": "soon"}, "DRAIN_S .*seconds"),
        ({"KV_TYPE": "q5_1"}, "KV_TYPE .*f16, q8_0, q4_0"),
        ({"KV_TYPE": "q8_0", "FLASH_ATTENTION": "0"}, "KV_TYPE is q8_0 but FLASH_ATTENTION is 0: .*KV_TYPE=f16"),
        ({"KV_CELLS": "1000", "CONTEXT_TOKENS": "2000"}, "KV_CELLS is 1000, less than one conversation"),
        ({"NUMA": "mirror"}, "NUMA .*off, distribute, isolate, numactl"),
        ({"GPU_SPLIT": "rows"}, "GPU_SPLIT .*none, layer, row"),
        ({"TENSOR_SPLIT": "3,x"}, "TENSOR_SPLIT .*numbers such as 3,1"),
        ({"TENSOR_SPLIT": "0,0"}, "TENSOR_SPLIT .*not all 0"),
        ({"MLOCK": "2"}, "MLOCK .*0 or 1"),
        ({"KEEP_ALIVE_S": "-1"}, "KEEP_ALIVE_S .*seconds"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(environment: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        settings(environment)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"API_KEY": "short"}, "API_KEY has under 16"),
        ({"CLUSTER_SECRET": "short", "HOST": "127.0.0.1"}, "CLUSTER_SECRET has under 16"),
        ({"CLUSTER_ADVERTISE": "10.0.0.1:1"}, "stays a single box"),
        ({"API_KEYS": STRONG}, "API_KEYS is set but is no setting"),
        ({"MODEL": "4b"}, "MODEL is set but is no setting of this server; MODELS is"),
        ({"CLUSTER_PEERS": "10.0.0.1:1"}, "CLUSTER_PEERS is set but is no setting"),
        ({"TENSOR_SPLIT": "3,1"}, "do nothing while GPU_LAYERS is 0"),
        ({"LANES": "4", "SPEED_FLOOR": "0.5"}, "SPEED_FLOOR does nothing while LANES is set"),
    ],
)
def test_a_weak_or_idle_setting_draws_a_warning(environment: dict[str, str], words: str) -> None:
    assert any(re.search(words, warning) for warning in settings(environment).warnings)


def test_a_good_setup_draws_no_warning() -> None:
    assert (
        settings(
            {"API_KEY": STRONG, "CLUSTER_SECRET": OTHER, "HOST": "127.0.0.1", "PATH": "/bin", "HOSTS": "x"}
        ).warnings
        == ()
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot = 1", "did you mean PORT"),
        ("port = [", "cannot be read"),
        ("[port]\na = 1", "must be a text"),
        ("zzz = 1", "known are"),
        ("model = 3", "settings of one model as a table"),
        ('[model."4b"]\nkv_typ = "f16"', r'\[model."4b"\]: .kv_typ. is no setting: did you mean KV_TYPE'),
        ('[model."4b"]\nport = 1', r'\[model."4b"\]: .port. is no setting'),
        ('[model."4b"]\nlanes = 99', r'\[model."4b"\]: lanes must be from 0 to 64'),
    ],
)
def test_a_wrong_file_is_refused_with_its_name(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "saiserve.toml"
    file.write_text(text, "utf-8")
    with pytest.raises(SettingsError, match=f"saiserve.toml.*{words}"):
        settings({}, file)
    with pytest.raises(SettingsError, match="cannot be read"):
        settings({}, tmp_path / "none.toml")


def test_no_secret_appears_in_errors_or_representations() -> None:
    marker = "s3cr3t-marker-0123456789"
    for environment in ({"API_KEY": f"{marker}:"}, {"API_KEY": marker, "CLUSTER_SECRET": marker}):
        with pytest.raises(SettingsError) as refused:
            settings(environment)
        assert marker not in str(refused.value)
    node = settings({"API_KEY": marker, "CLUSTER_SECRET": OTHER, "HF_TOKEN": marker, "HOST": "127.0.0.1"})
    assert marker not in repr(node)
    assert OTHER not in repr(node)


def test_every_setting_has_a_field_a_flag_and_a_meaning() -> None:
    fields = set(config.Settings.__dataclass_fields__)
    for setting in SETTINGS:
        assert setting.field in fields
        assert setting.meaning
        assert setting.flag.startswith("--")
