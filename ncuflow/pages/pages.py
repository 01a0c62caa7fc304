"""Render pages: findings and templates in, Markdown out.

ncuflow pages PAGE… --results DIR --evidence ROOT --out-dir DIR [--targets NAME…]
ncuflow pages target --target NAME --results DIR --evidence ROOT --out-dir DIR
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2

from ncuflow.findings import sanity
from ncuflow.findings.provenance import TIERS, one_line
from ncuflow.io import BadInput, write_text
from ncuflow.model import Results
from ncuflow.pages import contexts
from ncuflow.pages.filters import FILTERS, Struck
from ncuflow.parsers import children
from ncuflow.target import ordered, template_folders


class Impossible(BadInput):
    """Results with a number that cannot be true; the first stands for all in ``first``."""

    def __init__(self, name: str, violations: sanity.Violations) -> None:
        reasons = list(map(str, violations))
        super().__init__(name, "; ".join(reasons))
        more = f" ({len(reasons) - 1} more like it)" if len(reasons) > 1 else ""
        self.first = reasons[0] + more


class Findings:
    """What the pages read: results by target and the JSON beside them, loaded when first asked for.

    names: the targets of this run, ``jit`` among them; None for all that the folder holds, which
    may be of an earlier run.
    """

    def __init__(
        self,
        results: Path,
        evidence: Path,
        strict: bool = True,
        names: Sequence[str] | None = None,
    ) -> None:
        self.folder, self.evidence, self.strict, self.names = results, evidence, strict, names
        self.struck: list[str] = []
        self.stopped: dict[str, str] = {}  # target -> the number for which its results are left out

    @cached_property
    def targets(self) -> dict[str, Results]:
        """target -> content of ``<target>_results.json``, in the order of pages.

        One with an impossible number is left out, and named in ``stopped``.
        """
        names = self.names
        if names is None:
            files = self.folder.glob("*_results.json")
            names = [path.name.removesuffix("_results.json") for path in files]
        found = {}
        for name in ordered([name for name in names if name != "jit"]):
            try:
                found[name] = self.target(name)
            except Impossible as error:
                self.stopped[name] = error.first
        return found

    def target(self, name: str) -> Results:
        """One target's results, without reading the others.

        Raises Impossible for a number that cannot be true; without ``strict`` that number is struck
        through instead, and ``struck`` says why.
        """
        path = self.folder / f"{name}_results.json"
        results: Results = json.loads(path.read_text())
        violations = sanity.check(results)
        if len(violations) and self.strict:
            raise Impossible(path.name, violations)
        self.struck += map(str, violations)
        for point in results["points"]:
            row = point["measurement"]
            for column, value in row.items():
                if isinstance(value, int | float) and violations.strike(column, row["point"]):
                    row[column] = Struck(value)
        return results

    def optional(self, name: str) -> Any:
        """A JSON finding that this run may lack (jit_analysis, claims, environment_info), or None."""
        if name == "jit_analysis" and self.names is not None and "jit" not in self.names:
            return None
        path = self.folder / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else None

    @cached_property
    def source_index(self) -> Any:
        """The index of the FlashInfer that was measured, or None."""
        path = self.evidence / "source_index.json"
        return json.loads(path.read_text()) if path.exists() else None


def environment() -> jinja2.Environment:
    """Jinja2 with the project's filters; an undefined name is an error, not an empty cell."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template_folders()),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    env.filters.update(FILTERS)
    env.globals |= {"one_line": one_line, "TIERS": TIERS}
    return env


def render(page: str, findings: Findings, target: str | None = None) -> str:
    """The text of a page. ``page`` names a template; ``target`` is set for a target's own page."""
    context = contexts.page_context(page, findings, target)
    text = environment().get_template(f"{page}.md.j2").render(context).rstrip() + "\n"
    if findings.struck:
        text += "\n## Struck through\n\n" + "".join(f"- {reason}\n" for reason in findings.struck)
    return text


def render_all(
    pages: list[str], findings: Findings, target: str | None = None
) -> Iterator[tuple[str, str]]:
    """(page, its text) of several; children render them, with the results that are read once."""
    if len(pages) == 1:
        yield pages[0], render(pages[0], findings, target)
        return
    _ = findings.targets
    yield from children.each(lambda page: render(page, findings, target), pages)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "pages", nargs="+", metavar="page", help="target, jit, environment, INDEX, …"
    )
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--evidence", type=Path, required=True)
    parser.add_argument(
        "--targets",
        nargs="*",
        help="that the pages are about (with jit, the JIT too); default: all of the folder",
    )
    parser.add_argument("--target", help="of page target, whose file has this name")
    parser.add_argument("--out-dir", type=Path, required=True)
    parser.add_argument(
        "--no-strict", action="store_true", help="strike impossible numbers through instead"
    )


def run(args: argparse.Namespace) -> None:
    findings = Findings(args.results, args.evidence, not args.no_strict, args.targets)
    # None is written before all are rendered.
    for page, text in list(render_all(args.pages, findings, args.target)):
        write_text(args.out_dir / f"{args.target or page}.md", text)
