"""A machine as bytes and back. The keyring and the settings stay outside; code in the bytes cannot run.

Pickle alone would run anything a file says. Here only classes of the protocol's own modules and a short list of
plain containers are made, and bound methods (the callbacks of timers) are looked up on such objects alone.
"""

from __future__ import annotations

import io
import pickle
import types
from collections.abc import Callable
from typing import Any, Final, cast

from swimcluster.config import Config
from swimcluster.errors import DecodeError
from swimcluster.keyring import Keyring
from swimcluster.swim import Swim

OUTSIDE: Final = frozenset(
    {
        "swimcluster." + name
        for name in [
            "advertise",
            "arguments",
            "boot_clock",
            "checkpoint",
            "cluster",
            "driver",
            "dump_file",
            "event_log",
            "line_budget",
            "nursery",
            "prometheus_text",
            "recorder",
            "rendezvous",
            "replay",
            "resigning",
            "rotation",
            "session",
            "snapshot",
            "state_file",
            "subscription",
            "thread_face",
            "threaded",
            "trio_thread",
        ]
    }
)
"""Modules that are no part of the machine: nothing of theirs belongs into a checkpoint."""
PLAIN: Final = frozenset(
    {
        ("builtins", "set"),
        ("builtins", "frozenset"),
        ("builtins", "bytearray"),
        ("collections", "deque"),
        ("collections", "OrderedDict"),
        ("random", "Random"),
    }
)
KEYRING: Final = "keyring"
CONFIG: Final = "config"
OBSERVER: Final = "observer"


def save_checkpoint(machine: Swim) -> bytes:
    """Return the machine's state without its keyring and settings."""
    buffer = io.BytesIO()
    _Saver(buffer, protocol=5).dump(machine)
    return buffer.getvalue()


def load_checkpoint(data: bytes, config: Config, keyring: Keyring) -> Swim:
    """Return a machine in the saved state with this keyring and these settings.

    Raises:
        DecodeError: the bytes name anything that is no part of a machine, or are damaged.
    """
    try:
        machine = _Loader(io.BytesIO(data), config, keyring).load()
    except Exception as error:  # pickle raises anything on damaged bytes
        raise DecodeError(f"the checkpoint cannot be read: {error}") from error
    if not isinstance(machine, Swim):
        raise DecodeError("the checkpoint is not a machine")
    return machine


def bound_method(owner: object, name: str) -> Callable[..., object]:
    """Return a method of one of the machine's parts; what timers call."""
    function = vars(type(owner)).get(name)
    if not is_machine_module(type(owner).__module__) or not isinstance(function, types.FunctionType):
        raise pickle.UnpicklingError(f"{type(owner).__name__}.{name} is no method of a machine")
    return types.MethodType(function, owner)


def is_machine_module(module: str) -> bool:
    """Whether a module is a part of the sans-I/O machine."""
    is_own = module.startswith("swimcluster.") and module.count(".") == 1
    return is_own and module not in OUTSIDE


def _is_observer(obj: object) -> bool:
    """Whether a callable is none of the machine's own: something the program attached, and no part of the state."""
    if isinstance(obj, types.MethodType):
        return not is_machine_module(type(obj.__self__).__module__)
    return isinstance(obj, types.FunctionType) and obj is not bound_method and obj.__module__ != "copyreg"


class _Saver(pickle.Pickler):
    def persistent_id(self, obj: object) -> str | None:
        if isinstance(obj, Keyring):
            return KEYRING
        if isinstance(obj, Config):
            return CONFIG
        return OBSERVER if _is_observer(obj) else None

    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, types.MethodType):
            return bound_method, (obj.__self__, obj.__func__.__name__)
        return NotImplemented


class _Loader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, config: Config, keyring: Keyring) -> None:
        super().__init__(file)
        self._outside = {KEYRING: keyring, CONFIG: config, OBSERVER: None}

    def persistent_load(self, pid: object) -> object:
        return self._outside[cast("str", pid)]

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (bound_method.__module__, bound_method.__name__):
            return bound_method
        if (module, name) in PLAIN or (is_machine_module(module) and "." not in name):
            found = super().find_class(module, name)
            if isinstance(found, type):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a machine")
