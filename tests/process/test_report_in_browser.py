"""The report's page in a real browser: nothing in the console, nothing wider than the window, no text too small.

The screenshots stay in pytest's ``tmp_path``, for whoever wants to look.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.event_logs import EventLogWriter, Fault, write_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
LEAST_TEXT_PX = 8
KINDS = (
    ("signal", "was killed by SIGKILL"),
    ("exception", "RuntimeError: CUDA error: an illegal memory access was encountered <b>'\"&"),
    ("stall", "showed no progress for 30 s"),
    ("exit", "left with code 3"),
)
# What the page itself, which allows no script, cannot tell.
MEASURE = """<script>
const heights = [...document.querySelectorAll("svg text")].map(text => text.getBoundingClientRect().height);
console.log("measured " + JSON.stringify({
  beyond: document.documentElement.scrollWidth - innerWidth, texts: heights.length, least: Math.min(...heights)}));
</script>"""


def console(page: Path, width: int = 1280, dark: bool = False) -> list[str]:
    """What the browser's console says while it shows ``page``."""
    folder = page.parent
    picture = folder / f"{page.stem}-{width}-{'dark' if dark else 'light'}.png"
    argv = [
        *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-breakpad", "--no-first-run"),
        *(f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", f"--window-size={width},2400"),
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        *(f"--screenshot={picture}", page.as_uri()),
    ]
    environ = {**os.environ, "HOME": str(folder), "TMPDIR": str(folder)}
    done = subprocess.run(argv, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return re.findall(r':CONSOLE[^\]]*\] "(.*)", source: ', done.stderr)


def report(folder: Path, ranks: int) -> Path:
    """The page of a job with 20 faults."""
    faults = [
        Fault(40, kind=kind, reason=reason, local_rank=(37 * number) % ranks, kept=30 * (number + 1))
        for number, (kind, reason) in enumerate(KINDS * 5)
    ]
    run = write_run(folder / "run", EventLogWriter(nproc=ranks).run(faults, 800))
    page = folder / "report.html"
    argv = [sys.executable, "-m", "ftlaunch.launcher.ftctl", "report", str(run), "--html", str(page)]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, timeout=60)
    return page


def test_an_error_in_a_page_would_be_seen(tmp_path: Path) -> None:
    page = tmp_path / "wrong.html"
    page.write_text("<script>not_there()</script>")
    assert console(page) == ["Uncaught ReferenceError: not_there is not defined"]


@pytest.mark.parametrize("ranks", [8, 1000])
def test_a_report_of_20_faults_is_shown_without_errors_and_can_be_read(tmp_path: Path, ranks: int) -> None:
    pytest.importorskip("matplotlib")
    page = report(tmp_path, ranks)
    assert console(page) == console(page, dark=True) == []
    measured = tmp_path / "measured.html"
    text = page.read_text().replace("default-src 'none';", "default-src 'none'; script-src 'unsafe-inline';")
    measured.write_text(text.replace("</body>", f"{MEASURE}</body>"))
    for width in (1280, 500):
        (said,) = console(measured, width)
        found = json.loads(said.removeprefix("measured "))
        assert found["beyond"] <= 0 and found["texts"] > 40 and found["least"] >= LEAST_TEXT_PX, (width, found)
