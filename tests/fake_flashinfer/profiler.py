#!/usr/bin/env python3
"""In the place of ncu: runs the program, whose fake device says which ranges it opened, and writes that as its report."""

import json
import os
import subprocess
import sys
from pathlib import Path

words = sys.argv[1:]
if "--version" in words:
    print("Version 2025.3.1.0 (build 36398880)")
    sys.exit()
if os.environ.get("NCUFLOW_TEST_REFUSED"):
    print("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission")
    sys.exit(1)
out = words[words.index("-o") + 1]
start = next(i for i, word in enumerate(words) if Path(word).name.startswith("python"))
log = Path(f"{out}.ranges")
env = {**os.environ, "NCUFLOW_TEST_RANGES": str(log)}
if calls := os.environ.get("NCUFLOW_TEST_CALLS"):
    with Path(calls).open("a", encoding="utf-8") as file:
        file.write(json.dumps(words) + "\n")
ended = subprocess.run(words[start:], env=env, check=False)
if log.exists():
    ranges = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    content = {"words": words[:start], "ranges": ranges}
    Path(f"{out}.ncu-rep").write_text(json.dumps(content), encoding="utf-8")
sys.exit(ended.returncode)
