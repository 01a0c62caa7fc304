"""timing.jsonl, one record a point → rows of the timing table."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ncuflow.io import BadInput, opened

Row = dict[str, Any]
STATUSES = ("ok", "wrong", "skipped", "error", "lost")
KINDS = ("cold", "hot", "host", "plan")


def read(path: str | Path, name: str | None = None) -> list[Row]:
    """Rows of a file, plain or `.xz`; a later record of a point replaces an earlier one.

    Raises BadInput, with the line number, on a line that is no record.
    """
    called = name or str(path)
    with opened(path) as plain:
        text = plain.read_bytes().decode("utf-8", "replace")
    rows: dict[str, Row] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                row = flatten(_record(line))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise BadInput(called, f"line {number}: no timing record ({_why(error)})") from None
            rows[row["point"]] = row
    return list(rows.values())


def _record(line: str) -> Row:
    record = json.loads(line, parse_constant=_no_constant)
    if not isinstance(record, dict):
        raise ValueError("not an object")
    return record


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _why(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing"
    return str(error).splitlines()[0]


def flatten(record: Row) -> Row:
    """One record as a flat row. ValueError, TypeError or KeyError where it is none."""
    status = record["status"]
    if status not in STATUSES:
        raise ValueError(f"status {status!r} is none of {', '.join(STATUSES)}")
    timing = record.get("timing") or {}
    row: Row = {
        "point": _string(record, "point"),
        "target": _string(record, "target"),
        "params": json.dumps(record.get("params") or {}, allow_nan=False),
        "status": status,
        "reason": record.get("reason"),
        "info": json.dumps(record.get("info") or {}, allow_nan=False),
        "peak_memory_bytes": _whole(record.get("peak_memory_bytes")),
    }
    for kind in KINDS:
        row |= _times(kind, timing.get(kind))
    return row | _check(record) | _work(record) | _clocks(record.get("clocks"))


def _string(record: Row, name: str) -> str:
    if not isinstance(record[name], str) or not record[name]:
        raise ValueError(f"{name} is no text")
    return str(record[name])


def _times(kind: str, value: Row | None) -> Row:
    if value is None:
        return {}
    if value.get("unit") != "us":
        raise ValueError(f"{kind} is in {value.get('unit')!r}, not us")
    row: Row = {
        f"{kind}_us": _number(value.get("median")),
        f"{kind}_q25_us": _number(value.get("q25")),
        f"{kind}_q75_us": _number(value.get("q75")),
        f"{kind}_n": _whole(value.get("n")),
    }
    samples = value.get("samples")
    row[f"{kind}_samples_us"] = None if samples is None else [_number(s) for s in samples]
    return row


def _check(record: Row) -> Row:
    check = record.get("check") or {}
    return {
        f"check_{name}": _number(check.get(name)) for name in ("rel_l2", "max_abs", "tolerance")
    }


def _work(record: Row) -> Row:
    work = record.get("work") or {}
    return {
        "flops": _whole(work.get("flops")),
        "bytes": _whole(work.get("bytes")),
        "convention": work.get("convention"),
    }


def _clocks(clocks: Row | None) -> Row:
    if not clocks:
        return {}
    row: Row = {"retakes": _whole(clocks.get("retakes"))}
    reasons: list[str] = []
    for when in ("before", "after"):
        state = clocks.get(when) or {}
        row[f"sm_mhz_{when}"] = _number(state.get("sm_mhz"))
        row[f"mem_mhz_{when}"] = _number(state.get("mem_mhz"))
        reasons += state.get("throttle") or []
    row["throttled"] = bool(reasons)
    row["throttle_reasons"] = "; ".join(dict.fromkeys(map(str, reasons))) or None
    return row


def _number(value: Any) -> float | None:
    """A finite number or null; a number that is none is an error, not a hole."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _whole(value: Any) -> int | None:
    number = _number(value)
    if number is None:
        return None
    if not number.is_integer():
        raise ValueError(f"{value!r} is no whole number")
    return int(value)
