"""What counters each chip has, by NVIDIA's library of them: docs and tests hold the registry against it.

It answers for every chip that it knows (`chips`) without a GPU: the structures are those of `nvperf_host.h` and
`nvperf_cuda_host.h`, which come with CUDA.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from functools import cache, cached_property
from typing import Any

from ncuflow.parsers.reader import counters_library

# By NVPW_MetricType: the name in a function's, and how wide the hardware unit is in what it fills.
KINDS = (("Counter", ctypes.c_uint32), ("RatioMetric", ctypes.c_uint64))
THROUGHPUT = 2
PROFILER = 1  # NVPA_ActivityKind: launches one by one, as ncu profiles them
_SIZE, _TEXT, _POINTER = ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p
_SIZES = ctypes.POINTER(_SIZE)


class _Request(ctypes.Structure):  # NVPW_MetricEvalRequest
    _fields_ = (
        ("index", _SIZE), ("kind", ctypes.c_uint8), ("rollup", ctypes.c_uint8), ("submetric", ctypes.c_uint16),
    )  # fmt: skip


class _Raw(ctypes.Structure):  # NVPW_RawCounterRequest
    _fields_ = (
        ("private", _POINTER), ("name", _TEXT), ("domain", ctypes.c_uint32), ("instances", ctypes.c_uint8),
    )  # fmt: skip


_REQUEST, _RAW = 12, 21  # bytes up to the end of the last field


class LibraryError(Exception):
    """The library refused a call; its name and status."""


def chips() -> list[str]:
    """The chips that the library knows, as ncu's --chips writes them."""
    found = _call("GetSupportedChipNames", names=(ctypes.POINTER(_TEXT), None), count=(_SIZE, 0))
    return [found.names[index].decode().lower() for index in range(found.count)]


class ChipCounters:
    """The counters of a chip, by ncu's name of it ("gb100"). Raises LibraryError for one that is not in the library."""

    def __init__(self, chip: str) -> None:
        self._name = chip.upper().encode()
        start = {"chip": (_TEXT, self._name), "availability": (_POINTER, None)}
        name = "CUDA_MetricsEvaluator_"
        size = _call(f"{name}CalculateScratchBufferSize", **start, size=(_SIZE, 0)).size
        self._scratch = ctypes.create_string_buffer(size)  # the evaluator lives in it
        place = {"scratch": (_POINTER, ctypes.addressof(self._scratch)), "size": (_SIZE, size)}
        data = {"data": (_POINTER, None), "data_size": (_SIZE, 0)}
        made = _call(f"{name}Initialize", **place, **start, **data, evaluator=(_POINTER, None))
        self._evaluator = made.evaluator

    @cached_property
    def names(self) -> frozenset[str]:
        """All counters, ratios and throughputs, without what stands behind a dot."""
        return frozenset(name for kind in range(THROUGHPUT + 1) for name in self._names(kind))

    def has(self, metric: str) -> bool:
        """Whether ncu's --metrics takes a name there, all of it: "dram__bytes.sum.per_second"."""
        try:
            self._request(metric)
        except LibraryError:
            return False
        return True

    def meaning(self, name: str) -> str:
        """What a counter or ratio counts."""
        found = self._ask(
            "GetMetricTypeAndIndex", name=(_TEXT, name.encode()), kind=(ctypes.c_uint8, 0), index=(_SIZE, 0)
        )  # fmt: skip
        kind, unit = KINDS[found.kind]
        about = self._ask(
            f"Get{kind}Properties", index=(_SIZE, found.index), meaning=(_TEXT, None), unit=(unit, 0)
        )  # fmt: skip
        return str(about.meaning.decode())

    def parts(self, throughput: str) -> set[str]:
        """The counters of whose utilisations a throughput is the largest, those of its own throughputs among them."""
        counters, throughputs = self._names(0), self._names(THROUGHPUT)
        found = self._ask(
            "GetThroughputMetricProperties", index=(_SIZE, throughputs.index(throughput)), meaning=(_TEXT, None),
            unit=(ctypes.c_uint32, 0), counters=(_SIZE, 0), which=(_SIZES, None), others=(_SIZE, 0), which_others=(_SIZES, None),
        )  # fmt: skip
        own = {counters[found.which[index]] for index in range(found.counters)}
        others = (throughputs[found.which_others[index]] for index in range(found.others))
        return own.union(*map(self.parts, others))

    def raw(self, metrics: Iterable[str]) -> list[str]:
        """The hardware's own counters that metrics are computed of, in the order of their names."""
        requests = [self._request(metric) for metric in metrics]
        array = (_Request * len(requests))(*requests)
        count, found = 0, (_TEXT * 0)()
        for _ in range(2):  # first how many, then which
            answer = self._ask(
                "GetMetricRawDependencies", requests=(_POINTER, ctypes.addressof(array)), count=(_SIZE, len(requests)),
                size=(_SIZE, _REQUEST), stride=(_SIZE, ctypes.sizeof(_Request)),
                raw=(_POINTER, ctypes.addressof(found) if count else None), raw_count=(_SIZE, count),
                optional=(_POINTER, None), optional_count=(_SIZE, 0),
            )  # fmt: skip
            if not count:
                count = answer.raw_count
                found = (_TEXT * count)()
        return sorted(name.decode() for name in found if name)

    def passes(self, metrics: Iterable[str]) -> int:
        """How often a launch has to be replayed to collect metrics, by the library's own scheduler.

        It takes counters one after the other: another order than that of their names may need a pass more or less.
        """
        raw = self.raw(metrics)
        made = _call(
            "CUDA_RawCounterConfig_Create", chip=(_TEXT, self._name), availability=(_POINTER, None),
            activity=(ctypes.c_uint32, PROFILER), config=(_POINTER, None),
        )  # fmt: skip
        config = {"config": (_POINTER, made.config)}
        try:
            return self._scheduled(config, raw)
        finally:
            _call("RawCounterConfig_Destroy", **config)

    def _scheduled(self, config: dict[str, Any], raw: list[str]) -> int:
        domains = "RawCounterConfig_GetAllAvailableRawCounterDomains"
        count = _call(domains, **config, count=(_SIZE, 0), domains=(_POINTER, None)).count
        found = (ctypes.c_uint32 * count)()
        given = {"count": (_SIZE, count), "domains": (_POINTER, ctypes.addressof(found))}
        _call(domains, **config, **given)
        requests = (_Raw * len(raw))(*(_Raw(None, name.encode(), 0, 1) for name in raw))
        _call("RawCounterConfig_BeginPassGroup", **config, **given)
        _call(
            "RawCounterConfig_AddRawCounters", **config, size=(_SIZE, _RAW), count=(_SIZE, len(raw)),
            requests=(_POINTER, ctypes.addressof(requests)),
        )  # fmt: skip
        _call("RawCounterConfig_EndPassGroup", **config, **given)
        return int(_call("RawCounterConfig_GetNumPasses", **config, passes=(_SIZE, 0)).passes)

    def _names(self, kind: int) -> list[str]:
        found = self._ask(
            "GetMetricNames", kind=(ctypes.c_uint8, kind), text=(_POINTER, None), starts=(_SIZES, None), count=(_SIZE, 0)
        )  # fmt: skip
        starts = (found.starts[index] for index in range(found.count))
        return [ctypes.string_at(found.text + start).decode() for start in starts]

    def _request(self, metric: str) -> _Request:
        made = _Request()
        self._ask(
            "ConvertMetricNameToMetricEvalRequest", name=(_TEXT, metric.encode()),
            request=(_POINTER, ctypes.addressof(made)), size=(_SIZE, _REQUEST),
        )  # fmt: skip
        return made

    def _ask(self, call: str, /, **fields: Any) -> Any:
        return _call(f"MetricsEvaluator_{call}", evaluator=(_POINTER, self._evaluator), **fields)


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(counters_library()))
    made = _parameters({})
    if status := library.NVPW_InitializeHost(ctypes.byref(made)):
        raise LibraryError(f"InitializeHost: status {status}")
    return library


def _call(function: str, /, **fields: tuple[type[Any], Any]) -> Any:
    """Call a function with its structure of parameters: what it has written is in that."""
    made = _parameters(fields)
    if status := getattr(_library(), f"NVPW_{function}")(ctypes.byref(made)):
        raise LibraryError(f"{function}: status {status}")
    return made


def _parameters(fields: Mapping[str, tuple[type[Any], Any]]) -> Any:
    """The structure that a function takes: its size up to the end of the last field, a pointer that is null, the fields."""
    layout = [("size_", _SIZE), ("private_", _POINTER), *((n, kind) for n, (kind, _) in fields.items())]  # fmt: skip
    kind = type("Parameters", (ctypes.Structure,), {"_fields_": layout})
    last = getattr(kind, layout[-1][0])
    return kind(last.offset + last.size, None, *(value for _, value in fields.values()))
