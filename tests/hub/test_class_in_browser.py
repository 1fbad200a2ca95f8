"""A class on this machine, as its students have it: a hub of its own, real accounts, and a browser for each student."""

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from certipy import Certipy
from playwright.sync_api import Browser, BrowserContext, expect

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "classroom"), str(ROOT / "tests" / "browser")]

from lab_page import SETTINGS, SIZE, LabPage, wait_for_page  # noqa: E402
from test_lab_in_browser import dashboard  # noqa: E402

from demo import DOMAIN, LAB, STUDENTS, demo_class  # noqa: E402

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make the accounts of students"),
]

SAMPLES = 45_000  # more than are trained on before it is stopped
CARD = "emulated U50, TT bi-directional"
SECONDS = 600.0  # on a busy machine
# In every kernel of a student's notebooks take few samples, and a corpus that is scored fast.
QUICK = "import os\nos.environ |= {{'BTTLAB_QUICK': '1', 'BTTLAB_DATA': '{data}'}}\n"
SPY = """
import glob, socket
def tried(what, path):
    try:
        print(what(path))
    except PermissionError:
        print("refused")
tried(__import__("os").listdir, "{home}")
tried(open, "{home}/notebooks/00_start_here.ipynb")
tried(__import__("os").listdir, "{runtime}")
tried(socket.socket(socket.AF_UNIX).connect, "{socket}")
"""


# A student's server gives its own pages: this one takes a token of whoever opens it and clicks.
ATTACK = """
function attack() {
    document.title = '';
    const page = window.open('HUB/hub/token');
    const timer = setInterval(() => {
        try {
            const token = page.document.querySelector('#token-result')?.innerText;
            if (token) document.title = 'token ' + token;
            else page.document.querySelector('#request-token-form')?.requestSubmit();
        } catch (error) {
            document.title = 'refused ' + error.name;
        }
        if (document.title) clearInterval(timer);
    }, 4000);
}"""
CLICK = "<button onclick='attack()'>Answers of exercise 3</button>"
SERVES = "c.ServerApp.extra_static_paths = [{folder!r}]\n"


@pytest.fixture(scope="module")
def hub(short_airline) -> Iterator[SimpleNamespace]:
    """The hub of `make class`, on another port, with a certificate of an authority of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = min(probe.getsockname()[1], 65_000)
    with demo_class(port) as (settings, passwords), (settings.parent / "log").open("w+") as log:
        data = shutil.copytree(short_airline, settings.parent / "data" / "airline").parent
        for name in STUDENTS:
            home = settings.parent / "home" / name
            settings_folder = home / ".jupyter" / "lab" / "user-settings" / "@jupyterlab"
            files = {settings_folder / f"{file}.jupyterlab-settings": text for file, text in SETTINGS.items()}
            for file, text in (
                files | {home / ".ipython/profile_default/startup/quick.py": QUICK.format(data=data)}
            ).items():
                as_student(name, "mkdir", "-p", str(file.parent))
                as_student(name, "tee", str(file), text=text)
        url = f"https://{DOMAIN}:{port}"
        _plant_attack(settings.parent / "home" / STUDENTS[1], url)
        authority = _certified(settings)
        command = [sys.executable, str(ROOT / "classroom" / "start.py"), str(settings)]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        page = urllib.request.Request(f"https://127.0.0.1:{port}/hub/login", headers={"Host": url.split("/")[2]})
        try:
            wait_for_page(page, process, settings.parent / "log", authority)
            yield SimpleNamespace(url=url, passwords=passwords, folder=settings.parent, page=page)
        finally:
            process.terminate()
            try:
                process.wait(300)
            except subprocess.TimeoutExpired:
                process.kill()
                pytest.fail(f"the hub does not end: {(settings.parent / 'log').read_text()}")


def _plant_attack(home: Path, hub: str) -> None:
    files = {"pages/attack.html": f"{CLICK}<script>{ATTACK.replace('HUB', hub)}</script>"}
    files[".jupyter/jupyter_server_config.py"] = SERVES.format(folder=str(home / "pages"))
    for file, text in files.items():
        as_student(home.name, "mkdir", "-p", str((home / file).parent))
        as_student(home.name, "tee", str(home / file), text=text)


def server_of(hub: SimpleNamespace, student: str) -> str:
    """The address of a student's server."""
    return f"{hub.url.replace('://', f'://{student}.')}/user/{student}"


def as_student(name: str, *command: str, text: str = "") -> None:
    who = {"user": name, "group": name, "extra_groups": []}
    subprocess.run(command, input=text, stdout=subprocess.DEVNULL, text=True, cwd="/", check=True, **who)


def _certified(settings: Path) -> ssl.SSLContext:
    """Give the class a certificate; return what trusts it and nothing else."""
    maker = Certipy(store_dir=str(settings.parent / "tls"))
    authority = maker.create_ca("authority")["files"]["cert"]
    names = ["IP:127.0.0.1", f"DNS:{DOMAIN}", f"DNS:*.{DOMAIN}"]
    files = maker.create_signed_pair("host", "authority", alt_names=names)["files"]
    with settings.open("a") as text:
        text.write(f'certificate = "{files["cert"]}"\nkey = "{files["key"]}"\n')
    return ssl.create_default_context(cafile=authority)


_FETCH = """async ([url, method, token, body]) => {
    const reply = await fetch(url, {method, headers: {'X-XSRFToken': token}, body: body && JSON.stringify(body)});
    return [reply.status, await reply.text()];
}"""


class StudentPage(LabPage):
    """A notebook on a student's server, in the student's own browser: the one that logging in ends at, or another."""

    def __init__(self, context: BrowserContext, hub: SimpleNamespace, student: str, name: str = ""):
        self._url, self._name, self._context, self.page = server_of(hub, student), name, context, context.pages[0]
        self._runtime = str(hub.folder / "run" / student)
        self._open()

    def _open(self) -> None:
        if self._name:
            self.page = self._context.new_page()
            self.page.goto(f"{self._url}/lab/tree/notebooks/{self._name}.ipynb?reset", timeout=SECONDS * 1000)
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=SECONDS * 1000)
        self._kernel_is_idle()

    def _call(self, method: str, path: str, body: dict | None = None):
        tokens = [cookie["value"] for cookie in self._context.cookies(self._url + "/") if cookie["name"] == "_xsrf"]
        # The server's own token is that of the longest path, which comes first.
        status, text = self.page.evaluate(_FETCH, [self._url + path, method, tokens[0], body])
        assert status < 400, text
        return json.loads(text) if text else None


def log_in(browser: Browser, hub: SimpleNamespace, student: str, password: str) -> BrowserContext:
    """A browser of a student's, who has logged in; the server is about to start."""
    context = browser.new_context(viewport=SIZE, ignore_https_errors=True)  # wait_for_page has checked who it is
    page = context.new_page()
    page.goto(f"{hub.url}/")
    page.get_by_label("Username").fill(student)
    page.get_by_label("Password").fill(password)
    page.locator("#login_submit").click()
    return context


@pytest.fixture(scope="module")
def students(hub, browser) -> Iterator[dict[str, BrowserContext]]:
    """Two students, logged in at the same time, with their servers."""
    contexts = {name: log_in(browser, hub, name, hub.passwords[name]) for name in STUDENTS[:2]}
    for name, context in contexts.items():
        context.pages[0].wait_for_url(re.compile(f"/user/{name}/lab"), timeout=SECONDS * 1000)
    yield contexts
    for context in contexts.values():
        context.close()


def test_a_wrong_password_and_a_name_that_is_not_in_the_class(hub, browser):
    for name, password in ((STUDENTS[0], "wrong"), ("nobody", ""), ("root", "")):
        context = log_in(browser, hub, name, password)
        expect(context.pages[0].locator(".login_error")).to_have_text("Invalid username or password", timeout=30_000)
        context.close()


def test_a_click_on_a_classmate_s_link(hub, students):
    """It does not give the account away, as it would from the hub's own name: all pages of an open class have that."""
    victim, classmate = students
    page = students[victim].new_page()
    page.goto(f"{server_of(hub, classmate)}/static/attack.html")
    page.get_by_role("button").click()
    page.wait_for_function("/^(token|refused)/.test(document.title)", timeout=60_000)
    assert page.title() == "refused SecurityError"
    page.goto(f"{hub.url}/hub/home")
    page.add_script_tag(content=ATTACK.replace("HUB", hub.url))
    page.evaluate("attack()")
    page.wait_for_function("/^(token|refused)/.test(document.title)", timeout=60_000)
    assert re.fullmatch("token [0-9a-f]{32}", page.title()), page.title()
    page.close()


def test_a_classmate_s_page_cannot_make_you_act_as_the_classmate(hub, students):
    """It sets the hub's cookie of its author, for the whole domain: with each name that the hub may have for it."""
    victim, classmate = students
    (mine,) = (c for c in students[classmate].cookies(f"{hub.url}/hub/") if c["name"].endswith("jupyterhub-hub-login"))
    page = students[victim].new_page()
    page.goto(f"{server_of(hub, classmate)}/static/attack.html")
    names = {mine["name"], "jupyterhub-hub-login", "__Host-jupyterhub-hub-login"}
    for name in names:
        for path in ("/", "/hub/", "/hub/home"):
            page.evaluate(
                "text => { document.cookie = text; }", f"{name}={mine['value']}; domain={DOMAIN}; path={path}; secure"
            )
    sent = students[victim].cookies(f"{hub.url}/hub/home")
    assert [cookie for cookie in sent if cookie["value"] == mine["value"]], "the page could set no cookie at all"
    page.goto(f"{hub.url}/hub/home")
    assert victim in page.content() and classmate not in page.content()
    students[victim].clear_cookies(name="jupyterhub-hub-login")
    page.close()


def test_a_server_that_does_not_run_is_offered_at_its_own_address(hub, browser):
    """Before the first start, after a stop as that of a server without activity, and after a crash."""
    student = STUDENTS[2]
    context = browser.new_context(viewport=SIZE, ignore_https_errors=True)
    page = context.new_page()
    page.goto(f"{hub.url}/hub/login?next=%2Fhub%2Fhome")
    page.get_by_label("Username").fill(student)
    page.get_by_label("Password").fill(hub.passwords[student])
    page.locator("#login_submit").click()
    page.wait_for_url("**/hub/home")

    def offered() -> bool:
        reply = page.goto(f"{server_of(hub, student)}/lab")
        return reply.status == 424 and page.locator("#start").count() == 1

    def start() -> None:
        page.locator("#start").click()
        page.wait_for_url(re.compile(f"/user/{student}/lab"), timeout=SECONDS * 1000)

    assert offered()
    start()
    page.goto(f"{hub.url}/hub/home")
    page.locator("#stop").click()
    expect(page.locator("#stop")).to_be_hidden(timeout=60_000)
    assert offered()
    start()
    for process in psutil.process_iter(["username", "cmdline"]):
        if process.info["username"] == student and "jupyterhub.singleuser" in " ".join(process.info["cmdline"] or ()):
            process.kill()
    end = time.monotonic() + 120  # the hub looks twice a minute
    while time.monotonic() < end and not offered():
        time.sleep(5)
    assert offered()
    context.close()


def test_a_classmate_reaches_nothing_of_theirs(hub, students):
    victim, spy = students
    own = StudentPage(students[spy], hub, spy)
    runtime = hub.folder / "run" / victim
    kernel = next(runtime.glob("kernel-*-ipc-1"))
    own.run_new(SPY.format(home=hub.folder / "home" / victim, runtime=runtime, socket=kernel))
    output = own.page.locator(".jp-Notebook .jp-CodeCell").last.locator(".jp-OutputArea-output")
    expect(output).to_have_text(re.compile(r"^\s*(refused\s*){4}$"))
    page = students[spy].new_page()
    for path in ("/lab", "/api/contents", "/files/notebooks/00_start_here.ipynb"):
        assert page.goto(server_of(hub, victim) + path).status in (403, 404)
    assert "notebooks" not in page.content() and own.errors == []
    page.close()


def test_two_students_at_once_on_the_dashboard(hub, students):
    """After one of them has run all of notebook 00."""
    labs = [StudentPage(context, hub, name) for name, context in students.items()]
    labs[0].run_all()
    assert labs[0].errors == []
    for lab in labs:
        lab.shut_down()
    labs = [StudentPage(context, hub, name, "03_train_on_the_u50") for name, context in students.items()]
    for lab in labs:
        dashboard(lab)
        lab.select("train on", CARD)
        lab.set_slider("samples", SAMPLES)
        lab.button("Start").click()
    counts = [[], []]
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and not all(len(set(seen)) >= 3 for seen in counts):  # both count while the other does
        for lab, seen in zip(labs, counts, strict=True):
            words = lab.wait_for_text("running")
            seen.append(int(re.search(r"([\d,]+) of", words)[1].replace(",", "")))
        labs[0].page.wait_for_timeout(500)
    assert all(seen == sorted(seen) and seen[0] < seen[-1] for seen in counts), counts
    for lab in labs:
        lab.button("Stop").click()
        lab.wait_for_text("stopped", SECONDS)
        assert lab.errors == []


def test_a_lab_is_fetched_and_handed_in(hub, students):
    """By the list of assignments in a student's JupyterLab; nobody else's home has it then, and the course does."""
    student, context = next(iter(students.items()))
    page = context.pages[0]
    page.get_by_role("menuitem", name="Nbgrader").click()
    page.get_by_role("menuitem", name="Assignment List").click()
    released = page.locator("#released_assignments_list .list_item", has_text=LAB)
    released.get_by_role("button", name="Fetch").click(timeout=SECONDS * 1000)
    fetched = page.locator("#fetched_assignments_list .list_item", has_text=LAB)
    fetched.get_by_role("button", name="Submit").click(timeout=SECONDS * 1000)
    submitted = page.locator("#submitted_assignments_list .list_item", has_text=LAB)
    expect(submitted.first).to_be_visible(timeout=SECONDS * 1000)
    assert (hub.folder / "home" / student / LAB / f"{LAB}.ipynb").is_file()
    (handed_in,) = (hub.folder / "exchange" / "bttlab" / "inbound").iterdir()
    assert handed_in.name.startswith(f"{student}+{LAB}+") and handed_in.owner() == student
    listing = ["ls", str(handed_in.parent)]  # who has handed in is the lecturer's to know
    assert subprocess.run(listing, user=list(students)[1], capture_output=True).returncode != 0


def test_nothing_crosses_in_the_clear(hub):
    """A page that is asked for without TLS is not given, nor to who does not trust the certificate."""
    with pytest.raises(OSError):
        urllib.request.urlopen(hub.page.full_url.replace("https:", "http:"), timeout=30)
    with pytest.raises(OSError, match="certificate verify failed"):
        urllib.request.urlopen(hub.page, timeout=30)


def test_files_are_their_owners_alone_and_servers_listen_on_loopback(hub, students):
    for name in students:
        home = hub.folder / "home" / name
        assert home.stat().st_mode & 0o777 == (hub.folder / "run" / name).stat().st_mode & 0o777 == 0o700
    listening = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout.splitlines()
    ours = [line for line in listening if re.search("python|node", line)]
    assert ours and all(line.split()[3].startswith("127.0.0.1:") for line in ours), ours
