"""A kernel target that needs no GPU, with constants in its source that may be others, and a setting."""

from dataclasses import replace

from ncuflow.target.contract import Target, Work
from ncuflow.target.source import Build, Constant, Source, Tunable
from ncuflow.targets import twice

HEADER = "data/include/flashinfer/toy.cuh"
FREE = 5  # the n with which a caller chooses the module, of which one has no source


def prepare(p, seed=0):
    launch = twice.prepare(p, seed)
    scale = 0.99 if p["graph"] else 1.0
    return replace(launch, run=lambda: launch.run() * scale)


TARGET = Target(
    name="tuned",
    title="Tuned",
    parameters={"n": 3, "module": "toy", "graph": False},
    choices={"module": ("toy", "plain", "absent"), "graph": (False, True)},
    free=lambda p: {"graph": False} | ({"module": "toy"} if p["n"] == FREE else {}),
    id=lambda p: f"{p['module'].replace('toy', '')}n{p['n']}{'_graph' * p['graph']}",
    work=lambda p: Work(1, 1, "none"),
    edges=lambda p: [{"n": 1}],
    prepare=prepare,
    source=Source(
        tunables=(
            Tunable("us", (Constant(HEADER, "microseconds", r"return (\d+)\.0"),), (110, 95, 100)),
            Tunable("factor", (Constant(HEADER, "result", r"return (\d+)\.0"),), (3,)),
            Tunable("asserted", (Constant(HEADER, "", r"static_assert\(1 == (\d+)"),), (2,)),
            Tunable("gone", (Constant(HEADER, "", r"stages = (\d+)"),), (4, 8)),
            Tunable("large", (Constant(HEADER, "result", r"(\d+)\.0"),), (5,), where="n > 100"),
        )
    ),
    build=Build(generate=twice.modules),
)
