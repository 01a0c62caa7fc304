"""Strings of others on pages: whatever they hold, they are text where they stand."""

import re
from pathlib import Path

import pytest
from compare_data import kernel, pair, point, sweep
from conftest import DEFAULT, ROOT
from hostile import MARKDOWN, check
from markupsafe import Markup
from results_data import PROVENANCE

from ncuflow.compare.records import Thresholds
from ncuflow.compare.verdict import compare
from ncuflow.export import formats as export
from ncuflow.pages.markdown import comparison as compare_page
from ncuflow.pages.markdown import gpu_pages, pages, rendering
from ncuflow.pages.markdown import rendering as markdown
from ncuflow.pages.section import Findings

TEMPLATES = sorted([*(ROOT / "templates").rglob("*.j2"), *(ROOT / "scripts").rglob("*.j2")])


def seen(source: str) -> str:
    """What a reader sees of a line of Markdown."""
    return "".join(t.content for b in MARKDOWN.parse(source) for t in b.children or ())


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("decode/B1_L2048_H32", "decode/B1_L2048_H32"),
        ("4231 µs, 2 * x < 3", r"4231 µs, 2 \* x < 3"),
        ("<script>alert(1)</script>", "&lt;script>alert(1)&lt;/script>"),
        ("a|b\nc\x1b[31m\u202ed", r"a\|b c \[31m d"),
        ("`f<T>` takes f<T>", "`f<T>` takes f&lt;T>"),
        ("``a`b`` is code", "``a`b`` is code"),
        ("`<b>``", r"\`&lt;b>\`\`"),
        ("[x](y) ![i](j)", r"\[x\](y) !\[i\](j)"),
        ("__half, _x_ and x_y", r"\_\_half, \_x\_ and x_y"),
        ("~~struck~~", r"\~\~struck\~\~"),
        ("a\\|b", r"a\\\|b"),
        ("https://evil.example www.evil.example a@evil", r"https\://evil.example www\.evil.example a\@evil"),
        ("&lt; & x", "&amp;lt; & x"),
        ("# not a heading", r"\# not a heading"),
        ("1. no list", r"1\. no list"),
        ("- 5", r"\- 5"),
        ("-5 %", "-5 %"),
        (">quoted", r"\>quoted"),
        ("---", r"\---"),
        ("      indented", "indented"),
        ("` ` and `", r"\` \` and \`"),
        (Markup("**ours**"), "**ours**"),
    ],
)  # fmt: skip
def test_text_is_what_it_was_and_no_markup(value, shown):
    assert markdown.text(value) == shown
    assert isinstance(markdown.text(value), Markup)
    if not isinstance(value, Markup):
        printable = "".join(c if c.isprintable() else " " for c in value)
        assert seen(shown).replace("`", "") == printable.strip().replace("`", "")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("f<T>", "`f<T>`"),
        ("(anonymous `namespace')::f", "``(anonymous `namespace')::f``"),
        ("`", "`` ` ``"),
        ("a|b\n\x1b", r"`a\|b`"),
        (r"a\|b", r"`a\ \|b`"),
        ("", "–"),
        (" ", "–"),
    ],
)
def test_code_stays_in_its_backticks(value, shown):
    assert markdown.code(value) == shown
    kinds = [t.type for t in MARKDOWN.parseInline(shown)[0].children or ()]
    assert kinds == ["text" if shown == "–" else "code_inline"]


def test_blank_lines_are_single_but_in_code():
    page = "\n# a\n\n\n b \n```\nx\n\n\ny\n```\n\n\n"
    assert markdown.single_spaced(page) == "# a\n\n b\n```\nx\n\n\ny\n```\n"


def test_a_cell_knows_what_is_missing_and_holds_one_line():
    assert markdown.cell(None) == markdown.cell("") == "–"
    assert markdown.cell(Markup("**a**\nb")) == "**a** b"


def test_an_address_is_a_link_and_what_is_none_is_text():
    assert markdown.link("https://a.example/x?y=1#z") == "<https://a.example/x?y=1#z>"
    for other in ("javascript:alert(1)", "https://a b", "https://a>b", "https://a|b"):
        assert "<" not in markdown.link(other), other
    assert markdown.path("a b/c](http://x") == "a%20b/c%5D%28http%3A//x"


def test_lines_of_prose_stay_lines():
    assert markdown.prose("a *b*\n\n# c") == "a \\*b\\*\n\n\\# c"


def test_a_template_prints_what_others_wrote_as_text():
    made = rendering.environment().from_string(
        '{% macro m(x) %}**{{ x }}**{% endmacro %}{{ a }}; {{ m(a) }}; {{ m(1) ~ " " ~ a }}; {{ "x" ~ a }}; {{ a | code }}'
    )
    assert made.render(a="*") == r"\*; **\***; **1** \*; x\*; `*`"


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_template_puts_backticks_around_a_value(path: Path):
    """The filter `code` does, and knows how many it takes; between fences it is `verbatim`, in links `path`."""
    text = re.sub(r"\{#.*?#\}", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for block in re.findall(r"^```.*?^```", text, re.DOTALL | re.MULTILINE):
        for value in re.findall(r"\{\{ (.*?) \}\}", block):
            allowed = r"\| (verbatim|si\(\"B\"\))$|^usage\(|^\", \w+\.json\" if"
            assert re.search(allowed, value), value
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    values = re.sub(r"\{%.*?%\}", "", text, flags=re.DOTALL)
    values = re.sub(r"\{\{.*?\}\}", "\0", values, flags=re.DOTALL)
    assert not re.findall(r"`[^`\n]*\0[^`\n]*`", values)
    for target in re.findall(r"\]\(([^)]*\{\{[^)]*)\)", text):
        for value in re.findall(r"\{\{ (.*?) \}\}", target):
            assert re.search(r"\| path$|^K \| length", value), value


@pytest.mark.parametrize(
    "page", ["INDEX", "analysis", "claims", "final-report", "kernel-dev-guide", "target"]
)
def test_a_hostile_recording_leaves_every_page_as_it_is(finished, monkeypatch, page):
    findings = Findings(finished.outputs / "results", DEFAULT)
    check(lambda: pages.render(page, findings, "decode"), monkeypatch, ("# ", ""))


def test_what_a_number_is_struck_for_is_text(finished):
    findings = Findings(finished.outputs / "results", DEFAULT)
    findings.struck.append("decode/B1: [x](http://evil.example) <b>")
    said = pages.render("INDEX", findings).splitlines()[-1]
    assert said == r"- decode/B1: \[x\](http\://evil.example) &lt;b>"


def test_a_hostile_machine_leaves_its_page_as_it_is(finished, monkeypatch):
    info = finished.outputs / "results/environment_info.json"
    check(lambda: gpu_pages.render(info), monkeypatch)


JIT = {
    "provenance": PROVENANCE,
    "cpu_count": 16, "method": "fresh processes", "environment": {"MAX_JOBS": "8"},
    "modules": {"norm": {"cache": {"cached_ops/norm/norm.so": 2048}}},
    "summary": [
        dict.fromkeys((
            "cold_s", "build_s", "load_s", "disk_hit_s", "memory_hit_s", "first_launch_s", "later_launch_s",
            "library_bytes", "cache_files", "cache_bytes", "aot", "error",
        )) | {"module": "norm", "uri": "norm_f16"},
    ],
}  # fmt: skip
DIRECTION = {
    "from": {"gpu": "NVIDIA H100", "flashinfer": "0.7.2"}, "to": {"gpu": "NVIDIA H200"}, "covered": 0.9,
    "crossed": {
        "n": 2, "median_error": 0.1, "bias": 0.0, "inside": 0.5,
        "points": [
            {"point": "decode/B1", "measured_us": 2.0, "us": us, "low": 0.9 * us, "high": 1.1 * us} for us in (2.0, 3.0)
        ],
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("page", "given"),
    [("jit", {"provenance": JIT["provenance"], "jit": JIT}), ("predictions", {"directions": [DIRECTION, DIRECTION]})],
)  # fmt: skip
def test_pages_of_their_own_hold_what_is_hostile(monkeypatch, page, given):
    template = rendering.environment().get_template(f"{page}.md.j2")
    check(lambda: template.render(given), monkeypatch)


def test_a_hostile_comparison_leaves_its_page_as_it_is(monkeypatch):
    worse = kernel(tile=1, registers=110, warps=4.6, long_scoreboard=6.5)
    points = sweep()
    points[7] = points[7] | point("decode/B8", 60.0, [worse])
    broken = points[3] | {"status": "error", "reason": "no | memory"}
    steps = []
    for head in (points, [*points[:3], broken, *points[4:-1], point("rope/T1", 5.0)]):
        sides = pair(sweep(), head)
        sides[1].provenance = {**sides[1].provenance, "flashinfer": "0.7.2", "gpu": "NVIDIA H100"}
        steps.append(compare(*sides, Thresholds()))
    check(lambda: compare_page.render(steps[:1], ["../figures"]), monkeypatch)
    check(lambda: compare_page.render(steps, ["a", "b"], "c"), monkeypatch)


def test_the_summary_of_a_step_holds_a_hostile_point(finished):
    name = "decode/B1`|</code><b>"
    results = Findings(finished.outputs / "results", DEFAULT).results("decode")
    row = {**results["points"][0]["measurement"], "point": name}
    one = {**results, "points": [{**results["points"][0], "measurement": row, "status": "ok"}]}
    tokens = MARKDOWN.parse(export.summary({"decode": one}, []))
    cells = [t.children or [] for t in tokens if t.type == "inline"]
    assert [c[0].content for c in cells if c and c[0].type == "code_inline"] == [name]
