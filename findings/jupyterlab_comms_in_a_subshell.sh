#!/bin/sh
# JupyterLab 4.6.6 with ipykernel 7.4.0 and ipywidgets 8.1.9: which thread runs a widget's callback, and when.
# Guess: callbacks run in the kernel's main thread, one after another with the cells, so they need no locks and wait for a cell.
# Seen: a widget's first change waits for the cell that runs and is handled in the main thread. Later changes of the same widget are
# handled in the thread of a subshell, beside the cell. JupyterLab's setting commsOverSubshells is "perCommTarget" by default.
# Who it hurts: callbacks that change what a cell changes; tests that take a busy cell for a kernel that does not answer.
# It needs a Chromium (CHROMIUM=PATH).
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --no-compile jupyterlab==4.6.6 ipykernel==7.4.0 ipywidgets==8.1.9 playwright==1.65.2
cd "$folder"
CHROMIUM="${CHROMIUM:-$(command -v chromium)}" JUPYTER_CONFIG_DIR="$folder/config" IPYTHONDIR="$folder/ipython" \
    PATH="$folder/env/bin:$PATH" "$folder/env/bin/python" - <<'PY'
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
from playwright.sync_api import expect, sync_playwright

WIDGET = """
import threading, time, ipywidgets
from pathlib import Path
def note(change):
    with open("seen.txt", "a") as file:
        file.write(threading.current_thread().name + "\\n")
menu = ipywidgets.Dropdown(options=["a", "b", "c", "d"])
menu.observe(note, "value")
menu"""
BUSY = """
Path("begun").touch()
while not Path("over").exists():
    time.sleep(0.05)
Path("over").unlink()"""
seen, begun = Path("seen.txt"), Path("begun")


def names():
    text = seen.read_text() if seen.exists() else ""
    return [re.sub("-.*", "", line) for line in text.splitlines()]


def wait(condition):
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, names()
        time.sleep(0.1)


settings = Path("config/lab/user-settings/@jupyterlab/apputils-extension/notification.jupyterlab-settings")
settings.parent.mkdir(parents=True)
settings.write_text('{"fetchNews": "false"}')
cells = [nbformat.v4.new_code_cell(text.strip()) for text in (WIDGET, BUSY)]
kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), "one.ipynb")
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", f"--ServerApp.port={port}"]
with open("log", "w") as log:
    server = subprocess.Popen([*command, "--IdentityProvider.token=one"], stdout=log, stderr=log)
try:
    def answers():
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/api?token=one", timeout=5)
        except OSError:
            return False

    wait(answers)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(120_000)
        page.goto(f"http://127.0.0.1:{port}/lab/tree/one.ipynb?token=one&reset")
        expect(page.locator(".jp-KernelName").first).to_contain_text("Python 3", timeout=120_000)
        expect(page.locator(".jp-Notebook-ExecutionIndicator")).to_have_attribute("data-status", "idle", timeout=120_000)
        page.locator(".jp-CodeCell .cm-content").first.click()
        page.keyboard.press("Control+Enter")
        menu = page.locator(".widget-dropdown select")
        menu.wait_for()

        def busy():
            begun.unlink(missing_ok=True)
            page.locator(".jp-CodeCell .cm-content").last.click()
            page.keyboard.press("Control+Enter")
            wait(begun.exists)

        busy()
        menu.select_option("b")
        page.wait_for_timeout(3000)
        first = names()  # while the cell runs
        Path("over").touch()
        wait(lambda: len(names()) == 1)
        busy()
        menu.select_option("c")
        wait(lambda: len(names()) == 2)  # while the cell runs
        Path("over").touch()
        print({"first change, while a cell runs": first, "all changes": names()})
        assert first == [] and names() == ["MainThread", "subshell"]
        browser.close()
finally:
    server.terminate()
    server.wait()
PY
