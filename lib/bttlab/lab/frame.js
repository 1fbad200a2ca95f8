// What our widgets need of the page: their keys, names for screen readers, and a note when the kernel does not answer.

const GREY_AFTER = 1000; // ms without an answer
const NOTE_AFTER = 5000;
const SETTLE = 100; // ms: the page sends the last move of a slider when the kernel has answered the one before
const CONTROLS = "button, select, input, textarea, [tabindex='0']";
const GONE = "The kernel was restarted or has stopped: this is the state before. Run this cell again.";
const SILENT =
    "The kernel has not answered yet: it is busy, or the connection is lost. " +
    "If the circle at the top right is empty, run this cell again.";

// Elements of this widget, not of one of ours within it.
function find(box, selector) {
    return [...box.querySelectorAll(selector)].filter((one) => one.closest(".bttlab-widget") === box);
}

function set(element, name, value) {
    if (element.getAttribute(name) !== value) element.setAttribute(name, value); // an equal value would be a change, too
}

function nameControls(box) {
    for (const slider of find(box, ".widget-slider")) {
        const name = slider.querySelector(".widget-label")?.textContent ?? "";
        const value = slider.querySelector(".widget-readout")?.textContent ?? "";
        for (const handle of slider.querySelectorAll(".noUi-handle")) {
            set(handle, "aria-label", name);
            set(handle, "aria-valuetext", value);
        }
    }
}

// The k-th text is the k-th figure's; a figure without one is described by another.
function describeFigures(box) {
    const texts = find(box, ".bttlab-words");
    const figures = find(box, "img.bttlab-figure, .bttlab-figure .jupyter-matplotlib-canvas-div canvas:first-child");
    const shown = figures.filter((figure) => figure.checkVisibility());
    shown.forEach((figure, place) => {
        const words = texts[place]?.textContent ?? "";
        if (figure.tagName === "IMG") set(figure, "alt", words);
        else {
            set(figure, "role", "img");
            set(figure, "aria-label", words);
            set(figure, "aria-hidden", String(words === ""));
        }
    });
    texts.forEach((text, place) => text.toggleAttribute("hidden", place < shown.length));
}

// JupyterLab takes plain letters for commands outside of text fields, "x" to cut the cell: not those for our controls.
// Commands with Ctrl, Alt or Cmd, Escape, and Shift+Enter stay. The attribute counts on the focused element alone:
// JupyterLab's selectors end in ":focus", which is compared with that element before its parents' attributes are.
function keepKeys(box, signal) {
    let isLeft = false; // a click beside a cell's code leaves the focus in the widget, but the keys are the notebook's
    const on = (name, act) => window.addEventListener(name, act, { capture: true, signal });
    on("pointerdown", (event) => { isLeft = !box.contains(event.target); });
    on("focusin", (event) => { isLeft &&= !box.contains(event.target); });
    const toggle = (event) => {
        const isCommand = event.ctrlKey || event.metaKey || event.altKey || event.key === "Escape";
        const runsCell = event.shiftKey && event.key === "Enter";
        if (box.contains(event.target))
            event.target.toggleAttribute("data-lm-suppress-shortcuts", !(isCommand || runsCell || isLeft));
    };
    on("keydown", toggle); // before JupyterLab's, which is the document's
}

// A control that is disabled, hidden or replaced loses the focus: another one gets it.
function keepFocus(box, signal) {
    let last = null; // the control that has the focus, or lost it without the user's doing
    let place = -1; // of it among the controls
    const controls = () => find(box, CONTROLS).filter((one) => one.checkVisibility());
    const isUsable = (one) => one.isConnected && !one.disabled && one.checkVisibility();
    const on = (name, act) => document.addEventListener(name, act, { capture: true, signal });
    on("focusin", (event) => {
        last = event.target.closest(".bttlab-widget") === box ? event.target : null; // one of ours within has its own
        place = last === null ? -1 : controls().indexOf(last);
    });
    on("pointerdown", (event) => {
        if (!box.contains(event.target)) last = null;
    });
    return () => {
        const isLost = document.activeElement === null || document.activeElement === document.body ||
            document.activeElement === last || document.activeElement.contains(box);
        if (last === null || isUsable(last) || !isLost) return;
        const there = controls();
        const from = there.includes(last) ? there.indexOf(last) : Math.min(place, there.length - 1);
        const others = [...there.slice(0, from).reverse(), ...there.slice(from)];
        const beside = others.filter((one) => one.parentElement === last.parentElement); // a button of the same row
        [...beside, ...others].find((one) => !one.disabled)?.focus();
    };
}

// After each action the kernel is asked whether it is there; its answer comes when it has handled the action.
function watchKernel(model, box, note, signal) {
    let asked = 0; // number of the last question
    let isSure = true; // the answer to it came, and one more
    let timers = [];
    const say = (text) => {
        if (note.textContent !== text) note.textContent = text;
        note.hidden = text === "";
    };
    const settle = () => {
        timers.forEach(clearTimeout);
        timers = [];
        box.classList.remove("bttlab-waiting");
        say("");
    };
    const isGone = () => box.closest(".jupyter-widgets-disconnected") !== null;
    const ask = () => {
        asked += 1;
        model.send({ question: asked });
    };
    const acted = () => {
        if (isGone()) {
            box.classList.add("bttlab-waiting");
            return say(GONE);
        }
        if (timers.length) {
            isSure = false;
            return; // a question is on its way
        }
        timers = [
            setTimeout(() => box.classList.add("bttlab-waiting"), GREY_AFTER),
            setTimeout(() => say(isGone() ? GONE : SILENT), NOTE_AFTER),
        ];
        isSure = false;
        setTimeout(ask); // after the action's own message
    };
    const answered = (content) => {
        if (content.answer !== asked) return;
        if (isSure) return settle();
        isSure = true;
        setTimeout(ask, SETTLE);
    };
    model.on("msg:custom", answered);
    signal.addEventListener("abort", () => {
        timers.forEach(clearTimeout);
        model.off("msg:custom", answered);
    });
    for (const name of ["click", "change", "pointerup", "keyup"])
        box.addEventListener(name, (event) => {
            const isMove = name === "keyup" && ["Tab", "Shift", "Control", "Alt", "Meta", "Escape"].includes(event.key);
            if (!isMove && event.target.closest(CONTROLS) !== null) acted();
        }, { signal });
    return () => {
        if (isGone()) {
            box.classList.add("bttlab-waiting");
            say(GONE);
        }
    };
}

function render({ model, el }) {
    const controller = new AbortController();
    const { signal } = controller;
    const note = document.createElement("div");
    note.className = "bttlab-note";
    note.setAttribute("role", "alert");
    note.hidden = true;
    el.append(note);
    const begin = () => {
        if (signal.aborted) return;
        const box = el.closest(".bttlab-widget");
        if (box === null) return setTimeout(begin, 50); // not on the page yet
        keepKeys(box, signal);
        const tasks = [() => nameControls(box), () => describeFigures(box), keepFocus(box, signal)];
        tasks.push(watchKernel(model, box, note, signal));
        let isDue = false;
        const run = () => {
            isDue = false;
            tasks.forEach((task) => task());
        };
        const changed = () => {
            if (!isDue) setTimeout(run, 30);
            isDue = true;
        };
        const observer = new MutationObserver(changed);
        const attributes = ["class", "style", "disabled", "aria-valuetext", "src"];
        observer.observe(box, { subtree: true, childList: true, characterData: true, attributeFilter: attributes });
        signal.addEventListener("abort", () => observer.disconnect());
        changed();
    };
    begin();
    return () => controller.abort();
}

export default { render };
