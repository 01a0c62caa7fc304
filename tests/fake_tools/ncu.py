"""Runs the program, then writes a report of the points it traced; "hang-ncu" keeps it from ending."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from benchmarks import reports  # noqa: E402

RECORDED = next((ROOT / "recordings/h200/0.7.2/default").glob("*/b*/sweep.ncu-rep.xz"))
if "--version" in sys.argv:
    print("Version 2025.3.1.0 (build 36398880)")
    sys.exit()
words = sys.argv[1:]
program = words[words.index("-o") + 2 :]
report = Path(words[words.index("-o") + 1] + ".ncu-rep")
plan = Path(os.environ["NCUFLOW_TEST_PLAN"])
if "-c" in program:  # the preflight's
    if not (plan / "unfit-ncu").exists():
        report.write_bytes(reports.of_points(RECORDED, ["tiny"]))
    sys.exit()
if (plan / "refuse-ncu").exists():
    print("==ERROR== ERR_NVGPUCTRPERM")
    sys.exit(1)
while Path(program[0]).parent != Path(sys.executable).parent:
    program.pop(0)
subprocess.run(program, check=False)
records = Path(program[program.index("--out") + 1]).read_text(encoding="utf-8").splitlines()
done = [json.loads(line)["point"] for line in records if json.loads(line)["status"] == "ok"]
hang = plan / "hang-ncu"
if hang.exists():
    done = done[:1]
report.write_bytes(reports.of_points(RECORDED, done))
if hang.exists():
    if hang.read_text() == "once":
        hang.unlink()
    while True:
        time.sleep(60)
