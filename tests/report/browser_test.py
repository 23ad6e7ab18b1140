"""The report as a browser shows it: headless Chromium through Playwright, one for all of these tests."""

import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tinygen import report

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
EVIL = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
TAG = "<img src=x onerror='window.hacked = 3'>"  # that a file can be called
STEPS = range(1, 41)
LOSSES = [[round(2 / step + 0.1 * (step % 2), 4) for step in STEPS], [round(3 / step, 4) for step in STEPS]]

pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no browser here: none of {', '.join(NAMES)}")


def write_run(folder, run):
    """A run of 40 steps whose grids at steps 1, 20 and 40 are 10, 20 and 30 pixels wide; the second run has no grid at step 20."""
    (folder / "samples").mkdir(parents=True)
    settings = {"batch_size": 8, "optim": {"lr": [0.5, 0.25][run]}, "data": {"name": EVIL}, "train": {"steps": 40}}
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "manifest.json").write_text(json.dumps({"parameters": 1234, "device_kind": "cpu"}))
    with (folder / "metrics.jsonl").open("w") as file:
        for step, loss in zip(STEPS, LOSSES[run], strict=True):
            line = {"step": step, "loss": loss, "lr": 1e-3, "steps_per_s": 5.0 + step % 3, EVIL: step}
            held_out = {"eval_loss": 0.5 + 1 / step, "eval_ema_loss": 0.4 + 1 / step} if step % 10 == 0 else {}
            file.write(json.dumps(line | held_out) + "\n")
    for step, width in ((1, 10), (20, 20), (40, 30)):
        if not (run and step == 20):
            Image.fromarray(np.full((8, width, 3), 40 * run, np.uint8)).save(folder / f"samples/{step:06d}.png")
    Image.fromarray(np.zeros((8, 50, 3), np.uint8)).save(folder / "samples/000040-edges.png")
    Image.fromarray(np.full((8, 60, 3), 200, np.uint8)).save(folder / "data.png")
    (folder / "data.json").write_text(json.dumps([{"label": "cat", "caption": EVIL}]))
    (folder / "prompts.txt").write_text(f"a cat\n{EVIL}\n")
    event = {"time": "2026-11-28T01:40:00", "step": 0, "event": "start", "recipe": EVIL, "changed": {"train.steps": [3200, 40]}}
    (folder / "events.jsonl").write_text(json.dumps(event) + "\n")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """(one run's page, two runs' page)."""
    folders = [tmp_path_factory.mktemp("runs") / name for name in ("a", "b")]
    for run, folder in enumerate(folders):
        write_run(folder, run)
    both = folders[0].parent / "both.html"
    assert report.main([str(folders[0])], out=None) == report.main([str(each) for each in folders], out=str(both)) == 0
    return SimpleNamespace(one=folders[0] / "report.html", two=both)


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser):
    """opened(path, width=1280): the page in a fresh window; at the end of the test, that nothing complained or asked for the network."""
    complaints, contexts = [], []

    def visit(path, width=1280, **options):
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(("file:", "data:")) else complaints.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_function("performance.getEntriesByName('page-ready').length === 1")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert complaints == []


def drawn(page, title, which=-1):
    """Points of a line that a chart draws, read back from its SVG path through the chart's own scale: [[step, value], ...].

    On a logarithmic axis: of the values' logarithms. A chart out of sight is drawn anew when it is scrolled to.
    """
    chart = page.evaluate_handle("(title) => report.charts.find((chart) => chart.title === title)", title)
    chart.evaluate("(chart) => chart.plot.scrollIntoView()")
    page.wait_for_function("(chart) => !chart.stale", arg=chart)
    path = chart.evaluate("(chart, which) => [...chart.plot.querySelectorAll('path.line')].at(which).getAttribute('d')", which)
    left, unit = chart.evaluate("({ view }) => [view.step(0), view.step(1) - view.step(0)]")
    zero, one = chart.evaluate("({ view }) => (state.log ? [1, Math.E] : [0, 1]).map(view.y)")
    places = np.array(re.findall(r"([\d.-]+) ([\d.-]+)", path), float)
    return np.stack([left + places[:, 0] * unit, (places[:, 1] - zero) / (one - zero)], -1)


def settle(page):
    """Waits for the frame that redraws."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def slide(page, selector, value):
    page.locator(selector).evaluate("(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')); }", value)
    settle(page)


def widths(page):
    """Natural widths of the pictures shown, which tell them apart."""
    return page.locator("figure img").evaluate_all(
        "(images) => Promise.all(images.map((each) => each.decode().then(() => each.naturalWidth)))"
    )


def test_charts_are_drawn_with_the_runs_numbers(opened, pages):
    page = opened(pages.one)
    assert page.title() == "a – tinygen report"
    slide(page, "#smoothing", 0)
    np.testing.assert_allclose(drawn(page, "Loss"), np.stack([STEPS, LOSSES[0]], -1), atol=0.02)
    held_out = drawn(page, "Loss: training and held out")
    np.testing.assert_allclose(held_out, [[step, 0.5 + 1 / step] for step in (10, 20, 30, 40)], atol=0.02)
    np.testing.assert_allclose(drawn(page, "Examples per second")[:, 1], [8 * (5 + step % 3) for step in STEPS], atol=0.3)
    assert page.locator("#charts svg[aria-hidden]").count() == page.evaluate("report.charts.length") >= 5


def test_smoothing_averages_and_the_curve_as_logged_stays_behind(opened, pages):
    page = opened(pages.one)
    slide(page, "#smoothing", 100)
    smooth, logged = drawn(page, "Loss")[:, 1], drawn(page, "Loss", 0)[:, 1]
    np.testing.assert_allclose(logged, LOSSES[0], atol=0.02)
    reach = page.evaluate("state.reach")
    kept, total, weight, wanted = np.exp(-1 / reach), 0.0, 0.0, []
    for loss in LOSSES[0]:
        total, weight = kept * total + (1 - kept) * loss, kept * weight + 1 - kept
        wanted.append(total / weight)
    np.testing.assert_allclose(smooth, wanted, atol=0.02)
    assert "over 12 steps" in page.locator("#reach").inner_text()
    slide(page, "#smoothing", 0)
    assert page.locator("#reach").inner_text() == "off"


def test_the_axis_can_be_logarithmic(opened, pages):
    page = opened(pages.one)
    slide(page, "#smoothing", 0)
    page.check("#log")
    settle(page)
    np.testing.assert_allclose(drawn(page, "Loss")[:, 1], np.log(LOSSES[0]), atol=0.03)


def test_hovering_tells_the_values_of_a_step_and_dragging_zooms_every_chart(opened, pages):
    page = opened(pages.one)
    plot = page.locator(".plot").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    at = page.evaluate("[report.charts[0].view.x(10), report.charts[0].view.x(20)]")
    page.mouse.move(box["x"] + at[0], box["y"] + 100)
    said = plot.locator(".tip").inner_text()
    assert "step 10" in said
    assert f"{LOSSES[0][9]:g}" in said
    page.mouse.down()
    page.mouse.move(box["x"] + at[1], box["y"] + 100, steps=3)
    page.mouse.up()
    settle(page)
    np.testing.assert_allclose(page.evaluate("report.charts.slice(0, 2).map((chart) => chart.view.range)"), [[10, 20]] * 2, atol=0.2)
    page.click("#unzoom")
    settle(page)
    assert page.evaluate("report.charts[0].view.range") == [1, 40]


def test_the_slider_the_keys_and_a_click_in_a_chart_choose_the_pictures(opened, pages):
    page = opened(pages.one)
    assert widths(page) == [30, 60, 50]  # samples, training data, the other kind of picture
    slide(page, "#step-0", 1)
    assert widths(page)[0] == 20
    assert page.locator("output[for=step-0]").inner_text() == "step 20"
    page.locator("body").press("ArrowLeft")
    assert widths(page)[0] == 10
    assert page.locator("figure img").first.get_attribute("alt") == "samples of a at step 1"
    assert page.locator("figure a").first.get_attribute("href") == "samples/000001.png"
    page.locator(".plot").first.click(position={"x": page.evaluate("report.charts[0].view.x(39)"), "y": 50})
    assert widths(page)[0] == 30


def test_play_goes_through_all_steps_and_stops(opened, pages):
    page = opened(pages.one)
    page.clock.install()
    play = page.locator(".player button").first
    play.click()
    assert page.locator("output[for=step-0]").inner_text() == "step 1"
    assert play.inner_text() == "Pause"
    page.clock.run_for(5000)
    assert page.locator("output[for=step-0]").inner_text() == "step 40"
    assert play.inner_text() == "Play"


def test_the_configuration_can_be_filtered(opened, pages):
    page = opened(pages.two)

    def shown():
        return page.locator("#settings tbody tr:visible th").all_inner_texts()

    assert shown() == ["batch_size", "data.name", "optim.lr", "train.steps"]
    page.check("#differs")
    assert shown() == ["optim.lr", "train.steps"]
    page.fill("#search", "LR")
    assert shown() == ["optim.lr"]
    page.uncheck("#differs")
    page.fill("#search", "window.hacked")
    assert shown() == ["data.name"]


def test_two_runs_stand_side_by_side_in_the_same_charts_and_under_one_slider(opened, pages):
    page = opened(pages.two)
    slide(page, "#smoothing", 0)
    for run in (0, 1):
        np.testing.assert_allclose(drawn(page, "Loss", run)[:, 1], LOSSES[run], atol=0.03)
    assert (
        len(set(page.locator(".plot").first.locator("path.line").evaluate_all("(all) => all.map((each) => getComputedStyle(each).stroke)")))
        == 2
    )
    slide(page, "#step-0", 1)
    assert widths(page)[:3] == [20, 10, 60]  # the nearest of the run that has none at step 20; the same training data once
    assert "nearest: step 1" in page.locator("figcaption").nth(1).inner_text()
    page.click(".toolbar button:has-text('a')")
    settle(page)
    assert page.locator(".plot").first.locator("path.line").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_down_only_in_either_theme(opened, pages, scheme):
    page = opened(pages.two, width=390, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert all(box["width"] <= 390 for box in (each.bounding_box() for each in page.locator(".plot svg[aria-hidden]").all()))
    paper = [int(part) for part in re.findall(r"\d+", page.locator("body").evaluate("(body) => getComputedStyle(body).backgroundColor"))]
    assert (max(paper) < 60) == (scheme == "dark")


def test_what_files_say_is_shown_and_not_run(opened, pages):
    page = opened(pages.one)
    assert page.evaluate("window.hacked") is None
    assert page.locator(".facts").inner_text().count(EVIL) == 2  # the recipe, the data set's name
    assert page.locator("h4", has_text="window.hacked").inner_text() == EVIL
    assert page.locator("[aria-label^=Captions] li").all_inner_texts() == [f"cat: {EVIL}"]
    assert page.locator("[aria-label^=Prompts] li").all_inner_texts() == ["a cat", EVIL]


def test_what_files_and_texts_are_called_and_say_is_shown_and_not_run(opened, tmp_path):
    folder = tmp_path / TAG
    write_run(folder, 0)
    Image.fromarray(np.full((8, 70, 3), 200, np.uint8)).save(folder / f"samples/000040-{TAG}.png")
    (folder / "samples" / "000040-words.txt").write_text(f"[0]\n{EVIL}\n")
    assert report.main([str(folder)], out=str(tmp_path / "page.html")) == 0
    page = opened(tmp_path / "page.html")
    assert page.evaluate("window.hacked") is None
    assert TAG in page.locator("h1").inner_text()
    assert page.locator("h3", has_text=TAG).count() + page.locator("h4", has_text=TAG).count() >= 1
    assert EVIL in page.locator("main").inner_text()


@pytest.mark.slow
def test_every_control_and_picture_has_a_name(opened, pages):
    page = opened(pages.two)
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.locator("input").evaluate_all("(all) => all.every((each) => each.labels.length === 1 && each.labels[0].textContent.trim())")
    assert page.locator("img").evaluate_all("(all) => all.every((each) => each.alt)")
    assert page.locator(".plot").evaluate_all("(all) => all.every((each) => each.getAttribute('role') === 'img' && each.ariaLabel)")
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
