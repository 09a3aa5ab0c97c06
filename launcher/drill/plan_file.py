"""Plans as people write them: a file of YAML (where PyYAML is installed) or JSON, or one fault on a command line.

::

    seed: 7                # for what is left to chance below
    margin: 250ms          # added to every detection budget, for a busy machine
    recover: 5s            # recovery budget of faults that have none of their own
    faults:
      - {kind: kill, rank: 1, step: 70}
      - {kind: [stop, exception], rank: random, after_steps: 30..60, detect: 3s, recover: 10s}
      - {kind: etcd-stop, after: 2s, for: 3s}

and on a command line ``kill:rank=1,step=70``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftlaunch.launcher.cli import values
from ftlaunch.launcher.drill.plan import MAX_FAULTS, RANDOM, Fault, Kind, Plan, PlanError, Range, require_sense

_MAX_BYTES = 1 << 20
_RANGE = re.compile(r"(\d{1,15})\.\.(\d{1,15})", re.ASCII)
_KEYS = ("kind", "id", "rank", "node", "step", "after_steps", "after", "every", "times", "for", "detect", "recover")
_SETTINGS = ("faults", "seed", "margin", "recover")
_HOLD_S = {Kind.NET_CUT: 10.0, Kind.ETCD_STOP: 3.0}


def load(path: str) -> Plan:
    """Read a plan. Raises :class:`PlanError`."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise PlanError(f"cannot read the plan {path}: {error.strerror}") from None
    if len(data) > _MAX_BYTES:
        raise PlanError(f"{path}: a plan has at most {_MAX_BYTES >> 20} MiB")
    try:
        return parse(_decode(data.decode("utf-8"), strictly_json=Path(path).suffix == ".json"))
    except UnicodeDecodeError:
        raise PlanError(f"{path}: not a text in UTF-8") from None
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from None


def _decode(text: str, strictly_json: bool) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if strictly_json:
            raise PlanError(f"not JSON: {error}") from None
    try:
        import yaml  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise PlanError("reading YAML needs PyYAML (pip install pyyaml); or write the plan as JSON") from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise PlanError(f"not YAML: {' '.join(str(error).split())}") from None


def parse(shape: Any) -> Plan:
    """From what JSON or YAML gave: an object with ``faults``, or just their list. Raises :class:`PlanError`."""
    if isinstance(shape, list):
        shape = {"faults": shape}
    if not isinstance(shape, Mapping):
        raise PlanError("a plan is a list of faults, or an object with that list as faults")
    _refuse_unknown(shape, _SETTINGS)
    faults = shape.get("faults")
    if not isinstance(faults, list) or not faults:
        raise PlanError("faults must be a list with at least one fault")
    if len(faults) > MAX_FAULTS:
        raise PlanError(f"{len(faults)} faults, at most {MAX_FAULTS} are allowed")
    return Plan(
        tuple(fault_from(each, f"fault {number}") for number, each in enumerate(faults, start=1)),
        None if shape.get("seed") is None else _whole("seed", shape["seed"], 0),
        _duration_or_none("margin", shape.get("margin")),
        _duration_or_none("recover", shape.get("recover")),
    )


def parse_text(text: str) -> Fault:
    """``kill:rank=1,step=70``, the same keys as in a plan. Raises :class:`PlanError`."""
    kind, _, rest = text.partition(":")
    shape: dict[str, str] = {"kind": kind.strip()}
    for item in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = item.partition("=")
        if not equals:
            raise PlanError(f"fault {values.show(text)}: {values.show(item)} is not KEY=VALUE")
        shape[key.strip()] = value.strip()
    return fault_from(shape, f"fault {values.show(text)}")


def fault_from(shape: Any, where: str = "fault") -> Fault:
    """One fault from an object. Raises :class:`PlanError` that begins with ``where``."""
    try:
        if not isinstance(shape, Mapping):
            raise PlanError("must be an object such as {kind: kill, rank: 1, step: 70}")
        fault = _read({str(key).replace("-", "_"): value for key, value in shape.items()})
        require_sense(fault)
        return fault
    except PlanError as error:
        raise PlanError(f"{where}: {error}") from None


def kind_from(text: str) -> Kind:
    """A kind by its name. Raises :class:`PlanError`."""
    try:
        return Kind(text.strip().replace("_", "-"))
    except ValueError:
        known = ", ".join(kind.value for kind in Kind)
        raise PlanError(f"{values.show(text)} is no kind of fault; known are {known}") from None


def range_from(name: str, text: str) -> Range:
    """``20..60``, or one number. Raises :class:`PlanError`."""
    found = _number_or_range(name, text)
    return found if isinstance(found, Range) else Range(found or 0, found or 0)


def _read(shape: Mapping[str, Any]) -> Fault:
    if "at_step" in shape:
        shape = {"step": shape["at_step"], **{key: value for key, value in shape.items() if key != "at_step"}}
    _refuse_unknown(shape, _KEYS)
    kinds = _kinds(shape.get("kind", ""))
    rank, hold = shape.get("rank"), shape.get("for")
    return Fault(
        kind=kinds[0],
        one_of=kinds if len(kinds) > 1 else (),
        id=str(shape.get("id") or "")[:40],
        rank=RANDOM if rank == RANDOM else None if rank is None else _whole("rank", rank, 0),
        node=None if shape.get("node") is None else _whole("node", shape["node"], 0),
        at_step=_number_or_range("step", shape.get("step")),
        after_steps=_number_or_range("after_steps", shape.get("after_steps")),
        after_s=_duration_or_none("after", shape.get("after")),
        every_s=_duration_or_none("every", shape.get("every")),
        times=_whole("times", shape.get("times", 1), 1),
        hold_s=_HOLD_S.get(kinds[0], 0.0) if hold is None else _duration("for", hold),
        detect_s=_duration_or_none("detect", shape.get("detect")),
        recover_s=_duration_or_none("recover", shape.get("recover")),
    )


def _kinds(value: Any) -> tuple[Kind, ...]:
    names = value if isinstance(value, list) and value else [value]
    return tuple(kind_from(str(name)) for name in names)


def _refuse_unknown(shape: Mapping[Any, Any], known: tuple[str, ...]) -> None:
    for key in shape:
        if key not in known:
            raise PlanError(f"unknown key {values.show(str(key))}; known are {', '.join(known)}")


def _whole(name: str, value: Any, least: int) -> int:
    try:
        return values.whole(least)("" if isinstance(value, bool) else str(value))
    except ValueError as error:
        raise PlanError(f"{name} {error}, not {values.show(str(value))}") from None


def _number_or_range(name: str, value: Any) -> int | Range | None:
    if value is None:
        return None
    match = _RANGE.fullmatch(str(value).strip())
    if match is None:
        return _whole(name, value, 0)
    least, most = int(match[1]), int(match[2])
    if least > most:
        raise PlanError(f"{name} {least}..{most} is empty: the smaller number comes first")
    return Range(least, most)


def _duration(name: str, value: Any) -> float:
    try:
        return values.duration(str(value))
    except ValueError as error:
        raise PlanError(f"{name} {error}, not {values.show(str(value))}") from None


def _duration_or_none(name: str, value: Any) -> float | None:
    return None if value is None else _duration(name, value)
