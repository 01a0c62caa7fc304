"""Render pages of kernels: findings and templates in, Markdown out.

ncuflow pages PAGE… --results DIR --evidence ROOT --out-dir DIR [--targets NAME…]
ncuflow pages target --target NAME --results DIR --evidence ROOT --out-dir DIR
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ncuflow.io import write_text
from ncuflow.pages.markdown import contexts
from ncuflow.pages.markdown import text as markdown
from ncuflow.pages.markdown.findings import Findings
from ncuflow.pages.markdown.rendering import environment


def render(page: str, findings: Findings, target: str | None = None) -> str:
    """The text of a page. ``page`` names a template; ``target`` is set for a target's own page."""
    context = contexts.page_context(page, findings, target)
    text = markdown.single_spaced(environment().get_template(f"{page}.md.j2").render(context))
    if findings.struck:
        text += "\n## Struck through\n\n" + "".join(
            f"- {markdown.text(reason)}\n" for reason in findings.struck
        )
    return text


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pages", nargs="+", metavar="page", help="target, INDEX, analysis, …")
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
        "--figures",
        type=Path,
        help="folder for figures: the target's, or one of all targets",
    )
    parser.add_argument(
        "--no-strict", action="store_true", help="strike impossible numbers through instead"
    )


def run(args: argparse.Namespace) -> None:
    findings = Findings(args.results, args.evidence, not args.no_strict, args.targets)
    # None is written before all are rendered.
    texts = {page: render(page, findings, args.target) for page in args.pages}
    if args.figures:
        from ncuflow.pages.markdown import figures  # with matplotlib, which most pages do without

        names = [args.target] if args.target else args.targets or findings.targets
        drawn = [findings.results(name) for name in names if name != "jit"]
        figures.draw_all(drawn, args.figures, overview=args.target is None)
    for page, text in texts.items():
        write_text(args.out_dir / f"{args.target or page}.md", text)
