"""A kernel target that needs no GPU."""

from ncuflow.target.contract import Target, Work
from ncuflow.target.launch import Launch
from ncuflow.target.source import Build
from ncuflow.targets import plans


def prepare(p, seed=0):
    def run():
        plans.follow(TARGET.point_id(p))

    output = ["wrong"] if plans.planned("wrong", TARGET.point_id(p)) else []
    return Launch(
        run=run, output=lambda: tuple(output), reference=tuple, tolerance=0.5, buffers=tuple
    )


TARGET = Target(
    name="toy",
    title="Toy",
    parameters={"n": 1, "dtype": "f16"},
    choices={"dtype": ("f16",)},
    id="n{n}",
    work=lambda p: Work(1000 * p["n"], 1000 * p["n"], "toy"),
    prepare=prepare,
    build=Build(generate=lambda p: []),
)
