"""The etcd client library, loaded only when this backend is chosen: an agent without it needs no gRPC."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from ftlaunch.rendezvous.interface import SettingsError

_NEEDED = {"protobuf": ("google.protobuf", (5, 27)), "grpcio": ("grpc", (1, 66))}
_ADVICE = "pip install 'ftlaunch[etcd]', or: pip install etcd-sdk-python 'protobuf>=5.27'"


@dataclass(frozen=True)
class Library:
    """gRPC for asyncio, etcd's messages and etcd's stubs."""

    grpc: Any
    aio: Any
    rpc: Any
    stubs: Any


def load() -> Library:
    """Import what is needed (about 60 ms). Raises :class:`SettingsError` with what to install."""
    for package, (module, least) in _NEEDED.items():
        _check_version(package, module, least)
    try:
        return Library(
            grpc=importlib.import_module("grpc"),
            aio=importlib.import_module("grpc.aio"),
            rpc=importlib.import_module("pyetcd.etcdrpc.rpc_pb2"),
            stubs=importlib.import_module("pyetcd.etcdrpc.rpc_pb2_grpc"),
        )
    except (ImportError, RuntimeError, TypeError, AttributeError) as error:
        raise SettingsError(f"the etcd client library cannot be used ({error}): {_ADVICE}") from None


def _check_version(package: str, module: str, least: tuple[int, int]) -> None:
    try:
        version = str(getattr(importlib.import_module(module), "__version__", "0"))
    except ImportError:
        raise SettingsError(f"--rdzv-backend etcd needs the Python package {package}: {_ADVICE}") from None
    numbers = tuple(int(part) if part.isdigit() else 0 for part in version.split(".")[:2])
    if numbers < least:
        wanted = ".".join(map(str, least))
        raise SettingsError(f"--rdzv-backend etcd needs {package} >= {wanted}, installed is {version}: {_ADVICE}")
