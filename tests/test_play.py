"""The page to play with: its numbers are those of the library, and people can use it."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import neuralsort.torch as ns
from neuralsort import play
from tests import oracle

SCORES = {
    "apart": [2.0, 5.0, 3.0, 3.2, 1.2, 4.0],
    "two": [0.3, 0.1],
    "tied": [1.0, 2.0, 2.0, 0.5],
    "many": [3.1, 0.2, 4.4, 2.25, 1.7, 4.9, 0.9, 3.6, 2.6, 0.05, 3.3],
}
METHODS = {
    name: getattr(ns, name)
    for name in ("neuralsort", "softsort", "lapsum", "sinkhorn_sort", "sorting_network")
}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")

Evaluate = Callable[[str], Any]


def by_node(expression: str) -> Any:
    script = f"const Relaxations = require('{play.PAGE.parent.as_posix()}/relaxations.js');"
    script += f"console.log(JSON.stringify({expression}))"
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"needs a browser: one of {', '.join(BROWSERS)}")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser) -> Iterator[Any]:
    context = browser.new_context(has_touch=True, viewport={"width": 1100, "height": 760})
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: errors.append(request.url) if "file:" not in request.url
            and "data:" not in request.url else None)  # fmt: skip
    page.goto(play.PAGE.as_uri())
    yield page
    assert not errors
    context.close()


@pytest.fixture(params=["node", "browser"])
def evaluate(request) -> Evaluate:
    if request.param == "browser":
        return request.getfixturevalue("page").evaluate
    if shutil.which("node") is None:
        pytest.skip("needs node")
    return by_node


def test_its_numbers_are_those_of_the_library(evaluate):
    asked = [
        (method, scores, tau, place)
        for method in METHODS
        for scores in SCORES.values()
        for tau in (0.01, 0.5, 30.0)
        for place in (0, len(scores) // 2, len(scores) - 1)
    ]
    calls = ",".join(f"Relaxations.look(...{json.dumps(case)})" for case in asked)
    for (method, scores, tau, place), seen in zip(asked, evaluate(f"[{calls}]"), strict=True):
        s = torch.tensor(scores, dtype=torch.float64, requires_grad=True)
        P = METHODS[method](s, tau=tau)
        (gradient,) = torch.autograd.grad(P.sort(s)[place], s)
        expected = {
            "matrix": P.to_dense(),
            "sorted": P.sort(s),
            "gradient": gradient,
            "entropy": P.entropy(),
        }
        for what, value in expected.items():
            torch.testing.assert_close(
                torch.tensor(seen[what], dtype=torch.float64),
                value.detach(),
                atol=1e-6,
                rtol=1e-6,
                msg=lambda text, case=(method, scores, tau, place, what): f"{case}: {text}",
            )
        assert seen["order"] == P.permutation().tolist() == oracle.stable_descending(scores)


def test_it_shows_every_method_that_is_tested(evaluate):
    assert evaluate("Object.keys(Relaxations.METHODS)") == list(METHODS)


def test_a_score_moves_by_keyboard_and_by_touch(page):
    bar = page.locator(".score").first
    bar.focus()
    page.keyboard.press("ArrowUp")
    assert bar.get_attribute("aria-valuenow") == "2.1"
    page.keyboard.press("End")
    assert bar.get_attribute("aria-valuenow") == "5"
    box = bar.bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.75)
    assert abs(float(bar.get_attribute("aria-valuenow")) - 1.25) < 0.05
    page.mouse.move(box["x"] + 5, box["y"] + box["height"] * 0.75)
    page.mouse.down()
    page.mouse.move(box["x"] + 5, box["y"] + box["height"] * 0.25)
    page.mouse.up()
    assert abs(float(bar.get_attribute("aria-valuenow")) - 3.75) < 0.05


def test_what_is_chosen_is_shown(page):
    page.select_option("#method", "lapsum")
    page.locator("#tau").fill("-2")
    row = page.locator("#matrix tbody tr").nth(2)
    row.focus()
    page.keyboard.press("Enter")
    assert page.locator("#gradient-title").inner_text() == "Gradient of place 3"
    assert "belongs to D" in page.locator("#blend").inner_text()  # 5, 4, 3.2: A is 2, D is 3.2
    assert row.locator("td").nth(6).inner_text() == "3.20"
    page.locator("#count").fill("11")
    page.locator("#count").press("Enter")
    assert page.locator(".score").count() == 11


@pytest.mark.parametrize("width", [1100, 390])
def test_it_fits_a_screen(page, width, tmp_path):
    page.set_viewport_size({"width": width, "height": 760})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.screenshot(path=tmp_path / "play.png", full_page=True)


def test_the_command_says_where_it_is(capsys, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    play.play()
    assert opened == [play.PAGE.as_uri()]
    play.play(browser=False)
    assert capsys.readouterr().out == f"{play.PAGE.as_uri()}\n" * 2
    assert len(opened) == 1
