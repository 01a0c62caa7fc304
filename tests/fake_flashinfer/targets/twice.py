"""A kernel target that needs no GPU: twice its input, by the module that its point names."""

from ncuflow.target.contract import Target, Work
from ncuflow.target.launch import Launch
from ncuflow.target.source import Build


def prepare(p, seed=0):
    import flashinfer

    library, given, found = flashinfer.load(p["module"]), float(p["n"] + seed), []

    def run():
        found[:] = [flashinfer.twice(library, given)]
        return library.microseconds()

    return Launch(
        run=run,
        output=lambda: tuple(found),
        reference=lambda: (2 * given,),
        tolerance=1e-3,
        buffers=lambda: (),
    )


def modules(p):
    import flashinfer

    return [flashinfer.spec(p["module"])]


TARGET = Target(
    name="twice",
    title="Twice",
    parameters={"n": 3, "module": "toy"},
    choices={"module": ("toy", "plain")},
    id="{module}_n{n}",
    work=lambda p: Work(1, 1, "none"),
    edges=lambda p: [{"n": 1}],
    prepare=prepare,
    build=Build(generate=modules),
)
