"""The report of gma inspect in a real browser."""
import json
import re

import pytest
from conftest import ATTACKS
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

OPEN_ALL = "document.querySelectorAll('details').forEach(d => { d.open = true; });"


def requests(browser):
    events = (json.loads(e["message"])["message"] for e in browser.get_log("performance"))
    return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]


def press(browser, *keys):
    browser.switch_to.active_element.send_keys(*keys)


def focused(browser):
    return browser.js("const e = document.activeElement; return [e.tagName, e.className && e.className.baseVal || e.className || '', e.id,"
                      "e.getAttribute('aria-label') || e.textContent.trim().slice(0, 60), getComputedStyle(e).outlineStyle]")


@pytest.mark.parametrize("which", ["plain", "attacked"])
def test_renders(which, browser, request):
    page = request.getfixturevalue(which)
    browser.show(page)
    browser.js(OPEN_ALL)
    assert browser.title.startswith("gma inspect: ")
    assert browser.js("return document.querySelectorAll('.card').length") == (12 if which == "plain" else 4)
    assert browser.js("return document.querySelectorAll('details.head').length") == (12 if which == "plain" else 4)
    assert browser.js("return [...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert browser.js("return [...document.querySelectorAll('.text')].every(t => t.offsetHeight > 50 && t.querySelectorAll('i').length > 90)")
    boxes = browser.js("return [...document.querySelectorAll('svg.plot')].map(s => { const b = s.getBoundingClientRect(); return [b.width, b.height]; })")
    assert len(boxes) == (24 if which == "plain" else 8) and min(map(min, boxes)) > 150
    # Dots lie in the frame.
    assert browser.js("return [...document.querySelectorAll('svg.map circle')].every(c => c.cx.baseVal.value > 0 && c.cx.baseVal.value < 480 &&"
                      "c.cy.baseVal.value > 0 && c.cy.baseVal.value < 360)")
    assert browser.get_log("browser") == []
    urls = requests(browser)
    assert urls and all(u.startswith((page.as_uri(), "data:", "about:blank")) for u in urls), urls


def test_attacks_are_text(attacked, browser):
    browser.show(attacked)
    browser.js(OPEN_ALL)
    # Over everything: a handler that got in would run.
    browser.js("document.querySelectorAll('*').forEach(e => ['mouseover', 'mouseenter', 'focus', 'click'].forEach(t => "
               "e.tagName === 'A' || e.tagName === 'SUMMARY' || e.dispatchEvent(new MouseEvent(t, {bubbles: true}))));")
    assert browser.js("return window.hit") is None
    assert browser.js("return [document.scripts.length, document.querySelectorAll('iframe, base, style:not(head style), object, embed, form').length]") == [1, 0]
    assert browser.js("return [...document.querySelectorAll('[src]')].every(e => e.getAttribute('src').startsWith('data:'))")
    assert browser.js("return [...document.querySelectorAll('a')].every(e => e.getAttribute('href').startsWith('#'))")
    assert browser.js("return [...document.querySelectorAll('*')].every(e => [...e.attributes].every(a => !a.name.startsWith('on')))")
    shown = browser.js("return document.querySelector('.text').textContent") + browser.js("return document.querySelector('main').textContent")
    for attack in ATTACKS:
        visible = re.sub("[\u200b\u202e]", lambda c: "\\u{%04x}" % ord(c.group()), attack)
        assert visible in shown, attack
    assert "\\xff\\xfe \\xc3( \\xed\\xa0\\x80" in shown  # bytes that are not UTF-8
    assert not re.search("[\x00-\x08\x0b-\x1f\u200b\u202e]", shown)
    assert "<script>window.hit=9</script>" in shown  # a class of the user's
    assert "a<b>&" in browser.js("return document.querySelector('h1').textContent")
    assert "c\"d'" in browser.js("return document.querySelector('#compare').textContent")


def test_keyboard(plain, browser):
    """Tab reaches everything that does something, and what has the focus can be seen."""
    browser.show(plain)
    seen = []
    for _ in range(60):
        press(browser, Keys.TAB)
        f = focused(browser)
        if f[0] == "BODY" or (seen and f[:3] == seen[0][:3] and f[3] == seen[0][3]):
            break
        seen.append(f)
        assert f[4] != "none", f
        assert f[3], f
    kinds = [f[0] if not f[1] else f[1].split()[0] for f in seen]
    assert kinds[0] == "skip"
    assert kinds.count("card") == 12
    assert kinds.count("SUMMARY") >= 13
    for kind in ("text", "att", "plot", "wide"):
        assert kind in kinds, kinds
    assert kinds.index("text") < kinds.index("att") < kinds.index("plot")


def test_arrow_keys_say_what_is_there(plain, browser):
    browser.show(plain)
    say = lambda name: browser.js("return document.getElementById(arguments[0]).textContent", name)
    browser.js("document.getElementById('t0').focus()")
    first = say("t0-say")
    assert re.match(r"Token 1, .*: written to \d+ \(\d+ %\), .*; reads from \d+ \(\d+ %\)", first), first
    press(browser, Keys.ARROW_RIGHT)
    assert say("t0-say").startswith("Token 2, ")
    press(browser, Keys.END)
    last = browser.js("return document.querySelectorAll('#t0 i').length")
    assert say("t0-say").startswith(f"Token {last}, ")
    active = browser.js("return document.getElementById(document.getElementById('t0').getAttribute('aria-activedescendant')).getAttribute('aria-label')")
    assert active == say("t0-say")
    # What is said is what the colours say: the largest component has the token's colour in the legend.
    browser.js("document.querySelector('.att').focus()")
    press(browser, Keys.ARROW_DOWN)
    press(browser, Keys.ARROW_DOWN)
    assert re.search(r"token 3, .*, takes [\d.]+ % from token 1, .*Tokens before this stretch: [\d.]+ %", say("a0-say")), say("a0-say")
    browser.js("document.querySelector('svg.map').focus()")
    press(browser, Keys.ARROW_RIGHT)
    assert re.match(r"Component \d+: written [\d.]+ %, read [\d.]+ %\. Tokens: ", say("m0-say")), say("m0-say")
    component = re.match(r"Component (\d+)", say("m0-say")).group(1)
    press(browser, Keys.ENTER)
    assert browser.js("return location.hash") == f"#l0h0c{component}"
    assert browser.js("const e = document.querySelector(location.hash); return e.offsetHeight > 0 && e.getBoundingClientRect().top < innerHeight")
    assert browser.get_log("browser") == []


def test_weights_of_the_picture_are_those_of_the_table(plain, browser):
    browser.show(plain)
    browser.js(OPEN_ALL)
    browser.js("document.querySelector('.att').focus()")
    rows = browser.js("return [...document.querySelector('details.head details table').rows].slice(1).map(r => r.cells[2].textContent)")
    assert len(rows) == 32
    checked = 0
    for i in range(1, 32):
        press(browser, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)  # cell (i, i): a token and itself
        said = float(re.search(r"takes ([\d.]+) %", browser.js("return document.getElementById('a0-say').textContent")).group(1))
        own = re.search(r"\(%d\)\s+(\d+)\s%%" % (i + 1), rows[i])
        if own:
            assert abs(said - float(own.group(1))) < 1.3, (i, said, rows[i])  # 8 bits of the root
            checked += 1
    assert checked > 10


def test_hovering(plain, browser):
    browser.show(plain)
    token = browser.find_elements(By.CSS_SELECTOR, "#t0 i")[40]
    browser.js("arguments[0].dispatchEvent(new MouseEvent('mouseover', {bubbles: true}))", token)
    assert token.get_attribute("title").startswith("Token 41, ")


def test_links_open_what_they_point_to(plain, browser):
    browser.show(plain)
    browser.find_elements(By.CSS_SELECTOR, "a.card")[7].click()
    assert browser.js("return location.hash") == "#l2h1"
    assert browser.js("return document.getElementById('l2h1').closest('details').open")
    browser.show(plain, "#l3h2c5")
    assert browser.js("return document.getElementById('l3h2c5').offsetHeight") > 0


def luminance(rgb):
    linear = [c / 3294.6 if c <= 10.3 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    a, b = sorted((luminance(a), luminance(b)), reverse=True)
    return (a + 0.05) / (b + 0.05)


def rgba(text):
    x = [float(v) for v in re.findall(r"[\d.]+", text)]
    return x[:3], x[3] if len(x) > 3 else 1.0


def backdrop(browser, element):
    """The colour behind an element: backgrounds over each other, from the page inwards."""
    colours = browser.js("const all = []; for (let e = arguments[0]; e; e = e.parentElement) all.push(getComputedStyle(e).backgroundColor);"
                         "return all;", element)
    below = [255.0] * 3
    for text in reversed(colours):
        rgb, alpha = rgba(text)
        below = [alpha * c + (1 - alpha) * b for c, b in zip(rgb, below)]
    return below


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_themes_can_be_read(theme, plain, browser):
    browser.theme(theme)
    browser.show(plain)
    browser.js(OPEN_ALL)
    page = backdrop(browser, browser.find_element(By.TAG_NAME, "body"))
    assert (luminance(page) > 0.5) == (theme == "light")
    found = 0
    for selector in ["h1", "p", ".card b", ".card b span", ".card p", "dt", "dd", "summary", "summary small", "figcaption", "th", "td", "td .soft",
                     ".components p", ".token", ".legend li", ".esc", ".say", "footer", *(f".text i.c{i}" for i in range(16)), ".text i.cx"]:
        elements = browser.find_elements(By.CSS_SELECTOR, selector)
        if not elements:
            continue
        found += 1
        ink, _ = rgba(browser.js("return getComputedStyle(arguments[0]).color", elements[0]))
        assert contrast(ink, backdrop(browser, elements[0])) >= 4.5, (theme, selector)
    assert found > 25
    # The marks of a chosen token and of the focus are seen against the page.
    assert contrast(rgba(browser.js("return getComputedStyle(document.querySelector('.say')).borderLeftColor"))[0], page) >= 3


@pytest.mark.parametrize("which, width", [("plain", 320), ("plain", 390), ("attacked", 320)])
def test_narrow(which, width, browser, request):
    browser.size(width, 800)
    browser.show(request.getfixturevalue(which))
    browser.js(OPEN_ALL)
    assert browser.js("return document.documentElement.scrollWidth") <= width
    assert browser.js("return parseFloat(getComputedStyle(document.body).fontSize)") >= 16
    # Tables scroll in a box of their own, nothing else sticks out.
    out = browser.js("return [...document.querySelectorAll('main *')].filter(e => !e.closest('.wide') && !e.closest('svg') &&"
                     "e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + '.' + e.className)")
    assert out == []


def test_without_scripts(plain, browser):
    browser.scripts(False)
    browser.show(plain)
    text = browser.find_element(By.CSS_SELECTOR, "#t0")
    assert text.is_displayed() and text.get_attribute("role") == "group"  # the script did not run
    assert len(browser.find_elements(By.CSS_SELECTOR, "#t0 i")) > 500
    colours = {e.value_of_css_property("background-color") for e in browser.find_elements(By.CSS_SELECTOR, "#t0 i")[:200]}
    assert len(colours) > 5
    for selector in ("h1", ".card", ".att img", "svg.map", "#l0h0 > .wide table"):
        assert browser.find_element(By.CSS_SELECTOR, selector).is_displayed(), selector
    assert not any(e.is_displayed() for e in browser.find_elements(By.CSS_SELECTOR, ".script"))  # what only scripts can keep
    second = browser.find_elements(By.CSS_SELECTOR, "details.head")[1]
    assert not second.find_element(By.CSS_SELECTOR, ".text").is_displayed()
    second.find_element(By.TAG_NAME, "summary").click()
    assert second.find_element(By.CSS_SELECTOR, ".text").is_displayed()
    assert browser.get_log("browser") == [] or all("script" in e["message"].lower() for e in browser.get_log("browser"))


def test_for_screen_readers(attacked, browser):
    """What the browser tells a screen reader: every thing that takes the focus has a name; pictures and tables have one."""
    browser.show(attacked)
    browser.js(OPEN_ALL)
    assert browser.js("return document.documentElement.lang") == "en"
    assert browser.js("const ids = [...document.querySelectorAll('[id]')].map(e => e.id); return ids.length - new Set(ids).size") == 0
    levels = browser.js("return [...document.querySelectorAll('h1, h2, h3, h4')].map(e => +e.tagName[1])")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b - a <= 1 for a, b in zip(levels, levels[1:])), levels
    assert browser.js("return [...document.querySelectorAll('th')].every(e => e.scope)")
    browser.execute_cdp_cmd("Accessibility.enable", {})
    nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    browser.execute_cdp_cmd("Accessibility.disable", {})
    told = [n for n in nodes if not n.get("ignored")]
    roles = {n["role"]["value"] for n in told}
    assert {"heading", "link", "listbox", "option", "status", "table", "region"} <= roles, roles
    for n in told:
        takes_focus = any(p["name"] == "focusable" and p["value"].get("value") for p in n.get("properties", []))
        if takes_focus and n["role"]["value"] not in ("RootWebArea", "generic"):
            assert n.get("name", {}).get("value", "").strip(), n
