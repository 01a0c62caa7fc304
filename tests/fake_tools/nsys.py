"""Runs the program, and exports a kernel for each launch of a point in a range; its report is their names."""

import json
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS)]
from nsys_export import Export  # noqa: E402

words = sys.argv[1:]
if "--version" in words:
    print("NVIDIA Nsight Systems version 2024.2.3.38-242334140272v0")
elif words[0] == "export":
    (out,) = (word.split("=")[1] for word in words if word.startswith("--output="))
    if Path(os.environ["NCUFLOW_TEST_PLAN"], "unfit-nsys").exists():
        print(
            "Processing events...\n[1/1] [====40%           ] report.sqlite\nImporter error status: 3"
        )
        sys.exit(1)
    made = Export()
    for n, point in enumerate(json.loads(Path(words[-1]).read_text(encoding="utf-8"))):
        at = 1000 * (n + 1)
        made.range(at, at + 100, point).call(at + 10, at + 20, n + 1).kernel(
            at + 30, at + 40, n + 1
        )
    made.write(Path(out))
elif "-c" in words:  # the preflight's
    Path(words[words.index("-o") + 1] + ".nsys-rep").write_text(
        json.dumps(["tiny"]), encoding="utf-8"
    )
else:
    program = words[words.index("-o") + 2 :]
    while Path(program[0]).parent != Path(sys.executable).parent:
        program.pop(0)
    ended = subprocess.run(program, check=False)
    out = Path(program[program.index("--out") + 1])
    records = out if out.exists() else out.with_name(out.name + ".partial")
    said = [json.loads(line) for line in records.read_text().splitlines()]
    done = [record["point"] for record in said if record["status"] == "ok"]
    Path(words[words.index("-o") + 1] + ".nsys-rep").write_text(json.dumps(done), encoding="utf-8")
    sys.exit(ended.returncode)
