"""A headless Chromium, and reports of gma inspect for it to show: one of the model that comes with the sources, and one where every
word, name and class is an attack."""
import os
import shutil
import subprocess

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GMA = os.path.join(ROOT, os.environ.get("GMA_BUILD", "build"), "bin", "gma")
SHAKESPEARE = os.path.join(ROOT, "data", "tinyshakespeare", "input.txt")

ATTACKS = ["<script>window.hit=1</script>", '"><img/src=x/onerror=window.hit=2>', "'onmouseover='window.hit=3", "</i></div><svg/onload=window.hit=4>",
           "</script><script>window.hit=5</script>", "<!--", "-->", "&lt;b&gt;", "\u202egnp.exe", "<iframe/src=http://example.com/>", "a`b=c",
           "<style>*{display:none}</style>", "<base/href=http://example.com/>", "<a/href=javascript:window.hit=6>x</a>", "\u200b", "]]>"]


def gma(*words, cwd):
    done = subprocess.run([GMA, *words], cwd=cwd, capture_output=True, text=True, errors="replace",
                          env={**os.environ, "OMP_WAIT_POLICY": "passive"})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def plain(tmp_path_factory):
    """The report of a trained model."""
    page = tmp_path_factory.mktemp("plain") / "report.html"
    gma("inspect", os.path.join(ROOT, "models", "shakespeare-gma"), "--data", SHAKESPEARE, "--tokens", "3000", "--at", "100", "--span", "32",
        "--out", str(page), cwd=ROOT)
    return page


@pytest.fixture(scope="session")
def attacked(tmp_path_factory):
    """Two models of words, compared; text, titles, classes and names attack the page."""
    here = tmp_path_factory.mktemp("attacked")
    words = [ATTACKS[(7 * i + i // 5) % len(ATTACKS)] for i in range(2000)]
    lines = ["\n = <script>window.hit=7</script> = \n end"] + [" ".join(words[i:i + 13]) for i in range(0, len(words), 13)]
    data = "<img src=x onerror=window.hit=8>&\"'.txt"
    (here / data).write_bytes(b"\xff\xfe \xc3( \xed\xa0\x80 " + "\n".join(lines[1:]).encode() + lines[0].encode() + b"\n")
    (here / "classes.tsv").write_text("-->\t<script>window.hit=9</script>\n]]>\tb\"onload=\"window.hit=10\n")
    gma("data", "encode", data, "tokens", "--tokenizer", "words", cwd=here)
    for run in ("a<b>&", "c\"d'"):
        gma("train", "--data", "tokens", "--tokens", "file", "--out", run, "--preset", "tiny", "--layers", "2", "--width", "32", "--heads",
            "2", "--components", "20", "--context", "32", "--batch", "4", "--steps", "3", "--seed", str(len(run)), cwd=here)
    gma("inspect", "--compare", "a<b>&", "c\"d'", "--data", data, "--classes", "classes.tsv", "--out", "report.html", cwd=here)
    return here / "report.html"


class Browser(webdriver.Chrome):
    def __init__(self):
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or shutil.which("chromium-browser")
        for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking", "--no-first-run",
                     "--host-resolver-rules=MAP * ~NOTFOUND"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        super().__init__(options=options, service=Service(shutil.which("chromedriver")))
        self.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})

    def size(self, width, height=900):
        self.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                             {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})

    def theme(self, name):
        self.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": name}]})

    def scripts(self, on):
        self.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not on})

    def show(self, page, hash=""):
        self.get("about:blank")
        self.get_log("browser"), self.get_log("performance")
        self.get(page.as_uri() + hash)

    def js(self, code, *args):
        return self.execute_script(code, *args)


@pytest.fixture(scope="session")
def session():
    browser = Browser()
    yield browser
    browser.quit()


@pytest.fixture
def browser(session):
    session.size(1100)
    session.theme("light")
    session.scripts(True)
    return session
