"""Every page passes axe, in light and in dark mode: labels, roles, contrast, order of headings."""

import pytest

from browsers import violations, visiting
from viewed_runs import VIEWS

# In dark mode only colours differ.
RULES: dict[str, tuple[str, ...]] = {"light": (), "dark": ("color-contrast", "link-in-text-block")}


@pytest.mark.parametrize("scheme", RULES)
def test_axe_finds_no_violation(browser, address, scheme):
    found = []
    with visiting(browser, address, color_scheme=scheme, bypass_csp=True) as visit:
        for fragment in VIEWS:
            found += [(fragment, *one) for one in violations(visit.open(fragment), *RULES[scheme])]
    assert found == []


def test_no_page_is_wider_than_a_small_window(browser, address):
    with visiting(browser, address) as visit:
        visit.page.set_viewport_size({"width": 1024, "height": 700})
        for fragment in VIEWS:
            page = visit.open(fragment)
            assert page.evaluate("document.documentElement.scrollWidth") <= 1024, fragment
