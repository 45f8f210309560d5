"""The documentation site: complete, built without a warning, and quiet in a browser."""

from __future__ import annotations

import doctest
import functools
import html
import http.server
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support import browser

ROOT = Path(__file__).parents[2]
NEEDS_MKDOCS = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("mkdocs", "mkdocstrings", "latex2mathml")),
    reason="mkdocs, mkdocstrings or latex2mathml is not installed: pip install -e '.[docs]'",
)
PAGES = [
    "index.html",
    "api/index.html",
    "api/arrays.html",
    "course/cuda.html",
    "guides/bench.html",
    "gpu.html",
    "records.html",
    "notebooks/see_a_bank_conflict.html",
]


# ---- complete


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_course_has_every_rung_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    course = importlib.import_module("tables.course")
    for name, page in course.PAGES.items():
        written = text(f"docs/course/{name}.md")
        assert re.findall(r"^### `(.+)`$", written, re.MULTILINE) == page.rungs
        for kind in ("rung", "gain"):
            assert re.findall(rf"^<!-- generated: {kind} (.+) -->$", written, re.M) == page.rungs
    assert {*course.rungs()} == {*course.counts()}, "a rung that was counted needs a section in docs/course"


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"site_{name}", ROOT / "docs" / "site" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@NEEDS_MKDOCS
@pytest.mark.thorough  # beside the tests that build the site
@pytest.mark.parametrize("name", ["hooks", "doctests"])
def test_the_docstrings_of_the_extensions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))  # as MkDocs does
    done = doctest.testmod(loaded(name))
    assert done.attempted
    assert not done.failed


# ---- built


def build(project: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Builds the site as CI does: a warning is an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = build(ROOT, out)
    assert done.returncode == 0, done.stderr
    return out


@NEEDS_MKDOCS
@pytest.mark.thorough
def test_pages_ask_no_other_host_for_anything(site: Path) -> None:
    """Links may leave; what a page loads by itself may not."""
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 60
    for page in pages:
        loaded_by = re.findall(r"<(?:script|img|link|iframe|source)\b[^>]*", page.read_text(encoding="utf-8"))
        assert [tag for tag in loaded_by if re.search(r'(?:src|href|srcset)="?(?:https?:)?//', tag)] == [], page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//|@import", sheet.read_text(encoding="utf-8")), sheet.name


@NEEDS_MKDOCS
@pytest.mark.thorough
def test_guides_and_reference_lead_to_each_other(site: Path) -> None:
    guide = (site / "guides" / "matmul.html").read_text(encoding="utf-8")
    assert re.search(r'href="\.\./api/arrays\.html#tilewright\.plan"[^>]*><code>tw\.plan\(a, b\)</code></a>', guide)
    entries = (site / "api" / "arrays.html").read_text(encoding="utf-8")
    assert '<p class="guides">Guides: <a href="../guides/' in entries


@NEEDS_MKDOCS
@pytest.mark.thorough
def test_formulas_are_mathml(site: Path) -> None:
    for name in ("accuracy", "error-bounds", "error-measured"):
        page = (site / f"{name}.html").read_text(encoding="utf-8")
        assert page.count("<math ") > 10
        assert "arithmatex" not in page
        assert not re.search(r"\\[a-z]+\b", re.sub(r"<(script|pre|code).*?</\1>", "", page, flags=re.DOTALL)), (
            "LaTeX is left"
        )


@NEEDS_MKDOCS
@pytest.mark.thorough
def test_the_search_has_a_name_and_tables_scroll_by_keyboard(site: Path) -> None:
    """The hooks replace what the theme writes: a theme that writes something else is noticed here."""
    page = (site / "gpu-speed.html").read_text(encoding="utf-8")
    assert re.search(r'role="dialog" aria-label="Search"', page)
    assert '<table tabindex="0">' in page
    assert "<table>" not in page
    assert '<p tabindex="0"><img' in (site / "index.html").read_text(encoding="utf-8")


@NEEDS_MKDOCS
@pytest.mark.thorough
def test_the_reference_shows_signatures_parameters_examples_and_sources(site: Path) -> None:
    source = (site / "api" / "arrays.html").read_text(encoding="utf-8")
    page = html.unescape(re.sub(r"<[^>]+>", "", source))
    assert re.search(r"precision=['\"]standard", page)  # quoted as the formatter likes that is installed
    assert "with the semantics of matmul in the array API standard" in page
    assert re.search(r"bias\s*\(array of shape \(n,\), default:\s*None\s*\)", page)
    assert ">>> tw.matmul(a, a.T)" in page
    assert "Source code in src/tilewright/api/matmul.py" in page
    assert 'href="errors.html#tilewright.errors.ShapeError"' in source
    for name in ("tilewright.matmul", "tilewright.torch.matmul", "tilewright.dask.matmul", "tilewright.jax.matmul"):
        pages = [
            path.name for path in (site / "api").glob("*.html") if f'id="{name}"' in path.read_text(encoding="utf-8")
        ]
        assert len(pages) == 1, name
        contents = (site / "api" / pages[0]).read_text(encoding="utf-8")
        assert re.search(rf'class="md-ellipsis">\s*(?:<[^>]+>\s*)*{re.escape(name)}\s', contents), (
            f"{name} in the contents"
        )


@pytest.mark.slow
@NEEDS_MKDOCS
@pytest.mark.thorough
def test_dead_links_and_unknown_names_stop_the_build(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(ROOT / "docs", project / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    for name in (
        "src",
        "tests",
        "benchmarks",
        "examples",
        "mkdocs.yml",
        "pyproject.toml",
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
    ):
        (project / name).symlink_to(ROOT / name)
    page = project / "docs" / "start.md"
    right = page.read_text(encoding="utf-8")
    page.write_text(
        f"{right}\n[a page](away.md) [a heading](guides/bench.md#away) [a source](../src/tilewright/away.py) $\\away k$\n"
    )
    linked = build(project, tmp_path / "out")
    page.write_text(f"{right}\n::: tilewright.away\n")
    named = build(project, tmp_path / "out")
    assert linked.returncode
    assert named.returncode
    for wrong in (
        "'away.md'",
        "does not contain an anchor '#away'",
        "'../src/tilewright/away.py'",
        r"no MathML for \away k",
    ):
        assert wrong in linked.stderr
    assert "tilewright.away" in named.stderr


# ---- opened


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and logs nothing. ``/wait`` answers after 50 ms: the browser's own clock does not wait for a worker."""

    def do_GET(self) -> None:
        """Serves a file, or waits."""
        if self.path != "/wait":
            return super().do_GET()
        time.sleep(0.05)
        self.send_response(204)
        return self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The site on this host alone."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


#: A frame as wide as a phone or a desk, and what is seen in it once the page is there and quiet.
FRAME = """<!doctype html><title>frame</title>
<iframe src="PAGE" style="width:WIDTHpx;height:900px;border:0"></iframe><pre id="seen"></pre>
<script>
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const frame = document.querySelector("iframe");
frame.onload = async () => {
  frame.onload = null;
  const page = frame.contentDocument, root = page.documentElement, seen = {errors: [], violations: []};
  frame.contentWindow.addEventListener("error", (e) => seen.errors.push(String(e.message)));
  frame.contentWindow.addEventListener("unhandledrejection", (e) => seen.errors.push(String(e.reason)));
  await wait(500);
  BODY
  seen.title = page.title;
  seen.scheme = page.body.dataset.mdColorScheme;
  seen.paper = getComputedStyle(page.body).backgroundColor;
  seen.overflow = root.scrollWidth - root.clientWidth;
  const images = [...page.querySelectorAll("article img")];
  images.forEach((image) => { image.loading = "eager"; });
  await wait(500);
  seen.shown = images.filter((image) => image.offsetWidth).map((image) => image.src.split("/").pop());
  seen.broken = images.filter((image) => image.offsetWidth && !image.naturalWidth).map((image) => image.src);
  seen.requests = frame.contentWindow.performance.getEntriesByType("resource").map((r) => r.name);
  document.getElementById("seen").textContent = JSON.stringify(seen);
};
</script>
"""

#: Types into the search field and waits for its worker.
SEARCH = """
  page.querySelector("[data-md-toggle=search]").checked = true;
  const field = page.querySelector("[data-md-component=search-query]");
  field.focus();
  field.value = "evicted";
  field.dispatchEvent(new Event("keyup", {bubbles: true}));
  for (let i = 0; i < 200 && !page.querySelector(".md-search-result__item"); i++) {
    await fetch("/wait");
    await wait(100);
  }
  seen.results = [...page.querySelectorAll(".md-search-result__link")].map((a) => a.href.split("/").pop());
"""


def look(site: Path, address: str, page: str, folder: Path, width: int, *flags: str, body: str = "") -> dict[str, Any]:
    """Opens a page of the site in headless Chromium, for which every other host is unresolvable."""
    frame = f"frame-{folder.name}.html"
    words = FRAME.replace("PAGE", page).replace("WIDTH", str(width)).replace("BODY", body)
    (site / frame).write_text(words, encoding="utf-8")
    alone = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    done = browser.chromium(folder, alone, "--window-size=1400,1000", *flags, "--dump-dom", f"{address}/{frame}")
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    found = re.search(r'<pre id="seen">(.+?)</pre>', done.stdout, re.DOTALL)
    assert found, f"the page did not load; console: {console}"
    seen = {**json.loads(html.unescape(found[1])), "console": console}
    assert any(name.endswith(".js") for name in seen["requests"]), "the page's own scripts are seen"
    return {**seen, "requests": [name for name in seen["requests"] if not name.startswith(f"{address}/")]}


def in_browser(test: Any) -> Any:
    for mark in (*browser.MARKS, NEEDS_MKDOCS):
        test = mark(test)
    return test


#: Each page as wide as a desk and as a phone, on light and on dark paper; the front page in all four combinations.
VIEWS = [(page, *view) for page in PAGES for view in ((1280, "light"), (390, "dark"))]
VIEWS += [(PAGES[0], *view) for view in ((1280, "dark"), (390, "light"))]


@in_browser
@pytest.mark.parametrize(("page", "width", "scheme"), VIEWS)
def test_a_page_is_quiet_and_fits(page: str, width: int, scheme: str, site: Path, address: str, tmp_path: Path) -> None:
    preferred = f"--blink-settings=preferredColorScheme={['dark', 'light'].index(scheme)}"
    seen = look(site, address, page, tmp_path, width, preferred)
    browser.check_quiet(seen)
    assert "Tilewright" in seen["title"]
    assert seen["overflow"] <= 0
    assert seen["broken"] == []
    assert seen["scheme"] == {"light": "default", "dark": "slate"}[scheme]
    assert all(("-dark." in name) == (scheme == "dark") for name in seen["shown"])
    assert bool(seen["shown"]) == (page in ("index.html", "course/cuda.html"))


#: The package that brings the rules of accessibility as one script; its Python is not imported.
AXE = importlib.util.find_spec("axe_playwright_python")
#: Lets axe judge the page, and keeps what it calls serious or critical.
JUDGE = """
  const script = page.createElement("script");
  script.src = "/axe.min.js";
  await new Promise((done) => { script.onload = done; page.head.append(script); });
  const found = await frame.contentWindow.axe.run(page, {resultTypes: ["violations"]});
  seen.rules = found.testEngine.version;
  seen.wrong = found.violations.filter((rule) => ["serious", "critical"].includes(rule.impact))
    .map((rule) => [rule.id, rule.nodes.slice(0, 3).map((node) => [node.target.join(" "), node.failureSummary])]);
"""


#: A machine with a mouse, for which the theme lets the keyboard scroll code.
MOUSE = "primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4"


@in_browser
@pytest.mark.skipif(AXE is None, reason="axe is not installed: pip install --no-deps axe-playwright-python")
@pytest.mark.parametrize(
    ("page", "width", "scheme"),
    [
        ("index.html", 1280, "light"),
        ("api/cluster.html", 390, "dark"),
        ("guides/bench.html", 390, "light"),
        ("notebooks/see_a_bank_conflict.html", 1280, "dark"),
    ],
)
def test_a_page_is_accessible(page: str, width: int, scheme: str, site: Path, address: str, tmp_path: Path) -> None:
    assert AXE is not None
    assert AXE.origin is not None
    shutil.copy(Path(AXE.origin).with_name("axe.min.js"), site)
    settings = f"--blink-settings={MOUSE},preferredColorScheme={['dark', 'light'].index(scheme)}"
    seen = look(site, address, page, tmp_path, width, settings, body=JUDGE)
    assert seen["scheme"] == {"light": "default", "dark": "slate"}[scheme]
    assert seen["rules"]
    assert seen["wrong"] == []


@in_browser
@pytest.mark.parametrize("width", [1280, 390])
def test_the_search_finds_without_another_host(width: int, site: Path, address: str, tmp_path: Path) -> None:
    seen = look(site, address, "index.html", tmp_path, width, body=SEARCH)
    browser.check_quiet(seen)
    assert any("streaming.html" in link for link in seen["results"])


@in_browser
def test_a_page_that_asks_another_host_is_found(site: Path, address: str, tmp_path: Path) -> None:
    page = (site / "index.html").read_text(encoding="utf-8")
    (site / "loud.html").write_text(
        page.replace("</body>", '<img src="http://example.invalid/x.png"></body>'), encoding="utf-8"
    )
    with pytest.raises(AssertionError, match=r"example\.invalid"):
        browser.check_quiet(look(site, address, "loud.html", tmp_path, 1280))


@in_browser
def test_the_palette_can_be_switched(site: Path, address: str, tmp_path: Path) -> None:
    """From the system's to light, to dark, and back."""
    click = """
  seen.schemes = [];
  for (let i = 0; i < 3; i++) {
    [...page.querySelectorAll("[data-md-component=palette] label")].find((label) => !label.hidden).click();
    await wait(300);
    seen.schemes.push(page.body.dataset.mdColorScheme);
  }
"""
    seen = look(site, address, "index.html", tmp_path, 1280, "--blink-settings=preferredColorScheme=1", body=click)
    browser.check_quiet(seen)
    assert seen["schemes"] == ["default", "slate", "default"]


@in_browser
def test_what_is_copied_has_no_prompt_and_no_output(site: Path, address: str, tmp_path: Path) -> None:
    """By the theme's button, which marks the code and takes the text that is visible."""
    copy = """
  const code = [...page.querySelectorAll("pre > code")].find((each) => each.querySelector(".gp"));
  code.setAttribute("data-md-copying", "");
  seen.copied = code.innerText.trimEnd();
  seen.marks = [...page.scripts].filter((script) => script.src).map((script) => script.src);
"""
    seen = look(site, address, "index.html", tmp_path, 1280, body=copy)
    browser.check_quiet(seen)
    assert seen["copied"].startswith("import numpy as np\nimport tilewright as tw\n")
    assert seen["copied"].endswith("bool(np.allclose(c, a @ b))")
    scripts = [site / link.removeprefix(f"{address}/") for link in seen["marks"]]
    assert any("data-md-copying" in path.read_text(encoding="utf-8") for path in scripts), (
        "the theme marks it otherwise"
    )
