"""Kill a run at a random moment, start it again, and compare what it made with an undisturbed run, byte for byte.

    python benchmarks/interruptions.py --times 60 --target merge_state

Half of the runs start on nothing, half over finished outputs that are being made anew. All processes of a run
are killed at once (SIGKILL); then come `--unlock` and the same command again. Exit status 1 where bytes differ.
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

    def finish(self, *options: str) -> None:
        """Run to the end. Raises RuntimeError, with what was said, where that fails."""
        process = self.start(*options)
        said = process.communicate()[1].decode()
        if process.returncode:
            raise RuntimeError(said)

    def kill_after(self, seconds: float, *options: str) -> bool:
        """Start, kill, and tell whether there was still something to kill."""
        process = self.start(*options)
        time.sleep(seconds)
        alive = process.poll() is None
        if alive:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return alive

    def made(self) -> dict[str, bytes]:
        """Content of everything that a run makes but logs and notes."""
        (outputs,) = (self.folder / "outputs").glob("recorded-*")
        files = {str(p.relative_to(outputs)): p for p in outputs.rglob("*") if p.is_file()}
        return {n: p.read_bytes() for n, p in files.items() if not n.startswith(NOT_COMPARED)}

    def clear(self) -> None:
        for name in ("outputs", ".snakemake"):
            shutil.rmtree(self.folder / name, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=60)
    parser.add_argument("--target", default="merge_state")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    chance, differ, killed = random.Random(args.seed), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder), args.target)
        begun = time.monotonic()
        runs.finish()
        took, whole = time.monotonic() - begun, runs.made()
        for number in range(args.times):
            fresh = number % 2 == 0
            if fresh:
                runs.clear()
            moment = chance.uniform(0.1, 1.0) * took
            killed += runs.kill_after(moment, *([] if fresh else ["-R", "tables", "findings"]))
            runs.finish("--unlock")
            runs.finish()
            if runs.made() != whole:
                differ += 1
                print(
                    f"differs: {number}, killed after {moment:.2f} s, {'fresh' if fresh else 'over'}"
                )
    print(
        f"{args.times} runs of {args.target} ({took:.1f} s undisturbed), {killed} of them killed: {differ} differ"
    )
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
