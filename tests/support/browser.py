"""A page in headless Chromium, from file://, as wide as asked, with every name unresolvable."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MARKS = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium in PATH: the page was not opened in a browser"),
]

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--virtual-time-budget=20000"),
)

#: A frame can be as narrow as a phone; Chromium's own window is never below 500 pixels.
FRAME = """<!doctype html><title>frame</title>
<iframe src="report.html" style="width:{width}px;height:900px;border:0"></iframe><pre id="seen"></pre>
<script>onmessage = (event) => {{ document.getElementById("seen").textContent = event.data; }};</script>
"""

#: Runs in the page after its own scripts, under its own policy, and sends what it saw to its parent.
PROBE = """
(async () => {
  const seen = {errors: [], violations: []};
  addEventListener("error", (e) => seen.errors.push(String(e.message)));
  addEventListener("unhandledrejection", (e) => seen.errors.push(String(e.reason)));
  document.addEventListener("securitypolicyviolation", (e) => seen.violations.push(e.blockedURI));
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  while (document.documentElement.dataset.ready !== "true") await wait(50);
  BODY
  seen.requests = performance.getEntriesByType("resource").map((r) => r.name);
  parent.postMessage(JSON.stringify(seen), "*");
})();
"""


def look(page: str, folder: Path, width: int, body: str, *flags: str) -> dict[str, Any]:
    """Opens the page with a probe in it; its policy gets the probe's hash and stays in force otherwise.

    ``body`` is JavaScript that puts what it sees into ``seen``, and may ``await wait(ms)``; ``console`` is what the browser
    had to say. ``flags`` are given to Chromium beside those of every page.
    """
    probe = PROBE.replace("BODY", body)
    digest = base64.b64encode(hashlib.sha256(probe.encode()).digest()).decode()
    probed = page.replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
    head, _, tail = probed.rpartition("</body>")  # the libraries have one in a string
    probed = f"{head}<script>{probe}</script>\n</body>{tail}"
    (folder / "report.html").write_text(probed, encoding="utf-8")
    frame = folder / "frame.html"
    frame.write_text(FRAME.format(width=width), encoding="utf-8")
    done = chromium(folder, *flags, "--window-size=1400,1000", "--dump-dom", frame.as_uri())
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    found = re.search(r'<pre id="seen">(.+?)</pre>', done.stdout, re.S)
    assert found, f"the probe did not finish; console: {console}"
    seen = json.loads(found.group(1).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    return {**seen, "console": console}


def check_quiet(seen: dict[str, Any]) -> None:
    """Nothing failed in the page, and nothing was asked of the network."""
    noise = {name: seen[name] for name in ("console", "errors", "violations", "requests") if seen[name]}
    assert not noise, noise


def chromium(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder / 'profile'}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
