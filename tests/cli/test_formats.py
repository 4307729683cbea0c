"""The report as Markdown, HTML and SVG: whole, readable, and not to be steered by names from the dump."""

from __future__ import annotations

import json
import os
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from canary_cli import exit_codes, main
from canary_cli.render import image, markdown, table
from canary_cli.render import json as json_renderer
from test_output import EXPECTED, NAMES, load

from canary_numba.check import check_dump
from canary_numba.diagnosis import diagnose, pictures
from canary_numba.dump import Dump
from canary_numba.report import Report, build_dump_report, tool_of

DUMP = str(Path(__file__).parents[2] / "examples" / "dumps" / "double_allocation.pt")
DOCS = Path(__file__).parents[2] / "docs"
HOSTILE = "</code><script>alert(1)</script> | `x` **b** \x1b[31m ``` [a](b)"


def report_of(dump: Dump) -> Report:
    result = check_dump(dump, engine="cpu")
    return Report(tool=tool_of(result), dumps=(build_dump_report(dump, result, diagnose(dump, result)),))


def hostile() -> Dump:
    dump = load("double_allocation")
    assert dump.requests is not None
    names = [HOSTILE if name == "doc-1" else name for name in dump.requests.rids]
    return replace(dump, requests=replace(dump.requests, rids=tuple(names)), path=f"dumps/{HOSTILE}.pt")


@pytest.mark.parametrize("name", NAMES)
def test_the_markdown(name: str, request: pytest.FixtureRequest) -> None:
    text = markdown.render(report_of(load(name, request)), 20)
    # Who checked is not the same on every machine.
    text = re.sub(r"\| checked by \|.*\n", "| checked by | |\n", text)
    expected = EXPECTED / f"{name}.md"
    if os.environ.get("CANARY_WRITE_EXPECTED"):
        expected.write_text(text, encoding="utf-8")
    assert text == expected.read_text(encoding="utf-8")


def test_markdown_tables_keep_their_columns() -> None:
    for text in (markdown.render(report_of(dump), 0) for dump in (load("double_allocation"), hostile())):
        widths: set[int] = set()
        for line in text.splitlines():
            cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
            widths = widths | {cells} if cells else set()
            assert len(widths) <= 1, line


def test_markdown_of_hostile_names_is_text() -> None:
    text = markdown.render(report_of(hostile()), 0)
    outside = re.sub(r"^```\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert "\x1b" not in text
    assert "<script" not in outside.replace("\\<", "")
    assert not re.search(r"(?<!\\)[*\[`]", outside)


class Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_shows_the_report_and_runs_nothing() -> None:
    page = Text()
    page.feed(image.render_html(report_of(hostile()), 0))
    assert "script" not in page.tags
    assert not {"img", "link", "iframe"} & set(page.tags), "the page needs nothing else"
    for part in ("slot_owned_twice", "FULL pool by slot number", "<script>alert(1)</script>", "HEAD_K_FULL"):
        assert part in page.text


@pytest.mark.parametrize(
    ("most", "left_out", "line"), [(2, 0, None), (1, 1, "... and 1 more request"), (0, 2, "2 requests, not drawn")]
)
def test_requests_whose_strips_are_not_drawn_are_counted(
    most: int, left_out: int, line: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "MAX_STRIPS", most)
    report = report_of(load("double_allocation"))
    page = Text()
    page.feed(image.render_html(report, 0))
    texts = [
        table.render(report, 0, color=False, width=80),
        markdown.render(report, 0),
        page.text,
        "".join(ET.fromstring(image.render_svg(report, 0)).itertext()).replace("\xa0", " "),
    ]
    for text in texts:
        assert ("more request" in text or "not drawn" in text) == bool(left_out)
        assert line is None or text.count(line) == 1
    (dump,) = json.loads(json_renderer.render(report, 0))["dumps"]
    assert (len(dump["strips"]), dump["strips_left_out"]) == (most, left_out)


def test_svg_is_a_picture_of_the_report() -> None:
    root = ET.fromstring(image.render_svg(report_of(hostile()), 4))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))
    text = "".join(root.itertext()).replace("\xa0", " ")
    assert "slot_owned_twice" in text
    assert "█" in text


def test_the_command_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg = tmp_path / "report.svg"
    assert main.run([DUMP, "--format", "html", "--svg", str(svg)]) == exit_codes.CORRUPT
    out, _ = capsys.readouterr()
    assert out.startswith("<!DOCTYPE html>")
    assert ET.parse(svg).getroot().tag.endswith("svg")
    assert main.run([DUMP, "--svg", str(svg)]) == exit_codes.USAGE
    assert str(svg) in capsys.readouterr().err
    assert main.run([DUMP, "--svg", str(svg), "--force", "-q"]) == exit_codes.CORRUPT


def test_a_missing_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([DUMP, "-q", "--svg", str(tmp_path / "no" / "x.svg")]) == exit_codes.USAGE
    assert "x.svg" in capsys.readouterr().err


def test_the_picture_in_the_docs_is_of_this_report() -> None:
    picture = ET.parse(DOCS / "pictures" / "double_allocation.svg").getroot()
    report = report_of(replace(load("double_allocation"), path="examples/dumps/double_allocation.pt"))
    fresh = ET.fromstring(image.render_svg(report, 4))
    # Not the drawing itself, which is rich's and changes with it.
    assert "".join(picture.itertext()).split() == "".join(fresh.itertext()).split()


def test_the_page_in_the_docs_is_of_this_report() -> None:
    shown, fresh = Text(), Text()
    shown.feed((DOCS / "pictures" / "kv_bit_flip.html").read_text(encoding="utf-8"))
    report = report_of(replace(load("kv_bit_flip"), path="examples/dumps/kv_bit_flip.pt"))
    fresh.feed(image.render_html(report, 4))
    assert shown.text.split() == fresh.text.split()
