"""The report: what it says of records, and that its page draws in a browser without asking the network."""

from __future__ import annotations

import html
import itertools
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("altair", reason="the report's lab extra is not installed")
pytest.importorskip("vl_convert", reason="the report's lab extra is not installed")
pytest.importorskip("jinja2", reason="the report's lab extra is not installed")

from support.report_records import ENVIRONMENT, LADDER, SIZES, campaign, failed, measured, oblong
from tilewright.errors import RecordError, UsageError, how_to_install
from tilewright.records import report
from tilewright.records.bench import VERDICTS, BenchRecord
from tilewright.records.legible import legible
from tilewright.records.report import charts, conclusions, environment, palette, views
from tilewright.records.report.ladder import Step, ladder_of
from tilewright.records.report.page import kernel_table


def view_of(records: list[BenchRecord]) -> views.View:
    """The first view: the widest thread count of the first machine and dtype."""
    return views.views(views.sections(records)[0])[0]


def body(page: str) -> str:
    """The page without its scripts, as a reader without JavaScript has it."""
    return re.sub(r"<script.*?</script>", "", page, flags=re.S)


# ---- views: what stands together ----


def test_view_of_most_threads_shows_serial_kernels_too():
    two, one = views.views(views.sections(campaign())[0])
    assert (two.threads, one.threads) == (2, 1)
    assert two.kernels == list(LADDER)
    assert one.kernels == ["cpu/naive", "cpu/transposed", "cpu/transposed_simd", "cpu/ikj"]


@pytest.mark.slow
def test_machines_and_dtypes_are_sections_and_runs_are_not():
    other = {**ENVIRONMENT, "processor": "Other 9000"}
    rerun = {**ENVIRONMENT, "command": "tilewright bench again", "git_revision": "fff", "time": "later"}
    records = [
        measured("cpu/ikj", 256),
        measured("cpu/ikj", 512, environment=rerun),
        measured("cpu/ikj", 512, environment=other),
        replace(measured("cpu/ikj", 256), dtype="float64"),
    ]
    labels = [(s.machine, s.dtype, len(s.records)) for s in views.sections(records)]
    xeon = "Example Xeon 8400 @ 2.60 GHz"
    assert labels == [(xeon, "float32", 2), ("Other 9000", "float32", 1), (xeon, "float64", 1)]
    assert [len(machine.runs) for machine in environment.machines(records)] == [2, 1]
    page = report.render(records)
    assert page.count("<article") == 3
    assert "tilewright bench again" in page


def test_same_processor_with_other_libraries_gets_a_name_of_its_own():
    other = {**ENVIRONMENT, "versions": {"numpy": "1.0"}}
    names = [s.machine for s in views.sections([measured("cpu/ikj", 64), measured("cpu/ikj", 64, environment=other)])]
    assert names[1] == f"{names[0]} (2)"


def test_later_measurement_of_a_cell_replaces_the_earlier_and_the_best_parameters_are_shown():
    slow, fast = measured("cpu/blocked", 512), measured("cpu/blocked", 512, samples_s=[1e-6])
    tuned = measured("cpu/blocked", 512, samples_s=[2e-6], params={"block": 32})
    assert views.best_of_cells([fast, slow]) == [slow]
    assert views.best_of_cells([slow, tuned]) == [tuned]
    assert views.best_of_cells([failed("cpu/blocked", 512, "wrong", params={"block": 9}), slow]) == [slow]


def test_not_a_number_is_no_measurement():
    nan = replace(measured("cpu/ikj", 64), median_s=float("nan"), gflops=float("nan"), ratio=float("inf"))
    assert view_of([nan]).measured == []
    report.render([nan, replace(measured("cpu/ikj", 128), ratio=float("nan"), max_abs_error=float("nan"))])


# ---- the staircase ----


def test_gain_is_rung_over_parent_in_the_largest_shape_most_steps_share():
    stairs = ladder_of(view_of(campaign()))
    assert stairs is not None
    assert stairs.shape == "1024"  # cpu/naive is over the limit beyond
    steps = {step.kernel: step for step in stairs.steps}
    assert list(steps) == [kernel for kernel in LADDER if not kernel.startswith("ref/")]
    blocked, parent = measured("cpu/blocked", 1024), measured("cpu/ikj_threads", 1024)
    assert blocked.gflops is not None
    assert parent.gflops is not None
    assert steps["cpu/blocked"].gain == pytest.approx(blocked.gflops / parent.gflops)
    assert steps["cpu/naive"].gain is None
    assert steps["cpu/ikj"].parent == "cpu/naive"
    assert steps["cpu/strassen"].gain is not None
    assert steps["cpu/strassen"].gain < 1
    assert steps["cpu/unrolled"].largest.endswith("at 8192")
    assert "cpu/naive to cpu/register_tile" in stairs.climb


def test_step_that_cannot_be_compared_there_says_where_or_why():
    records = [measured("cpu/naive", n) for n in (64, 128)] + [measured("cpu/transposed", n) for n in (64, 128)]
    records += [measured("cpu/transposed_simd", 64), failed("cpu/transposed_simd", 128, "time_limit")]
    records += [failed("cpu/ikj", n, "out_of_memory") for n in (64, 128)] + [measured("cpu/unrolled", 128)]
    stairs = ladder_of(view_of(records))
    assert stairs is not None
    simd, ikj, unrolled = stairs.steps[2:]
    assert (stairs.shape, simd.shape, simd.elsewhere) == ("64", "64", False)
    assert (ikj.gain, ikj.note) == (None, "does not fit in memory")
    assert "cpu/aligned is not in these records" in unrolled.note


def test_a_gain_that_the_samples_do_not_prove_is_unclear():
    def step(*samples: float) -> Step:
        parent = measured("cpu/naive", 512, samples_s=[0.10, 0.11, 0.10, 0.11])
        records = [parent, measured("cpu/transposed", 512, samples_s=list(samples))]
        stairs = ladder_of(view_of(records))
        assert stairs is not None
        assert stairs.has_unclear == stairs.steps[1].unclear == ("UNCLEAR: the samples" in report.render(records))
        return stairs.steps[1]

    assert not step(0.05, 0.051, 0.05, 0.051).unclear
    assert step(0.09, 0.30, 0.08, 0.12).unclear
    assert step(0.05).unclear, "one sample proves nothing"


def test_threads_that_only_the_rung_has_are_its_step():
    parent = [measured("cpu/ikj", 512, threads=1, samples_s=[0.1])]
    rungs = [measured("cpu/ikj_threads", 512, threads=t, samples_s=[0.1 / t]) for t in (1, 2)]
    step = ladder_of(view_of([*parent, *rungs])).steps[1]  # type: ignore[union-attr]
    assert step.threads == "1 → 2 threads"
    assert step.gain == pytest.approx(2)


def test_gain_is_taken_at_a_thread_count_that_both_have():
    parents = [measured("cpu/blocked", 512, threads=t, samples_s=[0.1 / t]) for t in (1, 2)]
    rung = measured("cpu/aligned", 512, threads=1, samples_s=[0.05])
    step = ladder_of(view_of([*parents, rung])).steps[1]  # type: ignore[union-attr]
    assert step.gain == pytest.approx(2.0)
    assert step.threads == "1 thread"


def test_the_library_call_is_no_step():
    library = replace(measured("cpu/register_tile", 512), kernel="tilewright/matmul")
    stairs = ladder_of(view_of([measured("cpu/naive", 512), measured("cpu/transposed", 512), library]))
    assert stairs is not None
    assert [step.kernel for step in stairs.steps] == ["cpu/naive", "cpu/transposed"]
    assert stairs.climb.startswith("From cpu/naive to cpu/")


def test_records_that_know_no_ladder_have_none():
    assert ladder_of(view_of([measured("ref/openblas", 64), measured("cpu/ikj", 64, about={})])) is None


# ---- the table ----


def test_every_verdict_is_said_in_words_and_every_short_time_is_marked():
    records = [measured("cpu/naive", 16), measured("cpu/naive", 512)]
    records += [failed("cpu/naive", 1000 + i, v, "because") for i, v in enumerate(VERDICTS) if v != "ok"]
    records += [measured("cpu/ikj", 4096)]
    made = kernel_table(view_of(records))
    naive = made.rows[0]
    marks = dict(zip(made.columns, naive.cells, strict=True))
    assert marks["16"].time == "< 0.01 ms"
    assert not marks["16"].best
    assert re.fullmatch(r"\d+ ms", marks["512"].time)
    assert marks["512"].best
    assert {cell.time for cell in naive.cells} >= {VERDICTS[v] for v in VERDICTS if v != "ok"}
    assert marks["1002"].hover.endswith("over the time limit: because")
    assert (marks["4096"].mark, marks["4096"].hover) == ("none", "not measured")
    assert naive.wrong
    assert naive.max_abs_error == f"{3e-7 * 512**0.5:.2g}"


def test_references_come_first_and_columns_put_squares_before_other_shapes():
    made = kernel_table(view_of(campaign() + oblong()))
    assert [row.kernel for row in made.rows[:3]] == ["ref/openblas", "ref/mkl", "cpu/naive"]
    assert made.columns[: len(SIZES)] == tuple(map(str, SIZES))
    assert made.columns[len(SIZES)] == "6 × 2000 × 4"
    assert made.rows[2].note == "1 thread"
    assert made.rows[-1].note == ""


# ---- the charts' data ----


@pytest.mark.slow
def test_charts_draw_what_was_measured():
    view = view_of(campaign() + oblong())
    made = charts.charts(view, palette.kernel_styles(view.kernels))
    assert list(made) == ["gflops", "ratio", "time", "shapes"]
    assert charts.shapes_without_curve(view) == ["6 × 2000 × 4", "64 × 4096 × 4096", "4096 × 64 × 4096"]
    assert "measured peak, 290 GFLOPS" in json.dumps(made["gflops"])
    rows = views.chart_rows(view)
    assert len(rows) == len(view.measured)
    assert {"kernel", "shape", "Time", "GFLOPS", "R", "Spread", "Samples"} <= set(rows[0])


@pytest.mark.slow
def test_one_size_is_shown_shape_by_shape_and_a_peak_out_of_sight_is_said():
    view = view_of([measured("cpu/naive", 512), measured("cpu/ikj", 512)])
    assert list(charts.charts(view, palette.kernel_styles(view.kernels))) == ["shapes"]
    slow = [measured("cpu/naive", n) for n in (256, 512)]
    assert not charts.peak_in_sight(view_of(slow))
    assert "Measured peak: 145 GFLOPS." in report.render(slow)


@pytest.mark.slow
def test_no_peak_no_ratio_no_environment():
    bare = [
        measured("cpu/ikj", n, peak_gflops=None, reference=None, reference_samples_s=[], environment={})
        for n in (64, 128)
    ]
    view = view_of(bare)
    assert view.peak is None
    assert "ratio" not in charts.charts(view, palette.kernel_styles(view.kernels))
    assert "unnamed machine" in report.render(bare)


Triple = tuple[float, ...]
Matrix = tuple[Triple, Triple, Triple]


def linear(colour: str) -> Triple:
    """Linear-light red, green, blue of ``#rrggbb``."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return tuple(p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)


def luminance(colour: str) -> float:
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))


def through(matrix: Matrix, colour: Triple) -> Triple:
    return tuple(sum(w * p for w, p in zip(row, colour, strict=True)) for row in matrix)


def oklab(rgb: Triple) -> Triple:
    """Ottosson's perceptual space; black to white is 1."""
    to_cones: Matrix = (
        (0.4122214708, 0.5363325363, 0.0514459929),
        (0.2119034982, 0.6806995451, 0.1073969566),
        (0.0883024619, 0.2817188376, 0.6299787005),
    )
    to_lab: Matrix = (
        (0.2104542553, 0.7936177850, -0.0040720468),
        (1.9779984951, -2.4285922050, 0.4505937099),
        (0.0259040371, 0.7827717662, -0.8086757660),
    )
    cones = through(to_cones, tuple(min(1.0, max(0.0, p)) for p in rgb))
    return through(to_lab, tuple(max(0.0, c) ** (1 / 3) for c in cones))


#: What is left of a colour without one kind of cones (Machado, Oliveira, Fernandes 2009, severity 1).
VISION: dict[str, Matrix] = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "no green": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.01182, 0.04294, 0.968881),
    ),
    "no blue": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.3039),
    ),
}


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("hues", [palette.LIGHT, palette.DARK], ids=["light", "dark"])
def test_hues_stay_apart_for_every_colour_vision(hues, vision):
    seen = [oklab(through(VISION[vision], linear(hue))) for hue in hues]
    assert min(math.dist(a, b) for a, b in itertools.combinations(seen, 2)) > 0.1


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_colour_stands_out_from_its_paper(theme):
    paper = luminance(palette.INK[theme]["paper"])
    colours = (*palette.LIGHT, *palette.GREYS_LIGHT) if theme == "light" else (*palette.DARK, *palette.GREYS_DARK)
    for colour in colours:
        low, high = sorted((luminance(colour), paper))
        assert (high + 0.05) / (low + 0.05) >= 3, colour


def test_no_two_kernels_look_the_same_and_references_are_dashed():
    drawn = palette.kernel_styles(list(LADDER))
    looks = {(style.light, style.mark, str(style.dash)) for style in drawn.values()}
    assert len(looks) == len(LADDER)
    assert {k for k, style in drawn.items() if style.dash != palette.SOLID} == {"ref/openblas", "ref/mkl"}
    references = palette.kernel_styles([f"ref/{number}" for number in range(15)])
    assert len({(style.light, str(style.dash)) for style in references.values()}) == 15


# ---- the sentences ----


def matmul(n: int, share: float, *, steady: bool = True, **changes: Any) -> BenchRecord:
    """The library's call in ``share`` of the reference's time; of unsteady samples one is ten times as long."""
    theirs = [1.0, 1.001, 1.002, 1.003]
    fields: dict[str, Any] = {"reference_samples_s": theirs, "about": {}, **changes}
    fields["samples_s"] = [share * t for t in (theirs if steady else (1.0, 1.0, 1.002, 10.0))]
    return replace(measured("cpu/register_tile", n, **fields), kernel="tilewright/matmul")


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([matmul(1000, 0.5)], "tilewright.matmul is 2.00 times as fast as OpenBLAS at n = 1000 on 2 threads."),
        (
            [matmul(64, 0.5), matmul(128, 1.25)],
            "tilewright.matmul reaches 80% of the speed of OpenBLAS at n = 128",
        ),
        (
            [matmul(64, 1.01, threads=1)],
            "tilewright.matmul is as fast as OpenBLAS, to within 3%, at n = 64 on 1 thread.",
        ),
        (
            [matmul(64, 0.9, reference_samples_s=[1.0])],
            "on 2 threads. Whether OpenBLAS is slower is unclear: 1 of at least 3 samples needed.",
        ),
        ([matmul(64, 0.9, reference_samples_s=[1.0, 1.0, -1.0])], ": some samples are no positive time."),
        ([measured("cpu/naive", 64, reference_samples_s=[])], "cpu/naive is the fastest kernel with "),
        ([matmul(64, 1.0, reference_samples_s=[])], "tilewright.matmul reaches 0.000524 GFLOPS, "),
        ([measured("ref/mkl", 64)], "Only references were measured; MKL reaches 50.1 GFLOPS."),
        ([failed("cpu/naive", 64, "time_limit")], "No kernel has a result here."),
    ],
)
def test_the_message_is_one_sentence_of_the_record(records, words):
    message = conclusions.bench_message(view_of(records))
    assert words in message
    assert message.endswith(".")


@pytest.mark.thorough
def test_the_message_says_that_the_samples_do_not_tell():
    """The median says R = 2; one sample of four says that anything may be so."""
    view = view_of([matmul(1000, 0.5, steady=False), matmul(512, 0.5), measured("cpu/ikj", 1000)])
    assert conclusions.bench_message(view) == (
        "tilewright.matmul reaches 4.00 GFLOPS, 1% of the measured peak at n = 1000 on 2 threads. "
        "Whether OpenBLAS is slower is unclear: "
        "tilewright.matmul took 500 ms … 5.00 s, and OpenBLAS 1.00 s … 1.00 s."
    )
    assert "R = " not in conclusions.details(view)
    assert "Verdicts at 2 sizes: faster at 1, unclear at 1." in conclusions.details(view)
    assert "The best rung is cpu/ikj" in conclusions.details(view)
    assert "(R = 2.00)" in conclusions.details(view_of([matmul(1000, 0.5)]))
    page = report.render([matmul(1000, 0.5, steady=False)])
    assert page.index("is slower is unclear") < page.index("<main>")


def test_a_page_begins_with_the_machine_that_was_busy():
    """One kernel's reference was starved: its R is in no chart and is a question mark in the table."""
    quiet, why = matmul(512, 0.5), "ref/openblas took 23 times as long on 2 threads as on 1"
    starving = replace(matmul(1000, 0.02), environment={**quiet.environment, "starved": why})
    page = report.render([quiet, starving])
    first = f"The machine was busy: R is unknown (?) for 1 of 2 cells. For example, tilewright/matmul at 1000: {why}."
    assert page.index("</h1>") < page.index(first) < page.index("is unclear:") < page.index("<main>")
    assert f"at n = 1000 on 2 threads. Whether OpenBLAS is slower is unclear: {why}." in page
    view = view_of([quiet, starving])
    assert [cell.ratio for cell in kernel_table(view).rows[0].cells] == ["2.00", "?"]
    assert [row["ratio"] for row in views.chart_rows(view)] == [2.0, None]
    assert "machine was busy" not in report.render([quiet])


def test_the_message_names_the_best_variant_of_the_reference_and_variants_are_no_machines():
    records = [matmul(n, 0.5, environment={**ENVIRONMENT, "variants": {"ref/openblas": core}})
               for n, core in ((64, "Haswell"), (128, "SkylakeX"))]  # fmt: skip
    message = conclusions.bench_message(view_of(records))
    assert "is 2.00 times as fast as OpenBLAS at its best (SkylakeX) at n = 128" in message
    (machine,) = environment.machines(records)
    (run,) = machine.runs
    assert [fact.items[0].text for fact in run if fact.name == "variants"] == ["Haswell, SkylakeX"]


def test_without_the_library_the_message_is_of_the_best_rung():
    view = view_of(campaign())
    assert conclusions.bench_message(view).startswith(
        "cpu/strassen_winograd reaches 240 GFLOPS, 83% of the measured peak at n = 8192 on 2 threads. Whether OpenBLAS is "
    )
    assert conclusions.details(view).startswith("Verdicts at 17 sizes: ")
    assert "higher than that of" not in conclusions.details(view)


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([0.8, 0.9, 1.0, 1.1], "but 4 samples of each do not prove a difference: they took 800 ms … 1.10 s and 1.00 s"),
        ([0.5, 0.501, 0.502, 0.503], "even if the scatter of both is taken into account. So the call does not choose"),
    ],
)
def test_a_rung_ahead_of_the_call_is_explained(samples, words):
    call = matmul(1000, 1.0)
    ahead = measured("cpu/ikj", 1000, samples_s=samples)
    assert words in conclusions.details(view_of([call, ahead]))
    behind = measured("cpu/ikj", 1000, samples_s=[2.0] * 12)
    assert "higher than that of" not in conclusions.details(view_of([call, behind]))


def test_of_many_kernels_the_library_the_best_rung_and_the_references_have_colours():
    view = view_of([*campaign(), *(matmul(n, 0.1) for n in (512, 1024))])
    assert views.emphasised(view) == ["tilewright/matmul", "cpu/strassen_winograd", "ref/openblas", "ref/mkl"]
    few = view_of([r for r in campaign() if r.kernel in ("cpu/ikj", "cpu/blocked", "ref/mkl")])
    assert views.emphasised(few) == ["cpu/ikj", "cpu/blocked", "ref/mkl"]
    others = [
        replace(r, kernel=f"ref/{name}")
        for name in ("openblas_system", "blis")
        for r in campaign()
        if r.kernel == "ref/mkl"
    ]
    assert views.emphasised(view_of([*campaign(), *others]))[1:] == ["ref/openblas", "ref/mkl"]
    drawn = palette.kernel_styles(view.kernels, views.emphasised(view))
    assert [drawn[kernel].light for kernel in views.emphasised(view)[:2]] == list(palette.LIGHT[:2])
    assert list(drawn) == view.kernels


def test_verdicts_are_counted():
    assert conclusions.verdicts(campaign()) == (
        "All 217 results are verified. Cells without a result: 20 over the time limit, 1 does not fit in memory."
    )
    wrong = [failed("cpu/ikj", 64, "wrong"), measured("cpu/ikj", 128)]
    assert conclusions.verdicts(wrong) == "1 result of 2 is wrong."


# ---- the page ----


def test_wrong_results_are_said_at_the_top():
    records = [
        measured("cpu/ikj", 128),
        failed("cpu/blocked", 128, "wrong", "row 3 was never written", error_over_bound=1e9),
    ]
    page = body(report.render(records))
    alert = page[page.index('role="alert"') : page.index("<main>")]
    assert "cpu/blocked" in alert
    assert "row 3 was never written" in alert
    assert "1e+09 times the bound" in alert


def test_only_failed_records_make_a_page_without_charts():
    page = body(report.render([failed("cpu/naive", n, "unsupported", "no such vectors") for n in (64, 128)]))
    assert "Nothing was measured." in page
    assert "not supported here" in page
    assert "<figure" not in page


def test_no_records_is_an_error(tmp_path):
    with pytest.raises(RecordError, match="records is empty"):
        report.render([])
    with pytest.raises(RecordError, match="records is empty"):
        report.save_figures([], tmp_path)


EVIL = "cpu/<script>alert('x')</script>&\u2028"


@pytest.mark.slow
def test_text_from_records_is_escaped_everywhere():
    about = {"idea": "<img src=x onerror=alert(1)>", "parent": "cpu/naive", "order": 2}
    dirty = {**ENVIRONMENT, "processor": "</style><b>CPU", "note": {"<i>": ["</script>"]}}
    records = [measured("cpu/naive", n, environment=dirty) for n in (64, 128)]
    records += [replace(measured("cpu/ikj", n, about=about, environment=dirty), kernel=EVIL) for n in (64, 128)]
    records.append(failed("cpu/blocked", 64, "wrong", "</script><script>alert(2)</script>", environment=dirty))
    page = report.render(records, title="<script>")
    assert page.count("<script") == 3  # the data, the libraries, the page's own
    assert page.count("</script>") == 3
    assert "<img" not in body(page)
    assert "<b>CPU" not in body(page)
    assert "<i>" not in body(page).replace('<i style="', "").replace('<i class="', "")
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S).group(1))  # type: ignore[union-attr]
    assert legible(EVIL) in {cell["kernel"] for cell in data["views"][0]["cells"]}


@pytest.mark.slow
def test_page_names_no_address_to_fetch_and_forbids_fetching():
    page = report.render(campaign())
    assert "default-src 'none'" in html.unescape(page)
    assert not re.search(r"<(script|link|img|iframe)[^>]*\b(src|href)=\"(?!data:,)", body(page) + page[:2000])
    assert "@import" not in page
    assert len(page.encode()) < 2_000_000


def test_write_page_replaces_the_file_whole_or_not_at_all(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("before")
    with pytest.raises(RecordError):
        report.write_page([], path)
    assert path.read_text() == "before"
    assert report.write_page([measured("cpu/ikj", 64)], path) == path
    assert path.read_text(encoding="utf-8").endswith("</html>\n")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_lone_surrogates_do_not_stop_the_page(tmp_path):
    report.write_page([replace(measured("cpu/ikj", 64), kernel="cpu/\ud800")], tmp_path / "report.html")


@pytest.mark.slow
def test_figures_are_written_in_every_format_and_theme(tmp_path):
    records = [r for r in campaign() if r.n in (256, 512, 1024) and r.threads == 2]
    paths = report.save_figures(records, tmp_path / "new", themes=("light", "dark"))
    stems = [f"{name}{theme}" for name in ("gflops", "ratio", "time", "ladder") for theme in ("", "-dark")]
    names = {f"{stem}.{kind}" for stem in stems for kind in ("svg", "png")}
    assert {p.name for p in paths} == names
    assert "measured peak" in (tmp_path / "new" / "gflops.svg").read_text()
    assert (tmp_path / "new" / "ladder.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="pdf"):
        report.save_figures(records, tmp_path, formats=("pdf",))


@pytest.mark.slow
def test_report_imports_records_errors_and_verdicts_only():
    """A result file from any machine renders on any laptop: no NumPy, no Numba, no machine."""
    code = (
        "import sys, tilewright.records.report, tilewright.records.report.page, tilewright.records.report.figures\n"
        "ours = {name for name in sys.modules if name.startswith('tilewright.')}\n"
        "ours = {name for name in ours if not name.startswith('tilewright.records.report')}\n"
        "print(sorted(ours | ({'numpy', 'numba'} & set(sys.modules))))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = ["errors", "records", *(f"records.{part}" for part in ("bench", "compare", "json_data", "legible"))]
    assert out.stdout.strip() == str([f"tilewright.{name}" for name in names])


def test_without_the_lab_extra_the_error_names_it():
    code = "import sys; sys.modules['altair'] = None; import tilewright.records.report as r; r.render([])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "UnavailableError: a report needs altair" in done.stderr
    assert how_to_install("lab") in done.stderr
