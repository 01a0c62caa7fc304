"""An upgrade on a GPU of Modal: `modal run examples/ci/modal_upgrade.py --model llama-3-8b --to 0.7.2`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import modal

image = (
    modal.Image.from_registry("nvidia/cuda:13.0.1-devel-ubuntu24.04", add_python="3.12")
    .apt_install("git", "g++")
    .add_local_dir(".", "/ncuflow", copy=True, ignore=[".git", ".venv", "outputs"])
    .run_commands("cd /ncuflow && pip install -c requirements.lock '.[capture]'")
)
app = modal.App("ncuflow-upgrade", image=image)


@app.function(gpu="H100!", timeout=3600)  # for a plain H100 Modal may give an H200
def upgraded(words: list[str]) -> tuple[int, str, str]:
    """(exit status, what it says, the record) of `ncuflow upgrade` with these words."""
    done = subprocess.run(
        ["ncuflow", "upgrade", *words, "--out", "/tmp/upgrade.json"], capture_output=True, text=True
    )
    record = Path("/tmp/upgrade.json")
    return (
        done.returncode,
        done.stdout + done.stderr,
        record.read_text(encoding="utf-8") if record.exists() else "",
    )


@app.local_entrypoint()
def main(model: str, to: str, base: str = "") -> None:
    words = ["--model", model, "--to", to, *(["--from", base] if base else [])]
    status, said, record = upgraded.remote(words)
    print(said)
    if record:
        Path("upgrade.json").write_text(record, encoding="utf-8")
    raise SystemExit(status)
