"""The page in headless Chromium, against a daemon and a service on a real cluster. SCREENSHOTS=docs/admin writes the docs' pictures."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.daemon_site import until_beat, until_steps
from tests.throwaway import light_job
from tests.throwaway.slurm import NodeGroup, SlurmCluster
from tests.throwaway.synergy import Synergyd, make_cluster, status

pytest.importorskip("selenium")
from tests.throwaway.browser import Browser, browser, missing

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can ask for others' tokens"),
    pytest.mark.skipif(bool(missing()), reason="Chromium and its driver are not installed"),
]
REST_PORT = 91  # behind the ports of the cluster's own in its block
EVIL = "<img src=x onerror=alert(1)>"
RUNNING = "section.short + section"  # the one behind those that wait
VIEWS = ("#/", "#/day", "#/what-if")
# what stands behind the fact's name, without the small print
GAIN_TEXT = (
    "[...document.querySelectorAll('.facts div')].find(e => e.querySelector('dt').textContent === 'Gain this month')"
    "?.querySelector('dd').firstChild.data"
)
# text below 4.5:1 against what is behind it (WCAG 2.1 AA, 1.4.3), with its ratio
CONTRAST = """
const channel = v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const light = c => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
const parse = text => (text.match(/[\\d.]+/g) ?? []).map(Number);
const ground = e => {
  for (; e; e = e.parentElement) {
    const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] > 0.99) return c;
  }
  return [255, 255, 255];
};
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const e = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || !e.getClientRects().length || e.closest('button:disabled, title, noscript, .bar-text')) continue;
  const style = getComputedStyle(e);
  const a = light(parse(e instanceof SVGElement ? style.fill : style.color)), b = light(ground(e));
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) found.push(`${walker.currentNode.data.trim()} ${ratio.toFixed(2)}`);
}
return found;
"""
# what a screen reader would miss
NAMELESS = """
const all = selector => [...document.querySelectorAll(selector)];
const shown = e => e.getClientRects().length;
const told = selector => all(selector).filter(e => shown(e) && !e.closest('[aria-hidden]'));
return [
  ...all('input, select, textarea').filter(e => shown(e) && !(e.labels?.length || e.ariaLabel)).map(e => `no label: ${e.outerHTML}`),
  ...all('table').filter(e => !e.caption).map(() => 'a table without a caption'),
  ...told('svg').filter(e => e.getAttribute('role') !== 'img' || !e.ariaLabel).map(() => 'a picture without words'),
  ...told('a, button').filter(e => !e.textContent.trim() && !e.ariaLabel).map(e => `no name: ${e.outerHTML}`),
  ...(all('h1').length === 1 ? [] : [`${all('h1').length} h1`]),
  ...['header', 'nav[aria-label]', 'main'].filter(s => all(s).length !== 1),
];
"""


class Site:
    def __init__(self, cluster: SlurmCluster) -> None:
        self.cluster = cluster
        self.address = f"http://127.0.0.1:{cluster.port + REST_PORT}/"
        self.daemon = Synergyd(cluster)
        self.process: subprocess.Popen[bytes] | None = None
        self.jobs: dict[str, int] = {}

    def start_service(self) -> None:
        with (self.cluster.folder / "log" / "synergyrestd.log").open("ab") as log:
            self.process = subprocess.Popen(["synergyrestd"], env=self.cluster.env, stdout=log, stderr=log)
        self.cluster.wait_for((self.cluster.state_dir / "rest.sock").is_socket, 120, "the service")

    def stop_service(self) -> None:
        if self.process is not None:
            self.process.terminate()
            assert self.process.wait(60) == 0
        self.process = None

    def restart_daemon(self) -> None:
        self.daemon.stop()
        self.daemon = Synergyd(self.cluster)

    def token(self, user: str = "root", lifespan_s: int = 1800) -> str:
        text = self.cluster.run("scontrol", "token", f"username={user}", f"lifespan={lifespan_s}").stdout
        return text.strip().partition("=")[2]

    def http(self, target: str, method: str = "GET", body: object = None, user: str = "root") -> tuple[int, Any]:
        raw = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.address}{target}", raw, {"X-SLURM-USER-TOKEN": self.token(user)}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def close(self) -> None:
        self.daemon.stop()
        self.stop_service()


@pytest.fixture(scope="module")
def here() -> Iterator[Site]:
    cluster = make_cluster((NodeGroup("a100", 4, 4),), epoch_s=1)
    key = cluster.folder / "jwt.key"
    key.write_bytes(secrets.token_bytes(32))
    key.chmod(0o600)
    cluster.slurm_conf = (*cluster.slurm_conf, f"AuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key={key}")
    with cluster:
        cluster.conf.write_text(cluster.conf.read_text() + f"\n#SYNERGY RestPort={cluster.port + REST_PORT}\n")
        site = Site(cluster)
        try:
            until_beat(cluster)
            site.start_service()
            plain = "#!/bin/bash\n#SBATCH --gres=gpu:2 --nodes=1 --output=/dev/null\nsleep 900\n"
            cluster.sbatch(plain, "--job-name=plain")
            site.jobs["short"] = light_job.submit(cluster, "short", directive="min_gpus=1 max_gpus=4", gpus=2, steps=60)
            for name in ("llama-7b", EVIL):
                site.jobs[name] = light_job.submit(cluster, name, directive="min_gpus=1 max_gpus=8", gpus=4)
            until_steps(cluster, *list(site.jobs.values())[1:], timeout_s=120)
            for name in ("mixtral-ft", "vit-sweep"):
                site.jobs[name] = light_job.submit(cluster, name, directive="min_gpus=2 max_gpus=4", gpus=4)
            site.jobs["wide"] = light_job.submit(cluster, "wide", directive="min_gpus=4 max_gpus=4 resize=no", gpus=4)
            whole = {"gpus": 4, "options": ("--nodes=4",)}  # the cluster as a whole, of which a plain job has some
            site.jobs["gpt-neo"] = light_job.submit(cluster, "gpt-neo", directive="resize=no", **whole)  # type: ignore[arg-type]
            cluster.wait_for(lambda: len(status(cluster)) >= 6, 120, "the jobs")
            yield site
        finally:
            site.close()


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture
def page(here: Site, tab: Browser) -> Iterator[Browser]:
    """Signed in as root, at the first view; nothing may have been complained about at the end."""
    tab.open(here.address, here.token())
    tab.until_text("The cluster now")
    tab.until("return document.querySelectorAll('tbody tr').length > 2")
    tab.problems()
    yield tab
    assert tab.problems() == []


def visit(page: Browser, place: str) -> None:
    page.run("location.hash = arguments[0]", place)


def nothing_wrong(page: Browser, wrong: str, where: object) -> None:
    """With all details open it lists nothing wrong, twice in a row: a view is drawn, and drawn anew, piece by piece."""
    clean, end_s = 0, time.monotonic() + 30
    while clean < 2:
        page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        time.sleep(0.3)
        found = page.run(wrong)
        clean = 0 if found else clean + 1
        assert not found or time.monotonic() < end_s, (where, found)


def picture(page: Browser, name: str, height: int) -> None:
    """Both themes."""
    folder = os.environ.get("SCREENSHOTS")
    for scheme in ("light", "dark") if folder else ():
        page.scheme(scheme)
        page.shoot(Path(str(folder)) / f"page-{name}-{scheme}.png", height)
    page.scheme("light")


def test_the_cluster_now_names_every_job_and_nothing_of_them_is_markup(here: Site, page: Browser) -> None:
    page.until_text(EVIL, RUNNING)
    assert page.run("return document.querySelectorAll('main img').length") == 0
    page.until(
        "return document.querySelectorAll('.node').length === 4 && document.querySelectorAll('.other').length > 0"
    )
    page.until("return document.querySelectorAll('.gpus .mine').length > 0")
    for name, job_id in here.jobs.items():
        if name != "short":
            page.until_text(str(job_id), "main")
    page.type(f"{RUNNING} input[type=search]", "llama")
    page.until(f"return document.querySelector('{RUNNING} tbody').rows.length === 1")
    page.type(f"{RUNNING} input[type=search]", " ")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_can_be_read_in_both_themes(here: Site, page: Browser, scheme: str) -> None:
    page.scheme(scheme)
    for place in (*VIEWS, f"#/jobs/{here.jobs['llama-7b']}"):
        visit(page, place)
        page.until(
            "return document.querySelector('h1') && document.querySelectorAll('main .facts div, main form').length > 0"
        )
        for wrong in (CONTRAST, NAMELESS):
            nothing_wrong(page, wrong, (place, scheme))
    page.scheme("light")


def test_it_is_used_with_keys_alone(here: Site, page: Browser) -> None:
    order = []
    for _ in range(6):
        page.press("\ue004")  # Tab
        order.append(page.focused())
    assert [o.split(" ", 2)[2] for o in order[:4]] == ["Skip to the content", "Now", "History", "What if"]
    assert order[4].startswith("INPUT find-job")
    page.click("#find-job")
    page.press(str(here.jobs["llama-7b"]), "\ue007")
    page.until_text("llama-7b", "h1")
    page.until("return document.activeElement.tagName === 'H1'")
    live = "return [...document.querySelectorAll('[aria-live], [role=status], [role=alert]')].filter(e => e.getClientRects().length).length"
    assert page.run(live) <= 3


def test_the_last_day_shows_resizes(here: Site, page: Browser) -> None:
    visit(page, "#/day")
    page.until("return document.querySelectorAll('svg .bar').length >= 4", timeout_s=90)
    page.until("return document.querySelectorAll('svg .line').length >= 2")
    page.run("document.querySelectorAll('details')[1].open = true")
    page.until_text("llama-7b", "table:last-of-type")
    page.run("document.querySelectorAll('details')[1].open = false")

    def resized_and_train() -> bool:
        day = here.http("v1/history")[1]
        sizes = {job["job_id"]: {h["gpus"] for h in job["held"] if h["gpus"]} for job in day["jobs"]}
        assert all(total["plain_gpus"] <= 16 for total in day["totals"])
        return any(len(found) > 1 for found in sizes.values()) and day["totals"][-1]["goodput_gpus"] > 0

    here.cluster.wait_for(resized_and_train, 120, "a job's second size, and goodput")
    here.cluster.wait_for(lambda: gain_shown(here, page), 120, "the command's gain on the page")
    visit(page, "#/")
    visit(page, "#/day")
    page.until("return document.querySelectorAll('svg .bar').length >= 4")
    picture(page, "day", 780)


@pytest.mark.parametrize(("place", "days"), [("week", 7), ("month", 31)])
def test_weeks_and_months_show_what_each_day_went_into(here: Site, page: Browser, place: str, days: int) -> None:
    visit(page, f"#/{place}")
    page.until(
        "return document.querySelectorAll('svg .day').length > 0 && document.querySelector('svg .part')", timeout_s=120
    )
    assert page.run("return document.querySelectorAll('svg .day').length") == days
    assert page.run("return document.querySelector('.spans [aria-current]').textContent").lower() == place
    page.run("document.querySelector('details').open = true")
    page.until("return document.querySelector('details table')")
    rows = "[...document.querySelectorAll('details tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"
    told = page.run(f"return {rows}")
    assert len(told) == days and told[-1][0] == time.strftime("%m-%d") and float(told[-1][1]) > 0
    page.run("document.querySelector('details').open = false")
    assert page.run("return document.documentElement.scrollWidth <= window.innerWidth")
    picture(page, place, 480)


def test_a_phone_shows_every_view_without_scrolling_sideways(here: Site, page: Browser) -> None:
    page.resize(390, 844, phone=True)
    try:
        for place in ("#/", "#/day", "#/week", f"#/jobs/{here.jobs['llama-7b']}", "#/what-if"):
            visit(page, place)
            page.until(
                "return document.querySelector('main h1') && document.querySelector('main').innerText.length > 60"
            )
            page.until("return document.documentElement.scrollWidth <= 390", timeout_s=15)
    finally:
        page.resize(1280, 800)


def gain_shown(here: Site, page: Browser) -> bool:
    """Whether both views show the gain that `synergyctl usage` tells; a run that ends meanwhile changes it."""
    told = json.loads(here.cluster.run("synergyctl", "usage", "--json").stdout)["total"]["gain"]
    if told is None:
        return False
    texts = []
    for place in ("#/", "#/day"):
        visit(page, place)
        page.until(f"return /\\d/.test({GAIN_TEXT} ?? '')", timeout_s=60)
        texts.append(page.run(f"return {GAIN_TEXT}"))
    return texts == [f"{100 * told:+.1f} %".replace("-", "−")] * 2


def test_a_jobs_page_tells_why_and_steers_it(here: Site, page: Browser) -> None:
    job = here.jobs["llama-7b"]
    visit(page, f"#/jobs/{job}")
    page.until(
        "return document.querySelector('svg .dot.chosen') && document.querySelectorAll('.charts svg .line').length >= 5",
        timeout_s=90,
    )
    page.until("return document.querySelectorAll('ol.story li').length > 2")
    picture(page, "job", 1180)
    # the form is filled by now with what holds: what is typed stays
    page.until("return performance.getEntriesByType('resource').some(e => e.name.endsWith('/steering'))")
    page.type("#steer-max_gpus", "3")
    assert here.http(f"v1/jobs/{job}/steering", "PUT", {"weight": 2})[0] == 200  # another browser, meanwhile
    page.run("document.querySelector('.steer button:not([type])').click()")
    page.until_text("Somebody else has changed it since, to: weight=2", ".said")
    assert here.http(f"v1/jobs/{job}/steering")[1]["max_gpus"] is None
    page.run("document.querySelector('.steer button:not([type])').click()")
    page.until_text("Set: max_gpus=3", ".said")
    page.run("document.querySelector('.steer button[type]').click()")
    page.until_text("Paused", ".said")
    here.cluster.wait_for(lambda: status(here.cluster)[job]["paused"], 60, "the pause in status")
    page.until("return document.querySelector('.steer button[type]').textContent === 'Resume resizing'")
    page.run("document.querySelector('.steer button[type]').click()")
    page.until_text("Resumed", ".said")
    page.type("#steer-max_gpus", "none")
    page.run("document.querySelector('.steer button:not([type])').click()")
    page.until_text("max_gpus: none is no number", ".said")
    page.problems()  # the 412 is told of on the console too


def test_a_stranger_sees_the_job_and_can_not_steer_it(here: Site, tab: Browser) -> None:
    tab.open(f"{here.address}page/#/jobs/{here.jobs['llama-7b']}", here.token("games"))
    tab.until_text("llama-7b", "h1")
    tab.until("return document.querySelector('.dot')")
    tab.until("return document.querySelector('.steer').closest('section').hidden")
    assert here.http(f"v1/jobs/{here.jobs['llama-7b']}/pause", "POST", {}, "games")[0] == 403
    visit(tab, "#/jobs/999999")
    tab.until_text("is not known", "main")
    tab.problems()


def test_a_what_if_runs_in_the_background(here: Site, page: Browser) -> None:
    here.cluster.wait_for(lambda: here.jobs["short"] not in status(here.cluster), 120, "the short job's end")
    visit(page, "#/what-if")
    page.until("return document.querySelector('#set-Epoch')")
    assert page.run(
        "return [...document.querySelectorAll('#policy, #set-Fairness, #set-Epoch')].map((e) => e.value)"
    ) == ["synergy", "0", "1s"]
    assert "The time between two decisions" in page.text("#about-set-Epoch")
    page.run("document.querySelector('form.grid .first').click()")
    page.until_text("Choose a policy or change a setting", ".said.warn")
    page.run("document.querySelector('#policy').value = 'fifo'")
    page.run("document.querySelector('form.grid .first').click()")
    page.until_text("Done: fifo", ".said", timeout_s=120)
    page.until_text("Average job completion time", "table")
    assert "as it is now" in page.text("thead")
    picture(page, "what-if", 560)
    page.type("#set-Fairness", "lots")
    page.run("document.querySelector('#policy').value = 'synergy'; document.querySelector('form.grid .first').click()")
    page.until_text("Fairness", ".said.warn")


def test_a_link_of_synergyctl_page_signs_in_once(here: Site, tab: Browser) -> None:
    link = here.cluster.run("synergyctl", "page").stdout.strip()
    assert link.startswith(f"http://localhost:{here.cluster.port + REST_PORT}/page/#/login/")
    tab.open(here.address)
    tab.run("sessionStorage.clear()")
    tab.open(link)
    tab.until_text("root", "#who")
    tab.until("return document.querySelectorAll('tbody tr').length > 2")
    assert tab.run("return location.hash") == "#/"
    order = tab.run("return [...document.querySelectorAll('main h2')].map(e => e.firstChild.data)")
    assert order == ["Waiting", "Running", "Nodes"]
    tab.run("sessionStorage.clear()")
    tab.open(link)  # a second time
    tab.until_text("works once, for two minutes", "#signin")
    assert "run synergyctl page and open the link" in tab.text("#signin")
    tab.problems()


def test_an_expired_token_is_one_line_and_the_view_stays(here: Site, tab: Browser) -> None:
    tab.open(here.address, here.token())
    tab.until_text("llama-7b", "main")
    tab.run("sessionStorage.setItem('synergy-token', arguments[0])", here.token(lifespan_s=1))
    tab.until_text("Your token has expired at", "#signin-why")
    assert tab.text("#signin-why").count("\n") == 0 and "llama-7b" in tab.text("main")
    tab.type("#token", "not a token")
    tab.press("\ue007")
    tab.until_text("Your token is not taken", "#signin-why")
    tab.type("#token", f"SLURM_JWT={here.token()}")  # as scontrol prints it
    tab.press("\ue007")
    tab.until("return document.querySelector('#signin').hidden")
    assert "token" not in tab.run("return location.href + document.cookie")
    stored = tab.run("return [Object.keys(localStorage).length, sessionStorage.length]")
    assert stored == [0, 1]
    tab.problems()


@contextmanager
def newer_epoch(page: Browser) -> Iterator[None]:
    """What happens meanwhile is followed by an epoch that the page shows without a reload."""
    shown = "return [...document.querySelectorAll('dl.facts div')].find(d => d.innerText.startsWith('Last epoch'))?.innerText"
    before = page.until(shown)
    yield
    page.until(f"const now = (() => {{ {shown} }})(); return now && now !== arguments[0]", before, timeout_s=90)


def test_it_goes_on_over_restarts_of_service_and_daemon(here: Site, page: Browser) -> None:
    page.run("window.kept = true")
    with newer_epoch(page):
        here.stop_service()
        page.until_text("Trying again", "#state", timeout_s=60)
        assert "llama-7b" in page.text("main")
        here.start_service()
        page.until("return document.querySelector('#state').textContent === ''", timeout_s=90)
    with newer_epoch(page):
        here.restart_daemon()
        until_beat(here.cluster)
    assert page.run("return window.kept")  # no reload
    page.problems()
