import json
import os
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from ncuflow.run import timing
from ncuflow.run.timing import Burst

timing.call_times = lambda device, run, n: [(run() or 1.0) / 5] * n


def plan_times(device, plan, n):
    """What it took, where it slept: else what is no time of this host's."""
    start = perf_counter()
    plan()
    took = (perf_counter() - start) * 1e6
    return [took if took > 10_000 else 50.0] * n


timing.plan_times = plan_times


class Gpu:
    """In place of the one above: a launch takes the time that it says, a little more or less."""

    def __init__(self):
        import random

        self.random = random.Random(0)

    def facts(self):
        return {"name": "NVIDIA H200", "compute_capability": "9.0", "memory_bytes": 1 << 37}

    def driver(self):
        return "580.159.04"

    def synchronize(self):
        pass

    def alive(self):
        return True

    def release(self):
        pass

    def poison(self, launch):
        pass

    def written(self, launch):
        return True

    def settle(self):
        pass

    def on_side_stream(self, launch):
        launch.run()
        return launch.output()

    def differences(self, outputs, expected):
        return [(abs(o - e) / abs(e), abs(o - e)) for o, e in zip(outputs, expected, strict=True)]

    def worst(self, outputs, expected):
        return {"output": 0, "index": [0], "got": outputs[0], "expected": expected[0]}

    def kernels(self, run):
        run()
        return ["ToyKernel"]

    def cold(self, run, n):
        return Burst([run() * self.random.gauss(1, 0.001) for _ in range(n)], True, None)

    def begin(self):
        pass

    def peak_memory(self):
        return 0

    @contextmanager
    def profiled(self):
        yield

    @contextmanager
    def range(self, name):
        """A line of the fake profiler's log: the range, and what a launch of this side's library takes."""
        yield
        import flashinfer

        package = Path(flashinfer.__file__).parent
        lines = (package / "data/include/flashinfer/toy.cuh").read_text().splitlines()
        line = next(i for i, text in enumerate(lines, 1) if "return 1" in text)
        entry = {"range": name, "us": flashinfer.load("toy").microseconds(), "line": line}
        with Path(os.environ["NCUFLOW_TEST_RANGES"]).open("a", encoding="utf-8") as log:
            log.write(json.dumps(entry) + "\n")
