"""Kill a run at a random moment, start it again, and compare what it made with an undisturbed run, byte for byte.

    python benchmarks/interruptions.py --times 60 --target merge_state

Half of the runs start on nothing, half over finished outputs that are being made anew. All processes of a run
are killed at once (SIGKILL); then comes the same command again, with nothing in between. Exit status 1 where that
fails or bytes differ.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOT_COMPARED = ("logs/", "made.json")
OVER = ("-R", "tables", "findings")


class Runs:
    """Runs of a target in a folder of their own."""

    def __init__(self, folder: Path, target: str) -> None:
        self.folder, self.target = folder, target

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ncuflow", "run", self.target, "--", "-j2", *options]
        return subprocess.Popen(
            [*command, "--config", "source=recorded"], cwd=self.folder, start_new_session=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

    def finish(self, *options: str) -> float:
        """Run to the end, and tell the seconds that it took. Raises RuntimeError, with what was said, where that fails."""
        begun = time.monotonic()
        process = self.start(*options)
        said = process.communicate()[1].decode()
        if process.returncode:
            raise RuntimeError(said)
        return time.monotonic() - begun

    def kill_after(self, seconds: float, *options: str) -> bool:
        """Start, kill, and tell whether there was still something to kill."""
        process = self.start(*options)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return process.returncode == -signal.SIGKILL

    def made(self) -> dict[str, bytes]:
        """Content of everything that a run makes but logs and notes."""
        (outputs,) = (self.folder / "outputs").glob("recorded-*")
        files = {str(p.relative_to(outputs)): p for p in outputs.rglob("*") if p.is_file()}
        return {n: p.read_bytes() for n, p in files.items() if not n.startswith(NOT_COMPARED)}

    def clear(self) -> None:
        for name in ("outputs", ".snakemake"):
            shutil.rmtree(self.folder / name, ignore_errors=True)


def healed(runs: Runs, whole: dict[str, bytes]) -> str | None:
    """Run the same command again, and tell what is not as in an undisturbed run."""
    try:
        runs.finish()
    except RuntimeError as error:
        return str(error)
    made = runs.made()
    names = sorted(name for name in whole.keys() | made.keys() if whole.get(name) != made.get(name))
    return f"differ: {', '.join(names)}" if names else None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=60)
    parser.add_argument("--target", default="merge_state")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    chance, bad, begun = random.Random(args.seed), 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder), args.target)
        took = {"fresh": runs.finish(), "over": runs.finish(*OVER)}
        whole = runs.made()
        for number in range(args.times):
            way = ("fresh", "over")[number % 2]
            killed = False
            while not killed:
                if way == "fresh":
                    runs.clear()
                moment = chance.uniform(0.0, 1.0) * took[way]
                killed = runs.kill_after(moment, *(OVER if way == "over" else ()))
            wrong = healed(runs, whole)
            bad += wrong is not None
            print(f"{number} {way}, killed after {moment:.2f} s: {wrong or 'healed'}", flush=True)
    print(
        f"{args.times} runs of {args.target} killed ({took['fresh']:.1f} s undisturbed, {took['over']:.1f} s over finished"
        f" outputs): {args.times - bad} healed, {bad} not; {time.monotonic() - begun:.0f} s, load {os.getloadavg()[2]:.1f}"
    )
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
