"""A notebook in JupyterLab, as a reader handles it."""

import ast
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from jupyter_client import BlockingKernelClient, find_connection_file
from playwright.sync_api import BrowserContext, Locator, TimeoutError, expect

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "a-token-for-the-test"
SIZE = {"width": 1280, "height": 1000}
SECONDS = 600.0  # that cells may take on a busy machine
PATIENCE = 180.0  # that anything else may take
POLLING = 100  # ms between two looks: a page that has nothing to draw has no frames at which to look
expect.set_options(timeout=1000 * PATIENCE)
_FIND_TEXT = """part => {
    const lines = [...document.querySelectorAll('.widget-html')].map(line => line.innerText.replace(/\\s+/g, ' '));
    return lines.find(line => line.includes(part)) ?? null;
}"""
_STATE = """() => {
    const lines = [...document.querySelectorAll('.widget-html, .jp-Dialog')].map(one => one.innerText);
    return ['focus', document.activeElement.outerHTML.slice(0, 300), ...lines].join(' | ');
}"""
_ALL_RAN = """() => {
    const prompts = [...document.querySelectorAll('.jp-CodeCell .jp-InputArea-prompt')].map(one => one.innerText);
    const failed = document.querySelector(".jp-OutputArea-output[data-mime-type*='error']") !== null;
    return failed ? !prompts.some(text => text.includes('*')) : prompts.every(text => /\\[\\d+\\]/.test(text));
}"""
_CONTROLS = """cell => {
    const found = cell.querySelectorAll('.jp-OutputArea-output :is(button, select, input, textarea, .noUi-handle)');
    return [...found].filter(one => one.checkVisibility() && !one.disabled);
}"""
_NAME = """one => {
    const box = one.closest('.jupyter-widgets');
    const label = box.querySelector('.widget-label, .widget-label-basic')?.innerText;
    return [one.tagName.toLowerCase(), one.innerText || one.title || label].join(' ');
}"""
# Boxes are the widgets that hold no others, as far as they can be seen.
_BOXES = """cell => {
    const area = cell.querySelector('.jp-OutputArea').getBoundingClientRect();
    const cut = (rect, by) => ({left: Math.max(rect.left, by.left), right: Math.min(rect.right, by.right),
                                top: Math.max(rect.top, by.top), bottom: Math.min(rect.bottom, by.bottom)});
    return [...cell.querySelectorAll('.jp-OutputArea-output .jupyter-widgets')].filter(
        one => one.checkVisibility() && !one.closest('.jupyter-matplotlib-toolbar') &&
               !one.querySelector('.jupyter-widgets') && one.getBoundingClientRect().height > 1
    ).map(one => {
        const whole = one.getBoundingClientRect();
        let scrolls = false;
        let seen = cut(whole, {...area.toJSON(), top: -1e6, bottom: 1e6});
        for (let above = one.parentElement; above !== cell; above = above.parentElement)
            if (getComputedStyle(above).overflowY !== 'visible') {
                seen = cut(seen, above.getBoundingClientRect());
                scrolls ||= getComputedStyle(above).overflowX === 'auto';
            }
        const name = one.innerText.trim().split('\\n')[0] || one.title || one.className;
        return {name, hidden: scrolls ? 0 : whole.right - Math.max(whole.left, seen.right), ...seen};
    });
}"""
# What scrolls sideways; a text that is longer than its line does not count.
_SIDEWAYS = """cell => [...cell.querySelectorAll('.jp-OutputArea *')].filter(
    one => one.scrollWidth > one.clientWidth + 2 && one.clientWidth > 0 && one.checkVisibility() &&
           ['auto', 'scroll'].includes(getComputedStyle(one).overflowX)
).map(one => `${one.tagName} ${one.className}: ${one.scrollWidth} in ${one.clientWidth} px`)"""
# No question about news over the page, and cells that are out of sight are there all the same.
SETTINGS = {
    "apputils-extension/notification": '{"fetchNews": "false"}',
    "notebook-extension/tracker": '{"windowingMode": "none"}',
}


def wait_for_page(url: str, server: subprocess.Popen, log: Path, authority: ssl.SSLContext | None = None) -> None:
    """Wait until a server that was started gives a page."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and server.poll() is None:
        try:
            return urllib.request.urlopen(url, timeout=5, context=authority).close()
        except OSError:
            time.sleep(0.3)
    raise AssertionError(f"the server did not start:\n{log.read_text()[-3000:]}")


@contextmanager
def served(folder: Path, corpora: dict[str, str], application: str) -> Iterator[str]:
    """Run a Jupyter server of "lab" or "notebook" in a folder; yields its address."""
    settings = folder / "settings"
    for name, text in SETTINGS.items():
        file = settings / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "jupyter",
        application,
        "--no-browser",
        "--allow-root",
        f"--ServerApp.root_dir={folder}",
    ]
    command += [f"--ServerApp.port={port}", "--ServerApp.ip=127.0.0.1", f"--IdentityProvider.token={TOKEN}"]
    kind = "LabApp" if application == "lab" else "JupyterNotebookApp"
    command += [f"--{kind}.user_settings_dir={settings}", f"--{kind}.workspaces_dir={folder / 'workspaces'}"]
    environment = os.environ | corpora | {"JUPYTER_CONFIG_DIR": str(folder / "config")}
    environment["BTTLAB_EMULATED_CARDS"] = "1"
    environment["JUPYTER_CONFIG_PATH"] = str(ROOT / "tools" / "jupyter")  # as `make lab` has it
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "lib"), str(ROOT / "tests" / "helpers")])
    journal = folder / f"{application}.log"
    with open(journal, "w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            wait_for_page(f"http://127.0.0.1:{port}/api?token={TOKEN}", server, journal)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(PATIENCE)


class LabPage:
    """A notebook, opened.

    Parameters
    ----------
    context : BrowserContext
    url, token : str
        Of JupyterLab.
    name : str
        Of the notebook in notebooks/, without its ending.
    """

    _runtime = None  # folder of the kernels' connection files, by default this user's
    _path = "lab/tree"  # where the application has a notebook

    def __init__(self, context: BrowserContext, url: str, token: str, name: str):
        self._context, self._url, self._token, self._name = context, url, token, name
        self._open()

    def reopen(self) -> None:
        """Close the browser's tab and open the notebook in a new one; its kernel is not shut down."""
        self.page.close()
        self._open()

    def _open(self) -> None:
        self.page = self._context.new_page()
        self.page.set_default_timeout(1000 * PATIENCE)
        self.page.goto(f"{self._url}/{self._path}/notebooks/{self._name}.ipynb?token={self._token}&reset")
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=SECONDS * 1000)
        self._kernel_is_idle()

    # --- running cells

    def run_all(self) -> None:
        """Run every cell and wait for the last, or for one that fails."""
        self._menu("Run", "Run All Cells")
        self.all_ran()

    def all_ran(self) -> None:
        """Wait until the last cell has run, or one has failed."""
        self._wait_for(_ALL_RAN, seconds=SECONDS)

    def run_cell_with(self, text: str, wait: bool = True) -> Locator:
        """Run the cell whose source holds a text; returns the cell."""
        cell = self.scroll_to(text)
        cell.locator(".cm-content").first.click()
        self._run(cell, wait)
        return cell

    def python(self, expression: str) -> str:
        """Evaluate an expression in the notebook's kernel, beside the page; returns it as `print` shows it."""
        kernel = self._sessions()[0]["kernel"]["id"]
        client = BlockingKernelClient(connection_file=find_connection_file(f"kernel-{kernel}.json", self._runtime))
        client.load_connection_file()
        client.start_channels(shell=True, iopub=False, stdin=False, hb=False, control=False)
        try:
            asked = {"value": f"str({expression})"}
            reply = client.execute("", user_expressions=asked, store_history=False, reply=True, timeout=SECONDS)
        finally:
            client.stop_channels()
        found = reply["content"]["user_expressions"]["value"]
        assert found["status"] == "ok", found
        return ast.literal_eval(found["data"]["text/plain"])

    def run_new(self, source: str, wait: bool = True) -> None:
        """Put a cell below the last one and run it."""
        cells = self.page.locator(".jp-Notebook .jp-Cell")
        before = cells.count()
        self.page.keyboard.press("Escape")
        cells.last.locator(".jp-InputPrompt").click()
        self.page.keyboard.press("b")
        cells.nth(before).wait_for()
        self.page.keyboard.press("Enter")
        cells.last.locator(".cm-content:focus").wait_for()
        self.page.keyboard.insert_text(source)
        self._run(cells.last, wait)
        self.page.keyboard.press("Escape")

    def _run(self, cell: Locator, wait: bool) -> None:
        """Run the cell that has the cursor; what says that it runs, and that it ran, is its prompt.

        The old prompt is wiped out first: after a restart the new one may have the same number.
        """
        prompt = cell.locator(".jp-InputPrompt")
        prompt.evaluate("one => { one.textContent = ''; }")
        self.page.keyboard.press("Control+Enter")
        expect(prompt).to_have_text(re.compile(r"\[\d+\]" if wait else r"\[[\d*]+\]"), timeout=SECONDS * 1000)

    def interrupt(self) -> None:
        """Interrupt the kernel."""
        session = self._sessions()[0]
        self._call("POST", f"/api/kernels/{session['kernel']['id']}/interrupt")

    def restart(self) -> None:
        """Restart the kernel and wait until it is there again."""
        self.page.get_by_role("menuitem", name="Kernel", exact=True).click()
        self.page.locator(".lm-Menu-item[data-command='kernelmenu:restart']").click()
        with self.page.expect_response(re.compile("/api/kernels/.*/restart")):
            self.page.locator(".jp-Dialog button.jp-mod-accept").click()
        self._kernel_is_idle()

    @property
    def errors(self) -> list[str]:
        """Tracebacks on the page."""
        return self.page.locator(".jp-OutputArea-output[data-mime-type*='error']").all_inner_texts()

    # --- looking

    def cell_with(self, text: str) -> Locator:
        """The first code cell whose source holds a text."""
        return self.page.locator(".jp-CodeCell").filter(has=self.page.locator(".cm-content", has_text=text)).first

    def scroll_to(self, text: str) -> Locator:
        """Bring the cell whose source holds a text to the top of the page."""
        cell = self.cell_with(text)
        cell.wait_for(state="attached")
        cell.evaluate("cell => cell.scrollIntoView({block: 'start'})")
        return cell

    def button(self, name: str) -> Locator:
        """A widget's button."""
        return self.page.locator("button.widget-button, button.jupyter-button").filter(has_text=name).first

    def slider(self, name: str) -> Locator:
        """The handle of the slider with a name; arrow keys move it."""
        return self._widget(".widget-slider", name).locator(".noUi-handle")

    def set_slider(self, name: str, value: int) -> None:
        """Type a slider's value into its read-out."""
        readout = self._widget(".widget-slider", name).locator(".widget-readout")
        readout.click()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.type(str(value))
        self.page.keyboard.press("Enter")

    def select(self, name: str, option: str) -> None:
        """Choose an option of a drop-down widget."""
        self._widget(".widget-dropdown", name).locator("select").select_option(label=option)

    def choose_label(self, name: str) -> None:
        """Choose a label from the menu of the widget that teaches: its options have probabilities behind the names."""
        menu = self.page.locator(".widget-dropdown select").last
        menu.select_option(label=menu.locator("option", has_text=name).first.inner_text())

    def prose(self) -> str:
        """Return the notebook's prose, on one line."""
        return " ".join(" ".join(self.page.locator(".jp-MarkdownOutput").all_inner_texts()).split())

    def _wait_for(self, script: str, argument: str | None = None, seconds: float = PATIENCE) -> object:
        """Wait until a function of the page returns something; returns that.

        A page that still changes, as while a run trains on a busy machine, is waited for up to `SECONDS`.
        """
        end, before = time.monotonic() + SECONDS, None
        while True:
            try:
                found = self.page.wait_for_function(script, arg=argument, timeout=1000 * seconds, polling=POLLING)
                return found.json_value()
            except TimeoutError as error:
                now = self.page.evaluate(_STATE)
                if now == before or time.monotonic() > end:
                    raise AssertionError(f"no {argument or script!r} on this page: {now}") from error
                before = now

    def wait_for_text(self, part: str, seconds: float = PATIENCE) -> str:
        """Wait until a widget's line of text says something; returns the line."""
        return self._wait_for(_FIND_TEXT, part, seconds)

    def wait_for_hidden(self, part: str) -> str:
        """Wait until the words for screen readers hold a text; returns them."""
        words = self.page.locator(".bttlab-words").filter(has_text=part).first
        words.wait_for(state="attached")
        return words.text_content()

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds that the page alone cannot tell."""
        end = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < end, f"it did not come true on this page: {self.page.evaluate(_STATE)}"
            self.page.wait_for_timeout(200)

    # --- for whom mouse or screen are not enough

    def controls_without_tab(self, text: str) -> list[str]:
        """The controls in a cell's output that the tabulator key does not reach from the cell."""
        cell = self.scroll_to(text)
        self.page.keyboard.press("Escape")
        cell.evaluate("cell => cell.focus()")
        left = cell.evaluate_handle(_CONTROLS)
        for _ in range(3 * left.evaluate("left => left.length") + 20):
            self.page.keyboard.press("Tab")
            if not left.evaluate(
                "left => { const at = left.indexOf(document.activeElement);\n"
                "if (at >= 0) left.splice(at, 1); return left.length; }"
            ):
                break
        return left.evaluate(f"left => left.map({_NAME})")

    def boxes_in_the_way(self, text: str) -> list[str]:
        """Widgets in a cell's output that are cut off at a side, and those that lie over one another."""
        boxes = self.scroll_to(text).evaluate(_BOXES)
        said = [f"{box['name']}: {box['hidden']:.0f} px hidden" for box in boxes if box["hidden"] > 1]
        for place, one in enumerate(boxes):
            for other in boxes[:place]:
                width = min(one["right"], other["right"]) - max(one["left"], other["left"])
                height = min(one["bottom"], other["bottom"]) - max(one["top"], other["top"])
                if min(width, height) > 2:
                    said.append(f"{one['name']} lies over {other['name']}")
        return said

    def sideways(self, text: str) -> list[str]:
        """What scrolls sideways in a cell's output."""
        return self.scroll_to(text).evaluate(_SIDEWAYS)

    # --- the rest

    def _widget(self, kind: str, name: str) -> Locator:
        label = self.page.locator(".widget-label", has_text=re.compile(f"^{re.escape(name)}$"))
        return self.page.locator(kind).filter(has=label).first

    def close(self) -> None:
        """Close the page and shut the kernel down."""
        self.page.close()
        self.shut_down()

    def shut_down(self) -> None:
        """Shut the kernel down."""
        for session in self._sessions():
            self._call("DELETE", f"/api/sessions/{session['id']}")

    def _sessions(self) -> list[dict]:
        """Return the server's record of the notebook's kernel; None while it has none."""
        sessions = self._call("GET", "/api/sessions")
        return [one for one in sessions if self._name in ("", Path(one["path"]).stem)]

    def _kernel_is_idle(self) -> None:
        """Wait until the server has an idle kernel for the notebook, and the page as well."""
        end = time.monotonic() + SECONDS
        quiet = 0
        while quiet < 3:
            assert time.monotonic() < end, "the kernel is not idle"
            self.page.wait_for_timeout(200)
            states = [session["kernel"]["execution_state"] for session in self._sessions()]
            quiet = quiet + 1 if states[:1] == ["idle"] else 0
        # The page has it, too: before, "Run" asks for one, and the indicator is idle without one.
        within = 1000 * SECONDS
        expect(self.page.locator(".jp-KernelName").first).not_to_have_text(re.compile("No Kernel|^$"), timeout=within)
        indicator = self.page.locator(".jp-Notebook-ExecutionIndicator").first
        expect(indicator).to_have_attribute("data-status", "idle", timeout=within)

    def _menu(self, menu: str, item: str) -> None:
        self.page.get_by_role("menuitem", name=menu, exact=True).click()
        self.page.get_by_role("menuitem", name=item, exact=True).click()

    def _call(self, method: str, path: str):
        headers = {"Authorization": f"token {self._token}"}
        request = urllib.request.Request(self._url + path, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as reply:
            text = reply.read()
        return json.loads(text) if text else None


class NotebookPage(LabPage):
    """A notebook, opened in Jupyter Notebook 7."""

    _path = "notebooks"
