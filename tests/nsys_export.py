"""Exports of nsys that are none, of every shape that real ones come in."""

from __future__ import annotations

import sqlite3
from pathlib import Path

PID = 281525711011840
THREAD = PID + 3024
NAMES = {
    1: "cudaLaunchKernel_v7000", 2: "DecodeKernel", 3: "void DecodeKernel<128>(float*)",
    4: "cudaMemcpyAsync_v3020", 5: "cudaGraphLaunch_v10000", 6: "decode/B1", 7: "MergeKernel",
}  # fmt: skip

KERNEL = ("start end deviceId contextId streamId correlationId globalPid demangledName shortName "
          "gridX gridY gridZ blockX blockY blockZ graphNodeId")  # fmt: skip
CUPTI = "CUPTI_ACTIVITY_KIND_"
TABLES = {
    "StringIds": "id value",
    CUPTI + "KERNEL": KERNEL,
    CUPTI + "RUNTIME": "start end eventClass globalTid correlationId nameId returnValue",
    CUPTI + "MEMCPY": "start end deviceId streamId correlationId globalPid bytes copyKind",
    CUPTI + "MEMSET": "start end deviceId streamId correlationId globalPid bytes",
    CUPTI + "GRAPH_TRACE": "start end deviceId streamId correlationId globalPid graphId",
    "NVTX_EVENTS": "start end eventType text textId globalTid",
    "TARGET_INFO_GPU": "id cuDevice name",
    "META_DATA_EXPORT": "name value",
    "DIAGNOSTIC_EVENT": "severity text",
    "ANALYSIS_DETAILS": "duration",
}
KIND = {name.rpartition("_KIND_")[2]: name for name in TABLES}


class Export:
    """Builds an export with only the tables and columns that rows were given for."""

    def __init__(self) -> None:
        self.rows = {"StringIds": [{"id": k, "value": v} for k, v in NAMES.items()]}

    def add(self, table: str, **values) -> Export:
        self.rows.setdefault(KIND.get(table, table), []).append(values)
        return self

    def kernel(self, start, end, correlation, name=2, **more) -> Export:
        shape = {"gridX": 8, "gridY": 1, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1}
        return self.add(
            "KERNEL", start=start, end=end, correlationId=correlation, shortName=name,
            **({"demangledName": 3, "deviceId": 0, "streamId": 7, "globalPid": PID} | shape | more),
        )  # fmt: skip

    def call(self, start, end, correlation, name=1, thread=THREAD) -> Export:
        return self.add(
            "RUNTIME",
            start=start,
            end=end,
            correlationId=correlation,
            nameId=name,
            globalTid=thread,
        )

    def range(self, start, end, text, kind=59, thread=THREAD, **more) -> Export:
        return self.add(
            "NVTX_EVENTS", start=start, end=end, eventType=kind, text=text, globalTid=thread, **more
        )

    def write(self, path: Path, drop: tuple[str, ...] = ()) -> Path:
        with sqlite3.connect(path) as db:
            for table, rows in self.rows.items():
                columns = [c for c in TABLES.get(table, "name value").split() if c not in drop]
                db.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
                marks = ", ".join("?" * len(columns))
                values = [[row.get(c) for c in columns] for row in rows]
                db.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
        db.close()
        return path
