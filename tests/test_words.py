"""What a reader sees is said in the field's own words: none of those that readers did not understand."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from conftest import ROOT, some

# What is refused, and what is said in its place.
REFUSED = {
    r"\bA/A\b": "noise floor",
    r"\btoo noisy to tell\b": "inconclusive",
    r"\d % and waits\b": "otherwise latency-bound",
    r"\bheld against\b": "compared with",
    r"\b(?:GPU|date) not in it\b": "unknown",
    r"\b(?:of|under) (?:the|its) roof\b": "% of roofline",
    r"\bmiddle half\b": "IQR",
    r"\bin situ\b": "in application",
    r"\bin their order\b": "over time",
    r"\bdecided at\b": "source location",
    r"\bpaid after\b": "break-even",
    r"\bshapes that tell\b": "conclusive",
    r"\bsurely\b": "significantly",
    r"\bwhat matters is\b": "minimum effect",
    r"\bbase against itself\b": "noise floor",
    r"\b(?:effect|difference) that matters\b": "minimum effect",
    r"\bleast (?:·|to) (?:median|most)\b": "min, max",
}
COMMENT = re.compile(r"/\*.*?\*/|^\s*//.*?$|\{#.*?#\}", re.S | re.M)
MADE = re.compile(
    r"<!-- scripts/docs\.py: .*?<!-- end -->", re.S
)  # of records, which programs read
MOST = {"README.md": 900, "docs": 25_000}  # words


def strings(path: Path) -> Iterator[str]:
    """The texts of a module that are no docstrings; of a verb those as well, which are its help."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    left = set()
    if path.parent.name != "verbs":  # docstrings, those of fields too
        expressions = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
        left = {value for value in expressions if isinstance(value, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in left:
            yield node.value


def texts() -> Iterator[tuple[str, str]]:
    """(file, text) of all that a reader may see."""
    for path in some([*(ROOT / "templates").rglob("*")]):
        if path.suffix in (".j2", ".js", ".txt") and "vendor" not in path.parts:
            yield path.name, COMMENT.sub("", path.read_text(encoding="utf-8"))
    for path in (
        *(ROOT / "docs").glob("*.md"),
        ROOT / "README.md",
        *(ROOT / "scripts/pages").glob("*"),
    ):
        yield path.name, MADE.sub("", path.read_text(encoding="utf-8"))
    for path in (ROOT / "ncuflow/schemas").glob("*.json"):  # docstrings of records
        yield path.name, path.read_text(encoding="utf-8")
    for room in ("ncuflow", "parsers", "targets"):
        for path in (ROOT / room).rglob("*.py"):
            yield path.name, "\n".join(strings(path))


def test_no_word_is_used_that_readers_did_not_understand() -> None:
    found = [
        f"{file}: {match[0]!r} is {instead!r}: …{text[max(0, match.start() - 40) : match.end() + 20]!r}"
        for file, text in texts()
        for pattern, instead in REFUSED.items()
        for match in re.finditer(pattern, text)
    ]
    assert found == []


def test_readme_begins_with_a_report_of_ones_own_and_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= MOST["README.md"]
    first = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)[0]
    assert (
        first.index("ncuflow view") < first.index("ncuflow explain") < first.index("ncuflow show")
    )


def test_documentation_is_read_in_an_afternoon() -> None:
    """Without what is generated: schemas and tables within pages, and the pages of kept changes."""
    pages = [
        MADE.sub("", path.read_text(encoding="utf-8")) for path in (ROOT / "docs").glob("*.md")
    ]
    assert sum(len(text.split()) for text in pages) <= MOST["docs"]
