"""A kernel target that needs no GPU, with constants in its source that may be others, and a setting."""

from ncuflow.target.contract import Target, Work
from ncuflow.target.launch import Launch
from ncuflow.target.source import Build, Constant, Source, Tunable

HEADER = "data/include/flashinfer/toy.cuh"


def prepare(p, seed=0):
    import flashinfer

    library, given, found = flashinfer.load("toy"), float(p["n"] + seed), []
    scale = 0.99 if p["graph"] else 1.0

    def run():
        found[:] = [flashinfer.twice(library, given)]
        return library.microseconds() * scale

    return Launch(
        run=run,
        output=lambda: tuple(found),
        reference=lambda: (2 * given,),
        tolerance=1e-3,
        buffers=lambda: (),
    )


def modules(p):
    import flashinfer

    return [flashinfer.spec("toy")]


TARGET = Target(
    name="tuned",
    title="Tuned",
    parameters={"n": 3, "graph": False},
    choices={"graph": (False, True)},
    free=lambda p: {"graph": False},
    id=lambda p: f"n{p['n']}{'_graph' * p['graph']}",
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
    build=Build(generate=modules),
)
