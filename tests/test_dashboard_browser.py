"""The page in a real browser: Debian's Chromium, driven by Playwright."""

import http.server
import os
import re
import shutil
import threading
from contextlib import contextmanager

import numpy as np
import pytest
from playwright.sync_api import expect, sync_playwright
from test_dashboard import advance, make_study, serving, standing

import klimb
from klimb.dashboard import report
from klimb.tasks.film import Film, save_film

CHROMIUM = shutil.which("chromium")
if CHROMIUM is None and not os.environ.get("CI"):
    pytest.skip("there is no chromium on this computer", allow_module_level=True)

OPTIONS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
LAPTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
MARKUP = "<img src=x onerror=\"window.pwned='yes'\"><b>bold</b></script><script>window.pwned='yes'</script>"
PATIENCE = 20_000  # milliseconds; a busy computer
expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def browser():
    assert CHROMIUM is not None, "continuous integration must have chromium: see .ci/run"
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield launched
        launched.close()


@contextmanager
def opened(browser, url, complaints=(), **settings):
    """A page; at the end it must not have complained, but for what is expected."""
    context = browser.new_context(viewport=settings.pop("viewport", LAPTOP), **settings)
    context.set_default_timeout(PATIENCE)
    page, heard = context.new_page(), []
    page.on("console", lambda said: heard.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.goto(url)
    try:
        yield page
        assert [said for said in heard if not re.search("|".join(complaints) or "$^", said)] == []
    finally:
        context.close()


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    """A robot's study: six named parameters, failures, pending episodes."""
    path = tmp_path_factory.mktemp("robot") / "arm.db"
    names = ["hip[0]", "hip[1]", "hip[2]", "knee[0]", "knee[1]", "knee[2]"]
    make_study(path, episodes=0, names=names)
    with klimb.Study(path) as study:
        advance(study, 35, fails=(5, 20))
        study.ask_many(6)
    return path


@pytest.fixture(scope="module")
def address(arm):
    with serving(arm) as port:
        yield f"http://127.0.0.1:{port}/"


def painted(page):
    """Wait until what was asked for is on the screen."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def attribute(page, selector, name, wanted):
    expect(page.locator(selector)).to_have_attribute(name, re.compile(wanted))


def test_a_running_study_grows_on_the_page_without_reload(browser, tmp_path):
    path = make_study(tmp_path / "arm.db", episodes=0, batch=5)
    with serving(path) as port, opened(browser, f"http://127.0.0.1:{port}/") as page:
        attribute(page, "#curve", "data-episodes", "^0$")
        page.evaluate("window.stayed = true")
        with klimb.Study(path) as study:
            for episodes in (7, 8):
                advance(study, episodes)
                ended = study.status().done
                attribute(page, "#curve", "data-episodes", f"^{ended}$")
                attribute(page, "#curve", "data-updates", f"^{ended // 5}$")
        expect(page.get_by_text("episodes done").locator("xpath=..")).to_contain_text("15")
        expect(page.locator("#news")).to_contain_text(re.compile("Update [123]: mean return"))
        assert page.evaluate("window.stayed")


def test_a_point_tells_its_numbers_to_the_pointer_and_to_the_keys(browser, arm, address):
    with klimb.Study(arm) as study:
        curve = study.status().curve
    with opened(browser, address) as page:
        attribute(page, "#curve", "data-updates", "^3$")
        canvas, tip = page.locator("#curve"), page.locator("figure:has(#curve) .tip")
        painted(page)
        box = canvas.bounding_box()
        seen = set()
        for x in np.linspace(0.1, 0.98, 12):
            for y in (0.25, 0.5, 0.75, 0.9):
                page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
                painted(page)
                if tip.is_visible():
                    seen.add(tip.inner_text().split("\n")[0])
        assert any(re.fullmatch(r"episode \d+", one) for one in seen)
        assert any(re.fullmatch(r"update \d, after \d+ episodes", one) for one in seen)
        assert "episode 5 failed" in seen or "episode 20 failed" in seen
        page.mouse.move(0, 0)
        expect(tip).to_be_hidden()
        canvas.focus()
        read = []
        for key in ("ArrowRight", "ArrowUp", "ArrowUp", "ArrowLeft"):
            canvas.press(key)
            painted(page)
            read.append(tip.inner_text())
        means = [one for one in read if "mean return" in one]
        assert means, read
        last = curve["mean_return"][int(re.search(r"update (\d)", means[0])[1]) - 1]
        shown = float(re.search("mean return (.*)", means[0])[1].replace("\N{MINUS SIGN}", "-"))
        assert shown == pytest.approx(last, rel=1e-4)


def test_parameters_are_switched_by_list_by_ranking_and_in_the_heat_map(browser, address):
    with opened(browser, address) as page:
        page.locator("#parameter").select_option(label="knee[1]")
        attribute(page, "#detail", "data-parameter", r"^knee\[1\]$")
        attribute(page, "#detail", "aria-label", r"knee\[1\]: mean")
        page.get_by_role("region", name="Ranking of parameters").get_by_role("button", name="hip[2]").click()
        attribute(page, "#detail", "data-parameter", r"^hip\[2\]$")
        page.locator("#heat").click(position={"x": 300, "y": 2 + 3.5 * 15})
        attribute(page, "#detail", "data-parameter", r"^knee\[0\]$")
        page.locator("#grid").click(position={"x": 100, "y": 10})
        attribute(page, "#detail", "data-parameter", r"^hip\[0\]$")
        expect(page.locator("#grid").locator("xpath=..")).to_contain_text("of the movement")
        for summary in page.get_by_text("As a table").all():
            summary.click()
        tables = page.get_by_role("region", name="as a table")
        expect(tables.filter(has=page.get_by_role("cell"))).to_have_count(7)
        expect(page.get_by_role("region", name="Joints and time as a table")).to_contain_text("100 %")


def test_an_episode_is_told_and_another_marked_failed(browser, arm, address):
    done, failed = standing(arm)
    with opened(browser, address, complaints=("400",)) as page:
        said = page.get_by_role("alert").last
        expect(page.get_by_role("spinbutton", name="Episode")).to_have_value("36")
        page.get_by_label("Its return").fill("\N{MINUS SIGN}1,25")
        page.get_by_role("button", name="Tell").click()
        expect(said).to_have_text("Episode 36 is stored.")
        expect(page.get_by_role("spinbutton", name="Episode")).to_have_value("37")
        page.get_by_label("Or why it failed").fill(MARKUP)
        page.get_by_role("button", name="Mark failed").click()
        expect(said).to_have_text("Episode 37 is stored as failed.")
        expect(page.get_by_role("region", name="Latest failures")).to_contain_text(MARKUP)
        page.get_by_role("spinbutton", name="Episode").fill("36")
        page.get_by_label("Its return").fill("3")
        page.get_by_role("button", name="Tell").click()
        expect(said).to_contain_text("was told before, with the return -1.25; that is kept.")
        page.get_by_label("Its return").fill("fast")
        page.get_by_role("button", name="Tell").click()
        expect(said).to_contain_text("Give a number")
        assert page.evaluate("window.pwned") is None
    assert standing(arm) == (done + 1, failed + 1)
    with klimb.Study(arm) as study:
        assert study.status().failures[0] == (37, MARKUP)


def test_a_wrong_token_is_refused_and_the_right_one_opens(browser, arm):
    with serving(arm, token="a-secret-of-the-lab") as port:
        address = f"http://127.0.0.1:{port}/"
        with opened(browser, address, complaints=("401",)) as page:
            expect(page.get_by_role("heading")).to_have_text("This page needs its token")
            page.get_by_label("Token").fill("a-secret-of-the-zoo")
            page.get_by_role("button", name="Open").click()
            expect(page.get_by_role("alert")).to_contain_text("token is missing or wrong")
            assert "arm.db" not in page.content()
            page.get_by_label("Token").fill("a-secret-of-the-lab")
            page.get_by_role("button", name="Open").click()
            expect(page.get_by_role("heading", level=1)).to_have_text("arm.db")
        with opened(browser, f"{address}#token=a-secret-of-the-lab") as page:
            expect(page.get_by_role("heading", level=1)).to_have_text("arm.db")
            assert "secret" not in page.url
            page.reload()
            expect(page.get_by_role("heading", level=1)).to_have_text("arm.db")


def test_another_site_can_neither_read_nor_tell(browser, arm, address):
    before = standing(arm)

    class Blank(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()

        def log_message(self, *words):
            pass

    other = http.server.HTTPServer(("127.0.0.1", 0), Blank)
    threading.Thread(target=other.serve_forever).start()
    attempt = """async ([address, options]) => {
        try { const answer = await fetch(address, options); return [answer.type, await answer.text()]; }
        catch (error) { return ["refused", String(error)]; }
    }"""
    try:
        url = f"http://localhost:{other.server_port}/"
        with opened(browser, url, complaints=(".",)) as page:
            told = {"method": "POST", "body": '{"episode": 38, "return": 1}'}
            tell = f"{address}api/tell?study=arm.db"
            plain = page.evaluate(attempt, [tell, {**told, "mode": "no-cors"}])
            assert plain in (["opaque", ""], ["refused", "TypeError: Failed to fetch"])
            honest = {**told, "headers": {"Content-Type": "application/json"}}
            assert page.evaluate(attempt, [tell, honest])[0] == "refused"
            assert page.evaluate(attempt, [f"{address}api/study?study=arm.db", {}])[0] == "refused"
    finally:
        other.shutdown()
        other.server_close()
    assert standing(arm) == before


def strange_study(folder):
    """A study whose every text is markup."""
    name = "<img src=x onerror=window.pwned='yes'>.db"
    path = make_study(
        folder / name,
        episodes=0,
        batch=5,
        n=2,
        names=[MARKUP, "<i>b</i>[0]"],
        run={"task": MARKUP, MARKUP: MARKUP},
    )
    with klimb.Study(path) as study:
        advance(study, 11, fails=(3,))
        study.fail(study.ask(), MARKUP)
    return name


def check_markup(page, name):
    page.get_by_role("link", name=name).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    expect(page.get_by_role("region", name="Latest failures")).to_contain_text(MARKUP)
    expect(page.get_by_role("region", name="Ranking of parameters")).to_contain_text("<i>b</i>[0]")
    page.locator("#parameter").select_option(label=MARKUP)
    attribute(page, "#detail", "data-parameter", re.escape(MARKUP))
    page.locator("#heat").hover(position={"x": 400, "y": 10})
    expect(page.locator("figure:has(#heat) .tip")).to_contain_text(MARKUP)
    assert page.evaluate("window.pwned") is None
    assert page.locator("main :is(img, b, i:not(.legend i), script)").count() == 0


def test_markup_in_a_study_is_shown_as_text(browser, tmp_path):
    name = strange_study(tmp_path)
    make_study(tmp_path / "plain.db", episodes=10)
    with serving(tmp_path) as port, opened(browser, f"http://127.0.0.1:{port}/") as page:
        check_markup(page, name)


def test_a_report_opens_without_a_network_and_shows_markup_as_text(browser, tmp_path):
    (tmp_path / "studies").mkdir()
    name = strange_study(tmp_path / "studies")
    make_study(tmp_path / "studies" / "plain.db", episodes=20)
    report.write_report(tmp_path / "studies", tmp_path / "report.html")
    asked = []
    with opened(browser, "about:blank", offline=True) as page:
        page.on("request", lambda request: asked.append(request.url))
        page.goto((tmp_path / "report.html").as_uri())
        expect(page.locator("#live")).to_contain_text("report of 20")
        check_markup(page, name)
        expect(page.locator("form")).to_have_count(0)
        page.get_by_role("link", name="klimb", exact=True).click()
        page.get_by_role("link", name="plain.db").click()
        attribute(page, "#curve", "data-updates", "^2$")
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def test_seeds_are_compared_and_lines_can_be_put_away(browser, tmp_path):
    for seed in range(3):
        make_study(tmp_path / f"a{seed}.db", seed=seed, episodes=40)
    make_study(tmp_path / "b.db", algorithm=klimb.creps(epsilon=1.0, kappa=2.0), episodes=40)
    with serving(tmp_path) as port, opened(browser, f"http://127.0.0.1:{port}/") as page:
        line = page.get_by_role("button", name="dr-creps (3 seeds)")
        expect(line).to_have_attribute("aria-pressed", "true")
        line.click()
        expect(line).to_have_attribute("aria-pressed", "false")
        page.get_by_text("As a table").click()
        numbers = page.get_by_role("region", name="Learning curves as a table")
        expect(numbers.get_by_role("row").filter(has_text="dr-creps")).to_contain_text(" to ")
        expect(numbers.get_by_role("row").filter(has_text="one seed")).to_have_count(1)
        make_study(tmp_path / "late.db", seed=9, episodes=40)
        expect(page.get_by_role("link", name="late.db")).to_be_visible()


def test_replays_stand_beside_the_curve(browser, tmp_path):
    path = make_study(tmp_path / "arm.db", episodes=20)
    with serving(path) as port, opened(browser, f"http://127.0.0.1:{port}/") as page:
        attribute(page, "#curve", "data-updates", "^2$")
        expect(page.get_by_role("heading", name="Replays")).to_be_hidden()
        frames = np.full((2, 32, 48, 3), 99, np.uint8)
        save_film(Film(iter(frames), 2, 10), tmp_path / "arm.gif")
        picture = page.get_by_role("img", name="replay arm.gif")
        expect(picture).to_be_visible()
        page.wait_for_function("document.querySelector('img').naturalWidth === 48")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_and_has_words_for_everything(browser, address, scheme):
    with opened(browser, address, viewport=PHONE, color_scheme=scheme) as page:
        attribute(page, "#curve", "data-updates", r"^\d+$")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        light = sum(map(int, re.findall(r"\d+", background))) > 3 * 128
        assert light == (scheme == "light")
        named = """one => one.getAttribute("aria-label") || one.closest("label")?.textContent
            || one.textContent.trim() || one.outerHTML"""
        all_of_them = page.locator("canvas, input, select, button, meter").evaluate_all(
            f"all => all.map({named})"
        )
        nameless = [name for name in all_of_them if name.startswith("<")]
        assert len(all_of_them) > 15
        assert nameless == []
        levels = [
            int(tag[1]) for tag in page.locator("h1, h2").evaluate_all("all => all.map(one => one.tagName)")
        ]
        assert levels[0] == 1
        assert set(levels[1:]) == {2}


def test_the_page_is_used_by_keys_alone(browser, address):
    with opened(browser, address) as page:
        attribute(page, "#curve", "data-updates", r"^\d+$")
        page.locator("#home").evaluate("home => (home.tabIndex = 0, home.focus())")
        reached = []
        for _ in range(60):
            page.keyboard.press("Tab")
            reached.append(
                page.evaluate("document.activeElement.id || document.activeElement.textContent.slice(0, 12)")
            )
        for wanted in (
            "curve",
            "heat",
            "grid",
            "parameter",
            "episode",
            "return",
            "Tell",
            "reason",
            "Mark failed",
        ):
            assert wanted in reached, reached
        page.locator("#heat").focus()
        for key in ("ArrowDown", "ArrowDown", "Enter"):
            page.keyboard.press(key)
            painted(page)
        attribute(page, "#detail", "data-parameter", r"^hip\[1\]$")


def test_a_server_that_went_away_is_named(browser, tmp_path):
    path = make_study(tmp_path / "arm.db", episodes=10)
    with serving(path) as port:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{port}/")
        expect(page.locator("#live")).to_have_text("live")
    expect(page.locator("#live")).to_contain_text("does not answer")
    expect(page.get_by_role("heading", level=1)).to_have_text("arm.db")
    context.close()
