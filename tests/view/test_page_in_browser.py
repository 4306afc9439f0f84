"""The page in the system's Chromium: what a person does with it, step by step."""

import re
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

import view_runs
from muster.store import RunStore
from view_runs import Served
from writing_on import set_back


def open_at(page: Page, served: Served, state: str = "", run: str = "good") -> None:
    page.goto(f"{served.address}#run={served.id_of(run)}{state and '&' + state}")
    page.wait_for_selector(".tabs")


def until(page: Page, expression: str) -> None:
    """Waits until it holds; not as the page's own script, which its policy forbids to make of text."""
    for _ in range(200):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"never: {expression}")


def test_the_curves_of_a_run_are_drawn_with_what_they_mean(page: Page, served: Served):
    open_at(page, served)
    expect(page.locator("h1")).to_have_text("good")
    expect(page.locator(".facts")).to_contain_text("8of 8, 100")
    titles = page.locator(".chart h3").all_text_contents()
    assert titles[:4] == ["Reward", "Held-out reward", "Each reward", "Groups"]
    assert {
        "Length",
        "Truncated",
        "Entropy",
        "KL to the reference",
        "Clipped tokens",
        "Time per phase",
    } <= set(titles)
    expect(page.locator(".note", has_text="Not recorded")).to_contain_text("Sampler and trainer")
    page.wait_for_selector(".chart .drawing")
    page.click(".chart[data-panel=kl] .info")
    about = page.locator("dialog")
    expect(about).to_contain_text("k3: mean of exp")
    expect(about.locator("code").first).to_have_text("kl")
    page.keyboard.press("Escape")
    expect(about).to_be_hidden()


def test_a_missing_number_is_a_gap(page: Page, served: Served):
    open_at(page, served)
    page.wait_for_selector(".chart[data-panel=entropy] .drawing")
    (line,) = page.locator(".chart[data-panel=entropy] .line").all()
    stretches = (line.get_attribute("d") or "").split("M")[1:]
    assert [stretch.count("L") + 1 for stretch in stretches][:2] == [2, 5]


def test_one_cursor_is_shared_and_a_click_goes_to_the_step(page: Page, served: Served):
    open_at(page, served)
    page.wait_for_selector(".chart[data-panel=entropy] .drawing")
    page.wait_for_selector(".chart[data-panel=reward] .drawing")
    field = page.locator(".chart[data-panel=reward] .field")
    middle = page.evaluate("document.querySelector('.chart[data-panel=reward] .field').clientWidth - 56") / 2
    field.hover(position={"x": 46 + middle, "y": 60})  # step 4 of 8
    expect(page.locator(".chart[data-panel=entropy] .cursor")).to_be_visible()
    expect(page.locator(".chart[data-panel=entropy] .readout")).to_have_text("0.5")
    field.click(position={"x": 46 + middle, "y": 60})
    expect(page.locator("#step-field")).to_have_value("4")
    assert "step=4" in page.url
    page.go_back()
    expect(page.locator(".charts")).to_be_visible()


def test_the_cursor_follows_the_keyboard_too(page: Page, served: Served):
    open_at(page, served)
    page.wait_for_selector(".chart[data-panel=reward] .drawing")
    page.locator(".chart[data-panel=reward] .field").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#spoken")).to_contain_text("step 2: ")
    page.keyboard.press("Enter")
    expect(page.locator("#step-field")).to_have_value("2")


def test_dragging_zooms_all_charts_and_the_address_keeps_it(page: Page, served: Served):
    open_at(page, served)
    page.wait_for_selector(".chart[data-panel=reward] .drawing")
    box = page.locator(".chart[data-panel=reward] .field").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 60, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60, steps=4)
    page.mouse.up()
    expect(page.get_by_role("button", name="show all")).to_be_visible()
    assert "from=" in page.url
    drawn = [chart for chart in page.locator(".drawing").all() if chart.locator(".line").count()]
    ticks = [tuple(chart.locator(".tick[y='151']").all_text_contents()) for chart in drawn]
    assert len(ticks) > 3
    assert len(set(ticks)) == 1
    page.get_by_role("button", name="show all").click()
    expect(page.get_by_role("button", name="show all")).to_have_count(0)


def test_a_double_click_on_a_zoomed_chart_shows_all_steps_and_opens_none(page: Page, served: Served):
    open_at(page, served, "from=2&to=5")
    field = page.locator(".chart[data-panel=reward] .field")
    page.wait_for_selector(".chart[data-panel=reward] .drawing")
    expect(page.get_by_role("button", name="show all")).to_be_visible()
    field.dblclick(position={"x": 200, "y": 60})
    expect(page.get_by_role("button", name="show all")).to_have_count(0)
    page.wait_for_timeout(400)  # by when a click would have opened a step
    expect(page.locator(".charts")).to_be_visible()
    open_at(page, served, "from=2&to=5")
    expect(page.get_by_role("button", name="show all")).to_be_visible()
    field.click(position={"x": 50, "y": 60})
    expect(page.locator("#step-field")).to_have_value("2")


def test_runs_are_searched_and_compared_on_the_same_axes(page: Page, served: Served):
    open_at(page, served)
    page.fill("#run-search", "run_v1")
    expect(page.locator("#run-list .run")).to_have_count(1)
    page.get_by_label("Compare run_v1").check()
    expect(page.locator(".legend li")).to_have_count(2)
    page.wait_for_selector(".chart[data-panel=reward] .drawing")
    lines = page.locator(".chart[data-panel=reward] .line")
    expect(lines).to_have_count(2)
    for look in ("stroke", "stroke-dasharray"):
        first, second = (line.get_attribute(look) for line in lines.all())
        assert first != second
    page.reload()
    expect(page.locator(".legend li")).to_have_count(2)
    expect(page.locator("#run-search")).to_have_value("run_v1")


def test_a_finding_leads_to_its_evidence(page: Page, served: Served):
    open_at(page, served)
    finding = page.locator(".findings li", has_text="repeat each other")
    expect(finding).to_contain_text("(since step 2; likely; half of")
    expect(finding.locator("p", has_text="Change:")).to_be_hidden()
    finding.get_by_text("What it means").click()
    expect(finding.locator("p", has_text="Change:")).to_have_text("Change: Raise sampling.temperature.")
    finding.get_by_role("link", name="step 3, group 1").click()
    expect(page.locator(".group-head h3")).to_contain_text("Group 1 step 3")
    expect(page.locator("tr.chosen .open")).to_have_text("1")


def test_groups_are_sorted_and_filtered(page: Page, served: Served):
    open_at(page, served, "view=samples&step=6")
    order = page.locator("td .open")
    expect(order).to_have_text(["0", "1", "2"])
    page.get_by_role("button", name="Pass").click()
    expect(order).to_have_text(["2", "0", "1"])
    page.get_by_role("button", name="Pass").click()
    expect(order).to_have_text(["1", "0", "2"])
    expect(page.locator("th[aria-sort]")).to_have_attribute("aria-sort", "descending")
    page.select_option("select:has(option[value=failed])", "failed")
    expect(order).to_have_text(["2"])
    page.select_option("select:has(option[value=failed])", "")
    page.fill("#text-field", "in 3 dozen")
    expect(order).to_have_text(["1"])
    expect(page.locator(".flags")).to_contain_text("4 matches")
    page.fill("#text-field", "")
    page.get_by_label("Reward from").fill("0.55")
    page.keyboard.press("Enter")
    expect(order).to_have_text(["1", "0"])


def test_a_rollout_is_seen_token_by_token(page: Page, served: Served):
    open_at(page, served, "view=samples&step=3&group=0")
    expect(page.locator(".rollout")).to_have_count(4)
    tokens = page.locator(".rollout").nth(2).locator(".t")
    expect(tokens).to_have_count(len(view_runs.ANSWERS[2]) + 1)
    expect(tokens.nth(0)).to_have_class("t n2")  # advantage -0.26 where the greatest is 0.99
    page.select_option("#colour-field", "clipped")
    long = page.locator(".rollout").nth(3).locator(".t")
    expect(long.nth(5)).to_have_class("t p4 cut")  # 4/3 is above 1.2, and it is pushed up
    expect(tokens.nth(7)).to_have_class("t n4 cut")  # 2/3 is below 0.8, and it is pushed down
    expect(tokens.nth(5)).to_have_class("t mid")  # 4/3, but pushed down: it has a gradient
    page.select_option("#colour-field", "entropy")
    assert tokens.nth(5).get_attribute("class") == "t q5"
    page.select_option("#colour-field", "part near")
    expect(page.locator(".scale")).to_contain_text("1.5")
    tokens.nth(5).hover()
    tip = page.locator("#tip")
    expect(tip).to_contain_text("ratio1.33")
    expect(tip).to_contain_text("entropy2.5")
    expect(tip).to_contain_text("KL+0.538")
    page.locator(".rollout").nth(2).locator(".tokens").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#spoken")).to_contain_text('token "t", id')
    page.get_by_role("button", name="Token ids").click()
    expect(page.locator(".rollout").nth(1).locator(".t").first).to_have_text("1\u200917")
    expect(page.locator(".raw")).to_contain_text("5 6 7")


def test_best_and_worst_are_compared(page: Page, served: Served):
    open_at(page, served, "view=samples&step=3&group=0")
    page.get_by_role("button", name="Best and worst").click()
    expect(page.locator(".rollout .end")).to_have_text(["best", "worst"])
    expect(page.locator(".rollout .score")).to_have_text(["1.5", "0"])
    page.wait_for_selector(".t.other")
    same = [page.locator(".rollout").nth(n).locator(".t.same").all_text_contents() for n in (0, 1)]
    assert "".join(same[0]) == "".join(same[1]) != ""


def test_the_prompt_is_followed_over_the_run(page: Page, served: Served):
    open_at(page, served, "view=samples&step=4&group=2")
    over = page.locator(".over")
    expect(over.locator("circle.here")).to_have_count(1)
    over.get_by_role("link").last.click()
    expect(page.locator("#step-field")).not_to_have_value("4")


def test_the_keyboard_goes_everywhere(page: Page, served: Served):
    open_at(page, served)
    page.keyboard.press("s")
    expect(page.locator("#step-field")).to_have_value("8")
    page.keyboard.press("[")
    expect(page.locator("#step-field")).to_have_value("7")
    page.keyboard.press("]")
    expect(page.locator("#step-field")).to_have_value("8")
    page.wait_for_selector("tr.chosen")
    page.keyboard.press("j")
    expect(page.locator("tr.chosen .open")).to_have_text("1")
    page.keyboard.press("k")
    expect(page.locator("tr.chosen .open")).to_have_text("0")
    page.keyboard.press("/")
    expect(page.locator("#text-field")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.type("2")
    page.keyboard.press("Enter")
    expect(page.locator("#step-field")).to_have_value("2")
    page.keyboard.press("b")
    expect(page.locator(".rollout")).to_have_count(2)
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_contain_text("next and previous group")
    page.keyboard.press("Escape")
    page.keyboard.press("c")
    expect(page.locator(".charts")).to_be_visible()
    before = page.evaluate("getComputedStyle(document.body).color")
    page.keyboard.press("t")
    assert page.evaluate("getComputedStyle(document.body).color") != before


def test_held_out_completions_settings_and_older_runs_are_shown(page: Page, served: Served):
    open_at(page, served, "view=samples&held=1&step=8")
    expect(page.locator(".rollout")).to_have_count(1)
    page.get_by_role("link", name="Settings").click()
    expect(page.locator(".config")).to_contain_text('use = ["near", "brief"]')
    open_at(page, served, "view=samples&step=1", "run_v1")
    expect(page.locator(".rollout").nth(1).locator(".t").first).to_have_text("10")


def test_folders_of_others_are_shown_with_what_they_lack(page: Page, served: Served):
    open_at(page, served, run="trl-out")
    expect(page.locator(".findings")).to_contain_text("TRL writes texts only")
    expect(page.locator(".findings")).to_contain_text(
        "evaluation-gap lacks the completions of two evaluations"
    )
    page.get_by_role("link", name="Samples").click()
    expect(page.locator(".tokens").first).to_have_text("assistant: answer 0 of step 3")
    open_at(page, served, run="plain")
    page.select_option("select:has(option[value=acc])", "acc")
    expect(page.locator(".chart h3")).to_have_text(["Reward", "acc"])
    page.get_by_role("link", name="Samples").click()
    expect(page.locator(".groups")).to_contain_text("left no samples")


def test_new_steps_of_a_running_run_appear_by_themselves(page: Page, served: Served):
    folder = view_runs.write_run(served.folder / "going-on", 2, is_over=False)
    with set_back(folder, 2) as store:
        open_at(page, served, run="going-on")
        expect(page.locator(".facts")).to_contain_text("2of 8")
        store.append_step(view_runs.report(3))
        expect(page.locator(".facts")).to_contain_text("3of 8", timeout=30_000)
        expect(page.locator("#live")).to_contain_text("live", timeout=10_000)
        line = page.locator(".chart[data-panel=reward] .line")
        expect(line).to_have_attribute("d", re.compile(r"^M[^ML]+L[^ML]+L[^ML]+$"))


def test_a_hostile_run_stays_text(page: Page, served: Served):
    name = next(path.name for path in served.folder.iterdir() if "<" in path.name)
    open_at(page, served, run=name)
    expect(page.locator("h1")).to_have_text(name)
    expect(page.locator(".findings")).to_contain_text("</script><script>window.hurt='script'</script>")
    page.select_option("select:has(option[value*=onerror])", view_runs.HOSTILE[0])
    page.wait_for_selector(".chart .drawing")
    for step, group in ((3, 0), (3, 2)):
        page.goto(
            page.url.split("#")[0] + f"#run={served.id_of(name)}&view=samples&step={step}&group={group}"
        )
        page.wait_for_selector(".rollout .t")
    escaped = page.locator(".rollout").nth(2).locator(".tokens")
    expect(escaped).to_contain_text("\u27e8U+001B\u27e9[2J")
    expect(escaped).to_contain_text("\u27e8U+202E\u27e9")
    page.goto(page.url.split("#")[0] + f"#run={served.id_of(name)}&view=samples&step=2")
    expect(page.get_by_role("alert")).to_contain_text("can't be read as rollouts")
    page.get_by_role("link", name="Settings").click()
    expect(page.locator(".meta")).to_contain_text("</script>")
    assert page.evaluate("window.hurt") is None
    assert page.locator("img, iframe, script:not([src])").count() == 0


@pytest.mark.parametrize(
    ("state", "scheme"),
    [
        ("", "light"),
        ("", "dark"),
        ("view=samples&step=3&group=0", "light"),
        ("view=samples&step=3&group=0", "dark"),
        ("view=samples&step=3&show=pair&ids=1&colour=kl", "light"),
        ("view=samples&step=6&group=2&colour=clipped", "dark"),
        ("view=setup", "light"),
    ],
)
def test_axe_finds_nothing(page: Page, served: Served, state: str, scheme: Literal["light", "dark"]):
    page.emulate_media(color_scheme=scheme)
    open_at(page, served, state)
    page.wait_for_selector({"": ".chart .drawing", "view=setup": ".config"}.get(state, ".rollout .t"))
    found = Axe().run(page).response["violations"]
    assert [
        (one["id"], one["impact"], one["nodes"][0]["html"][:200], one["nodes"][0].get("failureSummary"))
        for one in found
    ] == []


def test_the_page_fits_a_narrow_screen(page: Page, served: Served):
    page.set_viewport_size({"width": 390, "height": 800})
    for state in ("", "view=samples&step=3&group=0&show=pair"):
        open_at(page, served, state)
        page.wait_for_selector(".chart .drawing" if not state else ".rollout .t")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.evaluate("document.getElementById('main').scrollWidth") <= 390
    assert page.locator("#runs").is_hidden()


def test_long_completions_stay_fast(page: Page, served: Served):
    one = view_runs.large_report(1, num_groups=1, size=4, tokens=10_000)
    with RunStore.create(served.folder / "long-texts", view_runs.CONFIG, view_runs.META) as store:
        store.keep_tokenizer(view_runs.byte_tokenizer().to_str())
        store.append_step(one)
    open_at(page, served, "view=samples&step=1", "long-texts")
    until(page, "document.querySelectorAll('.t').length > 20000")
    spent = page.evaluate(
        """async () => {
            const field = document.getElementById("colour-field"), spent = [];
            for (const colour of ["entropy", "advantage", "entropy"]) {
                const start = performance.now();
                field.value = colour;
                field.dispatchEvent(new Event("change"));
                await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
                spent.push(performance.now() - start);
            }
            return Math.min(...spent);
        }"""
    )
    assert page.locator(".t.q5").count() > 3000
    # 0.2 s on two cores with nothing else to do; a busy machine takes its time.
    assert spent < 3000


def test_an_address_that_makes_no_sense_is_survived(page: Page, served: Served):
    page.goto(
        f"{served.address}#run=%E0%A4%A&view=nothing&step=NaN&group=-1&sort=constructor&colour=__proto__&x=1&=&"
    )
    page.wait_for_selector("#run-list .run")
    open_at(page, served, "view=samples&step=NaN&group=77&sort=constructor&colour=__proto__&flag=x&low=a")
    page.wait_for_timeout(300)
    expect(page.locator("h1")).to_have_text("good")
    expect(page.locator("#step-field")).to_have_value("8")
