def read(path, points=None, with_lines=True):
    """In place of the one above: reports of the fake profiler, a kernel for each range."""
    import json
    from pathlib import Path

    from ncuflow.model import KernelRow, LineRow
    from ncuflow.parsers.ncu import Report

    content = json.loads(Path(path).read_text(encoding="utf-8"))
    everything = "SourceCounters" in " ".join(content["words"])
    report = Report(file=str(path))
    for number, launched in enumerate(content["ranges"]):
        key = {"kernel": number, "point": launched["range"]}
        blank = dict.fromkeys(KernelRow.__annotations__)
        ns = 1e3 * launched["us"]
        row = {"name": "ToyKernel", "duration_ns": ns, "device": "NVIDIA H200", "registers": 32}
        report.kernels.append(blank | key | row | {"grid": "1,1,1", "nvtx": launched["range"]})
        values = {
            "duration_ns": ns,
            "inst_executed": 1e6,
            "sm_clock_hz": 1e9,
            "sm_count": 1.0,
            "warps_active_per_scheduler": 1.0,
            "warp_latency_per_issue": 4 * ns / 1e6,
        }
        for name, value in values.items():
            report.metrics.append({**key, "key": name, "metric": name, "value": value, "unit": ""})
        if everything:
            ratio = 4 * ns / 1e6
            stall = {"reason": "long_scoreboard", "kind": "stall", "ratio": ratio, "share": 1.0}
            report.stalls.append({**key, **stall, "samples": 9, "samples_not_issued": 9})
            place = {"file": "include/flashinfer/toy.cuh", "line": launched["line"], "pc": 0}
            sample = {"samples": 9, "reason": "long_scoreboard", "opcode": "LDG", "sass": "LDG R0"}
            report.lines.append(
                {**dict.fromkeys(LineRow.__annotations__), **key, **place, **sample}
            )
    return report
