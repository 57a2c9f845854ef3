"""Every page passes axe, in light and in dark mode: labels, roles, contrast, order of headings."""

import pytest
from axe_playwright_python.sync_playwright import Axe

from browsers import visiting
from viewed_runs import VIEWS

# In dark mode only colours differ.
RULES: dict[str, dict] = {
    "light": {"resultTypes": ["violations"]},
    "dark": {"resultTypes": ["violations"], "runOnly": ["color-contrast", "link-in-text-block"]},
}


@pytest.mark.parametrize("scheme", RULES)
def test_axe_finds_no_violation(browser, address, scheme):
    found = []
    with visiting(browser, address, color_scheme=scheme, bypass_csp=True) as visit:
        for fragment in VIEWS:
            page = visit.open(fragment)
            result = Axe().run(page, options=RULES[scheme])
            found += [
                (fragment, violation["id"], node["html"][:200], node["failureSummary"])
                for violation in result.response["violations"]
                for node in violation["nodes"]
            ]
    assert found == []


def test_no_page_is_wider_than_a_small_window(browser, address):
    with visiting(browser, address) as visit:
        visit.page.set_viewport_size({"width": 1024, "height": 700})
        for fragment in VIEWS:
            page = visit.open(fragment)
            assert page.evaluate("document.documentElement.scrollWidth") <= 1024, fragment
