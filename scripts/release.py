"""What a release is called: its tag is the package's version, CHANGELOG.md has a part of it, and server.json and README say whose
it is on the MCP registry.

python -m scripts.release --tag v0.1.0 --owner NAME --notes notes.md
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
OWNER = "io.github.OWNER/"  # of server.json and README, until a release says whose it is
PART = re.compile(r"## (?P<version>\S+?), (?P<date>[^\n]*)\n(?P<text>.*?)(?=\n## |\Z)", re.DOTALL)


def version() -> str:
    found = re.search(r'__version__ = "([^"]+)"', (ROOT / "ncuflow/__init__.py").read_text())
    assert found
    return found[1]


def notes(of: str) -> str:
    """The part of CHANGELOG.md of a version. Raises SystemExit where it has none, or one without a date."""
    for found in PART.finditer((ROOT / "CHANGELOG.md").read_text()):
        if found["version"] == of:
            if not re.match(r"\d{4}-\d\d-\d\d", found["date"]):
                raise SystemExit(f"CHANGELOG.md: {of} has no date: {found['date']}")
            return found["text"].strip() + "\n"
    raise SystemExit(f"CHANGELOG.md: nothing about {of}: uvx towncrier build --version {of}")


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--tag", "--owner", "--notes"):
        parser.add_argument(name, required=True)
    asked = parser.parse_args()
    of = version()
    tagged = asked.tag.startswith("v")  # else by hand, of a branch
    if tagged and asked.tag != f"v{of}":
        raise SystemExit(f"the tag is {asked.tag}, the package's version {of}")
    Path(asked.notes).write_text(notes(of) if tagged else "", encoding="utf-8")
    server = ROOT / "server.json"
    found = json.loads(server.read_text())
    found["version"] = found["packages"][0]["version"] = of
    server.write_text(json.dumps(found, indent=2) + "\n")
    for path in (server, ROOT / "README.md"):
        path.write_text(path.read_text().replace(OWNER, f"io.github.{asked.owner}/"))


if __name__ == "__main__":
    main()
