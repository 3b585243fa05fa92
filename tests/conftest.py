"""What tests of several rooms share: the processors, the seed, a command that is refused, and a browser."""

import gc
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

# Processes that test beside each other share the processors; torch, which nothing has imported yet, would take them all.
if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    share = (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, share)))

# A run rightly ignores what it is started with ignored: under nohup SIGHUP, in the background of a script SIGINT.
# Tests send both.
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    battery = parser.getgroup("battery", "random tries, tests/battery")
    battery.addoption("--battery-seed", type=int, default=0, help="of the random numbers")
    battery.addoption(
        "--battery-tries", type=float, default=1.0, help="how many times as many as .ci/run makes"
    )


def pytest_collection_finish() -> None:
    """Let the collector of garbage pass by what was imported: it takes most of a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Let each test draw the same random numbers, whatever ran before it."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture
def refused(capsys) -> Callable[..., str]:
    """`refused(*argv)`: the one line on stderr with which `vit argv` is refused, whose parts may be several words.

    Stdout stays empty.
    """
    from vit.cli import main

    def refused(*argv: object, code: int = 2) -> str:
        capsys.readouterr()
        assert main(shlex.split(" ".join(map(str, argv)))) == code
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("vit: error: ")
        assert len(captured.err.splitlines()) == 1
        return captured.err

    return refused


@pytest.fixture(scope="session")
def driver() -> Iterator[webdriver.Chrome]:
    """Chromium without a window, whose console can be read; where there is none, its tests are skipped."""
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        reason = "no chromium or chromedriver here: apt-get install chromium chromium-driver"
        if os.environ.get("VIT_REQUIRE_BROWSER"):
            pytest.fail(reason)
        pytest.skip(reason)
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--window-size=1280,1000",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(chromedriver))
    yield driver
    driver.quit()
