"""One browser, one server and one folder of runs for all tests of the pages."""

from pathlib import Path

import pytest

from browsers import CHROMIUM, chromium, serving, visiting
from viewed_runs import add_votes, make_run


@pytest.fixture(scope="session")
def browser():
    if not Path(CHROMIUM).exists():
        pytest.fail(f"{CHROMIUM} is missing: install Debian's package chromium")
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Two runs: "first" with replay, "second" without."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "first")
    make_run(folder / "second", replay=False)
    add_votes(folder / "first", "batch-1-0-0", (True, False, True))
    return folder


@pytest.fixture(scope="session")
def address(runs):
    with serving(runs) as found:
        yield found


@pytest.fixture
def visit(browser, address):
    with visiting(browser, address) as opened:
        yield opened
