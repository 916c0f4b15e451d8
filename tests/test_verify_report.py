"""What `retrofit verify` shows: the same report as a terminal table, as JSON and as a page."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest
from PIL import Image
from rich.console import Console

from retrofit.rules.catalog import CATALOG, Rule
from retrofit.verify.report.charts import NOT_DRAWN, RANK_COLOURS, SEVERAL, draw_charts
from retrofit.verify.report.conclusion import conclusion
from retrofit.verify.report.faults import faults
from retrofit.verify.report.html_page import report_as_html, write_html
from retrofit.verify.report.json_report import SCHEMA_VERSION, report_as_json
from retrofit.verify.report.remedies import IN_ACCELERATE, IN_FABRIC, remedy
from retrofit.verify.report.terminal import print_report
from retrofit.verify.source.distribution import dialect_of
from retrofit.verify.verdict import (
    ACCEPTED,
    COMPARED,
    FAIL,
    INCOMPLETE,
    NOT_APPLICABLE,
    NOT_JUDGED,
    PASS,
    EpochCoverage,
    Report,
    RunRecord,
    Verdict,
    duration,
    exit_status,
    failed,
    not_applicable,
    overall_status,
    passed,
    printable,
)

ROOT = Path(__file__).resolve().parents[1]
CAUSES = {
    "RF103": Rule("RF103", "loader-not-sharded", "every rank reads the whole data set.", "shard.", "sampler."),
    "RF301": Rule("RF301", "mean-of-means", "ranks hold different numbers of valid elements " * 4, "divide.", "again."),
}
VERDICTS = [
    passed("runs", "every run ends by itself", "5 runs ended with status 0"),
    failed("shards", "shards are disjoint and complete", "all samples were drawn twice", step=3, cause="RF103"),
    failed("loss", "the loss is that of 1", "33 steps differ", step=7, value="1.2 with 2, 1.3 with 1", cause="RF301"),
    not_applicable("metric", "evaluation is exact", "the script evaluates nothing"),
    Verdict("resume", "a resumed run continues", ACCEPTED, "lr starts over", step=20),
]
HOSTILE = '<script>alert(1)</script> "><img src=x onerror=alert(1)> </style> &amp; [red]:car:[/red] $x$ ümläut 学习'
UNPRINTABLE = "\x1b[31m\udcff\x00\u202e"


def a_report(**changes) -> Report:
    steps = 40
    loss = [2 * math.exp(-step / 20) for step in range(steps)]
    report = Report(
        script="train.py",
        arguments=["--epochs", "2", "--name", "two words"],
        world_size=2,
        verdicts=VERDICTS,
        curves={
            "loss_1": loss,
            "loss_n": [value * 1.001 for value in loss],
            "difference": [0.0, *([1e-3] * (steps - 1))],
            "parameter_difference": [0.0, 0.0, *([1e-15] * (steps - 2))],
            "tolerance": 1e-8,
            "lr_1": [0.1] * steps,
            "lr_n": [0.1] * steps,
        },
        coverage=[EpochCoverage(5, {0: [0, 2, 4], 1: [0, 1]})],
        runs=[RunRecord("many", world_size=2, seconds=9.3, status="finished", command="python train.py")],
        environment={"torch": "2.1.0", "cores": 2},
        controls=["Both runs computed in float64."],
        lines_run=[["train.py", 12]],
        kept_batch="with batch_size divided by 2",
        own_figures=["loss #: 0.5 with 2 processes, 0.6 with 1"],
        seconds=43.2,
    )
    return dataclasses.replace(report, **changes)


def everywhere(text: str) -> tuple[Report, dict[str, Rule]]:
    """Return a report, and causes, with `text` in every place that holds text."""
    verdict = Verdict(text, text, FAIL, text, 0, text, "RF103", text)
    run = RunRecord(text, world_size=2, seconds=1.0, status=text, command=text)
    report = a_report(
        script=text,
        arguments=[text],
        verdicts=[verdict],
        runs=[run],
        environment={text: text},
        controls=[text],
        own_figures=[text],
    )
    return report, {"RF103": Rule("RF103", text, text, text, text)}


class Page(HTMLParser):
    """A page that is refused unless its elements are balanced; collects what a browser would load, run and show."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.handle_startendtag(tag, attributes)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attributes]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)

    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def pages():
    nothing = {"curves": {}, "coverage": [], "runs": [], "environment": {}, "controls": []}
    broken = {name: [1.0, math.nan, math.inf, 0.0] for name in ("loss_1", "loss_n", "difference", "lr_1", "lr_n")}
    empty = {"loss_1": [], "loss_n": [], "difference": [], "parameter_difference": [], "lr_1": [], "lr_n": []}
    many = {rank: list(range(rank, 100_000, 64)) for rank in range(64)}
    return {
        "full": a_report(),
        "passed": a_report(verdicts=[VERDICTS[0]]),
        "no verdict": a_report(verdicts=[]),
        "nothing recorded": a_report(**nothing),
        "run of N failed": a_report(curves={**empty, "loss_1": [1.0, 0.5], "tolerance": 1e-8}),
        "one step": a_report(curves={"loss_1": [1.0], "loss_n": [1.0], "difference": [0.0], "tolerance": 1e-8}),
        "not finite": a_report(curves={**broken, "parameter_difference": [0.0] * 4, "tolerance": math.nan}),
        "bit-identical": a_report(curves={"difference": [0.0] * 500, "parameter_difference": [0.0] * 500}),
        "no samples": a_report(coverage=[EpochCoverage(0, {})]),
        "100000 samples": a_report(world_size=64, coverage=[EpochCoverage(100_000, many)] * 6),
        "hostile": everywhere(HOSTILE)[0],
        "unprintable": everywhere(UNPRINTABLE)[0],
    }


@pytest.mark.parametrize(("name", "report"), pages().items(), ids=list(pages()))
def test_the_page_is_well_formed_loads_nothing_and_runs_nothing(name, report):
    text = report_as_html(report, everywhere(HOSTILE)[1] if name == "hostile" else CAUSES)
    page = Page(text)
    assert not {"script", "link", "iframe", "object", "embed", "base", "form", "img"} & set(page.tags)
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'(?:xlink:href="|url\()#([^")]+)', text))
    assert used <= set(ids)
    for tag, name, value in page.attributes:
        assert not name.startswith("on")
        if name in ("href", "xlink:href", "src"):
            assert value.startswith("#") or (tag == "image" and value.startswith("data:image/png;base64,"))
        assert "://" not in value or name.startswith("xmlns")
    style = re.search(r"<style>(.*?)</style>", text, re.S).group(1)
    assert "://" not in style and "@import" not in style and "url(" not in style
    assert len(text) < 1_000_000


def test_all_text_reaches_the_page_as_text():
    page = Page(report_as_html(*everywhere(HOSTILE)))
    shown = page.words()
    # title, heading and table of the summary; title and code of the check; value, cause (3), note; run, control, ...
    assert shown.count(" ".join(HOSTILE.split())) >= 12
    assert "<script>alert" not in report_as_html(*everywhere(HOSTILE))


def test_a_page_with_unprintable_text_is_written(tmp_path):
    report, causes = everywhere(UNPRINTABLE)
    write_html(report, tmp_path / "new" / "page.html", causes)
    text = (tmp_path / "new" / "page.html").read_text(encoding="utf-8")
    assert r"\x1b[31m\udcff\x00\u202e" in text and "\x1b" not in text


def test_the_page_says_what_the_report_says():
    shown = Page(report_as_html(a_report(), CAUSES)).words()
    for verdict in VERDICTS:
        title = None if verdict.status == NOT_APPLICABLE else verdict.title
        for part in (verdict.status, title, verdict.check, verdict.summary, verdict.value):
            assert part is None or part in shown
    for cause in CAUSES.values():
        assert f"{cause.code} {cause.name} {' '.join(cause.why.split())}" in shown and cause.remedy in shown
    assert "--name 'two words'" in shown and "Both runs computed in float64." in shown and "2.1.0" in shown
    order = [shown.index(verdict.summary) for verdict in sorted(VERDICTS, key=lambda one: one.status != FAIL)]
    assert max(order[:2]) < min(order[2:]), "failures come first"


def test_a_page_without_curves_says_so():
    assert [chart.svg for chart in draw_charts(pages()["nothing recorded"])] == [""] * 4
    assert (
        Page(report_as_html(pages()["nothing recorded"], CAUSES)).words().count("Nothing was recorded: a run failed")
        == 4
    )


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_the_curves_have_axes_and_legends():
    loss, difference, rate, _ = (texts(chart.svg) for chart in draw_charts(a_report()))
    assert {"loss", "optimizer step", "1 process", "2 processes", "first failure: step 3"} <= set(loss)
    assert {"relative difference", "tolerance 1e-8", "loss", "parameters", "0", "1e-14", "1e-2"} <= set(difference)
    assert {"learning rate", "optimizer step", "1 process", "2 processes"} <= set(rate)
    broken = draw_charts(pages()["not finite"])
    assert "NaN or infinite" in texts(broken[0].svg) and "NaN or infinite" in texts(broken[1].svg)
    assert not any(text.startswith("tolerance") for text in texts(broken[1].svg))


def test_the_page_decides_the_colours():
    for chart in draw_charts(a_report()):
        assert "var(--chart-ink)" in chart.svg and "#01020" not in chart.svg


def cells(svg: str, place: int = 0) -> list[list[tuple[int, ...]]]:
    """Return the RGBA cells of a coverage map, row by row."""
    data = re.findall(r'data:image/png;base64,([^"]+)"', svg)[place]
    image = Image.open(io.BytesIO(base64.b64decode(data))).convert("RGBA")
    return [[image.getpixel((x, y)) for x in range(image.width)] for y in range(image.height)]


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))


def test_the_coverage_map_shows_the_rank_of_each_of_five_samples():
    svg = draw_charts(a_report())[3].svg
    drawn = [[cell[:3] if cell[3] else None for cell in row] for row in cells(svg)]
    zero, one, not_drawn, several = (rgb(colour) for colour in (*RANK_COLOURS[:2], NOT_DRAWN, SEVERAL))
    assert drawn == [
        [zero, None, zero, None, zero],
        [one, one, None, None, None],
        [None, None, None, not_drawn, None],
        [several, None, None, None, None],
    ]
    shown, rows = texts(svg), ["rank 0", "rank 1", "nobody", "more than once"]
    assert [text for text in shown if text in rows] == rows
    assert shown[-5:-1] == ["3", "2", "1", "1"], "samples per row"


def test_a_sample_drawn_twice_by_one_rank_counts_as_drawn_more_than_once():
    coverage = [EpochCoverage(3, {0: [0, 0], 1: [1, 2]})]
    rows = cells(draw_charts(a_report(coverage=coverage))[3].svg)
    assert [cell[3] > 0 for cell in rows[3]] == [True, False, False]


def test_one_lost_sample_among_100000_is_visible():
    ranks = {0: [i for i in range(0, 100_000, 2) if i != 70_000], 1: list(range(1, 100_000, 2))}
    svg = draw_charts(a_report(coverage=[EpochCoverage(100_000, ranks)]))[3].svg
    rows = cells(svg)
    assert len(rows[0]) == 400, "250 samples share a cell"
    seen = [place for place, cell in enumerate(rows[2]) if cell[3]]
    assert seen == [280] and rows[2][280][3] > 100
    assert not any(cell[3] for cell in rows[3])


def test_drawing_does_not_change_matplotlib_settings():
    import matplotlib

    matplotlib.rcParams["lines.linewidth"] = 7
    try:
        before = dict(matplotlib.rcParams)
        charts = draw_charts(a_report())
        assert dict(matplotlib.rcParams) == before
    finally:
        matplotlib.rcdefaults()
    assert charts == draw_charts(a_report()), "the user's own settings play no part"


def test_matplotlib_is_imported_for_a_figure_only_and_without_its_windows():
    code = """
import sys
from retrofit.verify.report.conclusion import conclusion
from retrofit.verify.report.html_page import report_as_html
from retrofit.verify.report.remedies import IN_ACCELERATE, IN_FABRIC, remedy
from retrofit.verify.report.terminal import print_report
from retrofit.verify.verdict import Report
assert "matplotlib" not in sys.modules
report_as_html(Report("train.py", [], 2, [], {"loss_1": [1.0]}), {})
assert "matplotlib" in sys.modules and "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_a_failed_page_leaves_no_file(tmp_path):
    (tmp_path / "page.html").mkdir()
    with pytest.raises(OSError, match=r"could not write .*page\.html: .*; make room or name another place"):
        write_html(a_report(), tmp_path / "page.html", CAUSES)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_equal_reports_give_equal_pages():
    assert report_as_html(a_report(), CAUSES) == report_as_html(a_report(), CAUSES)


def refuse(constant):
    raise AssertionError(f"{constant} is not JSON")


def test_the_report_survives_json():
    read = json.loads(report_as_json(a_report(), CAUSES), parse_constant=refuse)
    assert read["schema_version"] == SCHEMA_VERSION and read["status"] == FAIL
    assert read["conclusion"] == conclusion(a_report())
    rule = CAUSES["RF103"]
    expected = {"name": rule.name, "explanation": rule.why, "remedy": rule.remedy, "in_torch": rule.in_torch}
    assert read["causes"]["RF103"] == expected
    fields = {field.name: read[field.name] for field in dataclasses.fields(Report)}
    fields["verdicts"] = [Verdict(**verdict) for verdict in read["verdicts"]]
    fields["runs"] = [RunRecord(**run) for run in read["runs"]]
    fields["coverage"] = [
        EpochCoverage(epoch["num_samples"], {int(rank): samples for rank, samples in epoch["rank_of_sample"].items()})
        for epoch in read["coverage"]
    ]
    assert Report(**fields) == a_report()


@pytest.mark.parametrize("name", pages())
def test_every_report_is_strict_json(name):
    text = report_as_json(pages()[name], CAUSES)
    assert json.loads(text, parse_constant=refuse)["script"] == pages()[name].script
    assert text.count("\n") < 150, "one line per item, not per number"


def test_numbers_that_are_not_finite_survive_json():
    curves = {"loss_1": [math.nan, math.inf, -math.inf, 0.1]}
    read = json.loads(report_as_json(a_report(curves=curves, environment={"path": sys}), CAUSES))
    assert read["curves"]["loss_1"] == ["NaN", "Infinity", "-Infinity", 0.1]
    assert math.isnan(float(read["curves"]["loss_1"][0])) and float(read["curves"]["loss_1"][2]) == -math.inf
    assert read["environment"] == {"path": str(sys)}


def printed(report: Report, causes=CAUSES, encoding: str = "utf-8", **options) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_report(report, causes, Console(file=stream, width=80, **options))
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)


def test_every_failure_is_explained_in_80_columns():
    text = printed(a_report())
    *lines, last = text.rstrip("\n").split("\n")
    assert max(map(len, lines)) <= 80
    assert text.isascii() and "\x1b" not in text, "a log takes neither colours nor lines"
    words = " ".join(text.split())
    for cause in CAUSES.values():
        assert f"cause {cause.code} {cause.name}: {' '.join(cause.why.split())} remedy {cause.remedy}" in words
    assert "value 1.2 with 2, 1.3 with 1" in words and "step 7 is the first optimizer step" in words
    assert last == conclusion(a_report())
    assert words.index("every run ends") < words.index("lr starts over, first at step 20") < words.index("cause RF103")
    assert re.search(r"^n/a +1 check without anything +metric *$", text, re.MULTILINE)
    assert "evaluates nothing" not in words


def test_a_terminal_shows_colours_and_the_same_words():
    text = printed(a_report(), force_terminal=True, color_system="standard")
    assert "\x1b[1;31mFAIL" in text
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert plain.split() == printed(a_report()).split()


def test_user_text_is_neither_markup_nor_a_terminal_command():
    words = "".join(printed(*everywhere(HOSTILE + UNPRINTABLE)).split())
    assert "".join((HOSTILE + r"\x1b[31m\udcff\x00\u202e").split()) in words


def test_a_terminal_that_knows_ascii_only_gets_the_report():
    assert r"\xfcml\xe4ut" in printed(*everywhere(HOSTILE), encoding="ascii")


def test_an_unknown_cause_is_named_by_its_code():
    report = a_report(verdicts=[failed("x", "title", "summary", cause="RF999")])
    assert "cause RF999" in " ".join(printed(report).split()) and "RF999" in report_as_html(report, CAUSES)
    assert json.loads(report_as_json(report, CAUSES))["causes"] == {}


PASSED, FAILED, NO, TAKEN = (Verdict("c", "t", one, f"is\n{one}") for one in (PASS, FAIL, NOT_APPLICABLE, ACCEPTED))
LATE = dataclasses.replace(FAILED, check="late", step=4, summary="late", cause="RF301", place="train.py:9 in main")
FOLLOWS = dataclasses.replace(FAILED, check="early", step=0, summary="follows from it (see late)")
MORE = [dataclasses.replace(FAILED, check=f"more {number}", summary=f"more {number}") for number in range(3)]
NEEDED = [passed(check, "t", "same") for check in COMPARED]
SAME = "PASS: with batch_size divided by 2, 2 processes train the same model as 1"
FOUR = "samples, losses, gradients and weights compared"
CONCLUSIONS = [
    ([*NEEDED, PASSED, NO], PASS, 0, f"{SAME}: {FOUR} (5 checks passed, 1 not applicable), 43 s"),
    (
        [*NEEDED, TAKEN],
        PASS,
        0,
        f"{SAME} apart from 1 accepted difference: {FOUR} (4 checks passed, 1 accepted), 43 s",
    ),
    ([PASSED, FAILED], FAIL, 1, "FAIL: is FAIL. 1 of 2 checks failed, 43 s"),
    ([PASSED, LATE], FAIL, 1, "FAIL: late (at train.py:9 in main, RF301, from step 4 on). 1 of 2 checks failed, 43 s"),
    (
        [FAILED, LATE, FOLLOWS, *MORE, NO],
        FAIL,
        1,
        "FAIL: is FAIL. Also: late (at train.py:9 in main, RF301, from step 4 on). Also: more 0. "
        "And 2 other faults. 6 of 7 checks failed, 43 s",
    ),
    ([NO, NO], NOT_JUDGED, 2, "NOT JUDGED: none of 2 checks had anything to compare, 43 s"),
    ([], NOT_JUDGED, 2, "NOT JUDGED: none of 0 checks had anything to compare, 43 s"),
    (
        [not_applicable("shards", "t", "no loader\nwas used"), *NEEDED[1:], NO],
        INCOMPLETE,
        3,
        "INCOMPLETE: not compared: samples (no loader was used). What was compared is the same "
        "(3 checks passed, 2 not applicable), 43 s",
    ),
    (
        [NEEDED[0], *(not_applicable(check, "t", "no step") for check in ("loss", "gradients")), PASSED],
        INCOMPLETE,
        3,
        "INCOMPLETE: not compared: losses and gradients (no step); weights (the check was not made). "
        "What was compared is the same (2 checks passed, 2 not applicable), 43 s",
    ),
]


@pytest.mark.parametrize(("verdicts", "status", "exit_code", "sentence"), CONCLUSIONS)
def test_the_conclusion(verdicts, status, exit_code, sentence):
    report = a_report(verdicts=verdicts)
    assert conclusion(report) == sentence
    assert overall_status(verdicts) == status and exit_status(verdicts) == exit_code
    assert printed(report).rstrip("\n").split("\n")[-1] == sentence


def test_faults_are_checks_of_one_cause():
    found = faults([FAILED, FOLLOWS, LATE])
    assert [fault.verdict for fault in found] == [FAILED, LATE]
    assert [list(fault.explains) for fault in found] == [[], [FOLLOWS]]
    steps = [dataclasses.replace(FAILED, check=check, summary=check) for check in ("loss", "gradients", "parameters")]
    assert [len(fault.explains) for fault in faults(steps)] == [2]
    steps[2] = dataclasses.replace(steps[2], cause="RF304")
    assert [len(fault.explains) for fault in faults(steps)] == [1, 0]


@pytest.mark.parametrize(("step", "is_first"), [(None, True), (3, True), (4, True), (9, False)])
def test_an_error_without_a_cause_comes_after_an_earlier_fault_with_one(step, is_first):
    error = dataclasses.replace(FAILED, check="completes", step=step)
    assert [fault.verdict for fault in faults([error, LATE])] == ([error, LATE] if is_first else [LATE, error])


def test_a_remedy_has_the_words_of_what_distributes_the_script(tmp_path):
    script = tmp_path / "train.py"
    rule = CATALOG["RF105"]
    for text, expected in (
        ("import torch\nimport retrofit.distributed as rd\n", rule.remedy),
        ("import torch\nfrom accelerate import Accelerator\n", "accelerator.gather_for_metrics"),
        ("from lightning.fabric import Fabric\n", "fabric.setup_dataloaders"),
        ("import torch.distributed as dist\n", rule.in_torch),
    ):
        script.write_text(text)
        assert remedy(rule, dialect_of(script, tmp_path)).count(expected) == 1
    (tmp_path / "multigpu.py").write_text('RETROFIT_RUNTIME = "1"\n')
    assert dialect_of(script, tmp_path) == "" and {*IN_ACCELERATE, *IN_FABRIC} <= set(CATALOG)


def test_a_report_fits_its_schema():
    schema = json.loads((ROOT / "docs" / "verify_schema.json").read_text())
    for report in pages().values():
        jsonschema.validate(json.loads(report_as_json(report, CAUSES)), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**json.loads(report_as_json(a_report(), CAUSES)), "status": "OK"}, schema)


def test_durations():
    shown = {0.04: "0.0 s", 9.94: "9.9 s", 9.96: "10 s", 59.6: "60 s", 119.4: "119 s", 119.6: "2 min 00 s"}
    assert {seconds: duration(seconds) for seconds in shown} == shown


def test_printable_keeps_words_and_lines():
    assert printable("a\tb\r\nc ü 学\n") == "a   b\nc ü 学"
