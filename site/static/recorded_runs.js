// The page of recorded runs: controls, charts in SVG, tables. Its data are in recorded_runs_data.js (site/recorded.py).
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 380, HEIGHT = 270, LEFT = 56, RIGHT = 14, TOP = 26, BOTTOM = 44;
const WINDOW = 10; // steps in the moving mean of a loss
const TEXT_ROOM = 150; // for the number at the end of a bar

function element(name, attributes = {}, ...children) {
    const made = attributes.xmlns === SVG ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) if (key !== "xmlns") made.setAttribute(key, value);
    made.append(...children);
    return made;
}

const drawn = (name, attributes, ...children) => element(name, { xmlns: SVG, ...attributes }, ...children);

function inDigits(value) {
    if (value === 0) return "0";
    const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
    return value.toLocaleString("en", { maximumFractionDigits: Math.min(digits, 8) });
}

function ticks(low, high, count) {
    const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= raw);
    const found = [];
    for (let tick = Math.ceil(low / step) * step; tick <= high + step / 1e6; tick += step) found.push(tick);
    return found;
}

// A chart of lines. A series has a name, a class for its colour, points x and y, perhaps a band, and a marked point.
function lines(title, xLabel, yLabel, series, words) {
    const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}. ${words}` });
    const all = series.filter((one) => one.x.length);
    const xs = all.flatMap((one) => one.x), ys = all.flatMap((one) => [...one.y, ...(one.high ?? [])]);
    const xHigh = Math.max(...xs), yHigh = 1.05 * Math.max(...ys), yLow = 0;
    const xAt = (x) => LEFT + (x / xHigh) * (WIDTH - LEFT - RIGHT);
    const yAt = (y) => HEIGHT - BOTTOM - ((y - yLow) / (yHigh - yLow)) * (HEIGHT - TOP - BOTTOM);
    svg.append(drawn("text", { x: 4, y: 16, class: "title" }, title));
    for (const tick of ticks(yLow, yHigh, 5)) {
        svg.append(drawn("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: yAt(tick), y2: yAt(tick), class: "grid" }));
        svg.append(drawn("text", { x: LEFT - 6, y: yAt(tick) + 4, "text-anchor": "end" }, inDigits(tick)));
    }
    for (const tick of ticks(0, xHigh, 5))
        svg.append(drawn("text", { x: xAt(tick), y: HEIGHT - BOTTOM + 17, "text-anchor": "middle" }, inDigits(tick)));
    svg.append(drawn("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: yAt(yLow), y2: yAt(yLow), class: "axis" }));
    svg.append(drawn("text", { x: (LEFT + WIDTH) / 2, y: HEIGHT - 8, "text-anchor": "middle" }, xLabel));
    svg.append(drawn("text", { x: 14, y: 150, transform: "rotate(-90 14 150)", "text-anchor": "middle" }, yLabel));
    const path = (xs, ys) => xs.map((x, n) => `${n ? "L" : "M"}${xAt(x).toFixed(1)} ${yAt(ys[n]).toFixed(1)}`).join("");
    for (const one of all) {
        if (one.high) {
            const back = path([...one.x].reverse(), [...one.low].reverse()).replace("M", "L");
            svg.append(drawn("path", { d: `${path(one.x, one.high)}${back}Z`, class: `band ${one.colour}` }));
        }
        svg.append(drawn("path", { d: path(one.x, one.y), class: `line ${one.colour} ${one.look ?? ""}` }));
    }
    for (const one of all)
        if (one.mark !== undefined && one.mark < one.x.length)
            svg.append(drawn("circle", { cx: xAt(one.x[one.mark]), cy: yAt(one.y[one.mark]), r: 5, class: `dot ${one.colour}` }));
    const legend = element("ul", { class: "legend" });
    for (const one of all) {
        const swatch = drawn("svg", { viewBox: "0 0 26 8", class: "swatch", "aria-hidden": "true" },
            drawn("path", { d: "M1 4L25 4", class: `line ${one.colour} ${one.look ?? ""}` }));
        legend.append(element("li", {}, swatch, ` ${one.name}`));
    }
    return element("div", { class: "chart" }, svg, legend);
}

// Horizontal bars: rows of a name, parts of a size and a colour, and a text.
function bars(title, rows, words) {
    const height = TOP + 40 * rows.length + 8;
    const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": `${title}. ${words}` });
    svg.append(drawn("text", { x: 4, y: 16, class: "title" }, title));
    const most = Math.max(...rows.flatMap((row) => row.parts.reduce((sum, part) => sum + part.size, 0)));
    rows.forEach((row, n) => {
        let left = 4;
        const y = TOP + 40 * n;
        svg.append(drawn("text", { x: 4, y: y + 13 }, row.name));
        for (const part of row.parts) {
            const width = (part.size / most) * (WIDTH - TEXT_ROOM);
            svg.append(drawn("rect", { x: left, y: y + 18, width, height: 14, class: `fill ${part.colour}` }));
            left += width;
        }
        svg.append(drawn("text", { x: left + 6, y: y + 30 }, row.text));
    });
    const kinds = new Map(rows.flatMap((row) => row.parts.map((part) => [part.name, part.colour])));
    const legend = element("ul", { class: "legend" });
    for (const [name, colour] of kinds) {
        const swatch = drawn("svg", { viewBox: "0 0 12 12", class: "swatch", "aria-hidden": "true" },
            drawn("rect", { width: 12, height: 12, class: `fill ${colour}` }));
        legend.append(element("li", {}, swatch, ` ${name}`));
    }
    return element("div", { class: "chart" }, svg, legend);
}

function table(caption, heads, rows) {
    const head = element("tr", {}, ...heads.map((text) => element("th", { scope: "col" }, text)));
    const body = rows.map(([first, ...cells]) =>
        element("tr", {}, element("th", { scope: "row" }, first), ...cells.map((text) => element("td", {}, text))));
    const made = element("table", {}, element("caption", {}, caption),
        element("thead", {}, head), element("tbody", {}, ...body));
    return element("div", { class: "table", tabindex: 0, role: "region", "aria-label": caption }, made);
}

let controls = 0;

function slider(name, least, most, onMove) {
    const id = `recorded-${(controls += 1)}`;
    const input = element("input", { type: "range", id, min: least, max: most, step: 1, value: least });
    const output = element("output", { for: id });
    input.addEventListener("input", onMove);
    const box = element("div", { class: "control" }, element("label", { for: id }, name), input, output);
    return { box, input, say: (text) => { output.textContent = text; input.setAttribute("aria-valuetext", text); } };
}

function choice(name, options, onChange) {
    const id = `recorded-${(controls += 1)}`;
    const select = element("select", { id }, ...options.map(([value, text]) => element("option", { value }, text)));
    select.addEventListener("change", onChange);
    return { box: element("div", { class: "control" }, element("label", { for: id }, name), select), select };
}

function radios(name, options, onChange) {
    const group = `recorded-${(controls += 1)}`;
    const box = element("fieldset", {}, element("legend", {}, name));
    for (const [value, text] of options) {
        const input = element("input", { type: "radio", name: group, value });
        input.addEventListener("change", onChange);
        box.append(element("label", {}, input, ` ${text}`));
    }
    box.querySelector("input").checked = true;
    return { box, value: () => box.querySelector("input:checked").value };
}

const summed = (values) => { let sum = 0; return values.map((value) => (sum += value)); };

function smooth(values) {
    return values.map((_, n) => {
        const shown = values.slice(Math.max(0, n + 1 - WINDOW), n + 1);
        return shown.reduce((sum, value) => sum + value, 0) / shown.length;
    });
}

const FORMAT_COLOURS = { dense: "c2", tt: "c1", btt: "c0" };
const DEVICE_COLOURS = { cuda: "c1", cpu: "c3", card: "c0" };
const PARTS = { parameters: "c0", gradients: "c1", "optimizer state": "c6", activations: "c2", inputs: "c3", temporaries: "c5", "on the chip": "c4" };
const joulesOf = (joules, samples, batch) => {
    const times = samples / batch;
    const band = joules.low === undefined ? "" : `, ${inDigits(times * joules.low)} to ${inDigits(times * joules.high)}`;
    return joules.value === null ? "no meter" : `${inDigits(times * joules.value)} J (${joules.by}${band})`;
};

function showSteps(root, data) {
    const sizes = [...new Set(data.runs.map((run) => run.encoders))].sort((a, b) => a - b);
    const settings = [...new Set(data.runs.filter((run) => run.kind === "cuda").map((run) => run.setting))];
    settings.sort((a, b) => a.includes("16 samples") - b.includes("16 samples") || a.includes("TF32") - b.includes("TF32") || a.includes("eager") - b.includes("eager"));
    const draw = () => {
        const encoders = sizes[Number(size.input.value)], kind = format.value();
        const found = (where, of = kind) => data.runs.find((run) => run.encoders === encoders && run.format === of && where(run));
        const onGpu = (run) => run.setting === gpu.select.value;
        const main = found(onGpu), card = found((run) => run.kind === "card"), cpu = found((run) => run.kind === "cpu");
        step.input.max = main.losses.length;
        const steps = Number(step.input.value), samples = steps * main.batch;
        size.say(`${encoders} encoders`);
        step.say(main.batch === 1 ? `${samples}` : `${samples.toLocaleString("en")}, ${steps} steps`);
        const xOf = (run) => run.losses.map((_, n) => (n + 1) * run.batch);
        const upTo = (run) => Math.min(Math.floor(samples / run.batch), run.losses.length) - 1;
        const markOf = (run) => (samples <= run.losses.length * run.batch ? upTo(run) : undefined);
        const shown = Object.keys(data.formats).map((of) => {
            const run = found(onGpu, of);
            return { name: `${of === "dense" ? "dense" : of.toUpperCase()}, ${run.device.replace("NVIDIA ", "").split(" ")[0]}`, colour: FORMAT_COLOURS[of], look: of === kind ? "bold" : "thin", x: xOf(run), y: smooth(run.losses), mark: of === kind ? markOf(run) : undefined };
        });
        if (card) shown.push({ name: `${kind.toUpperCase()}, emulated U50`, colour: "c6", look: "dashed", x: xOf(card), y: smooth(card.losses), mark: markOf(card) });
        const last = (run) => {
            const end = upTo(run), recorded = run.losses.length * run.batch;
            if (samples > recorded) return `recorded up to ${recorded} samples`;
            return end < 0 ? "its first batch has more" : `${inDigits(smooth(run.losses)[end])} (${run.lossBy})`;
        };
        const seconds = (run) => {
            const count = Math.floor(samples / run.batch), recorded = run.seconds.length;
            const sum = summed(run.seconds);
            const time = count <= recorded ? sum[count - 1] : (sum[recorded - 1] / recorded) * count;
            return `${inDigits(1e3 * time)} ms (${run.secondsBy}${count > recorded ? ", the mean of those recorded" : ""})`;
        };
        const energy = [main, card].filter(Boolean).map((run) => {
            const x = main.losses.map((_, n) => (n + 1) * main.batch), times = (each) => x.map((n) => (n / run.batch) * each);
            const band = run.joules.low === undefined ? {} : { low: times(run.joules.low), high: times(run.joules.high) };
            return { name: `${run.kind === "card" ? "U50" : run.device} (${run.joules.by})`, colour: DEVICE_COLOURS[run.kind], x, y: times(run.joules.value), mark: steps - 1, ...band };
        });
        const megabytes = (run) => `${inDigits(run.memory.value / 1e6)} MB (${run.memory.by})`;
        const memory = [...Object.keys(data.formats).map((of) => [found(onGpu, of), of === kind]), [card, true]].filter(([run]) => run)
            .map(([run, isChosen]) => ({
                name: `${run.kind === "card" ? "U50" : "GPU"}, ${run.format === "dense" ? "dense" : run.format.toUpperCase()}${isChosen ? " (chosen)" : ""}`,
                text: megabytes(run),
                parts: Object.entries(run.memory.parts).map(([name, bytes]) => ({ name, size: bytes, colour: PARTS[name] ?? "c5" })),
            }));
        const rows = [main, cpu, card].filter(Boolean).map((run) =>
            [run.setting, last(run), seconds(run), joulesOf(run.joules, samples, run.batch), megabytes(run)]);
        const words = `${encoders} encoders, ${data.formats[kind]}, after ${samples.toLocaleString("en")} samples: ` +
            rows.map((row) => `${row[0]}: loss ${row[1]}, ${row[2]}, ${row[3]}, ${row[4]}`).join("; ") + ".";
        const saying = (column) => `After ${samples} samples: ${rows.map((row) => `${row[0]}: ${row[column]}`).join("; ")}.`;
        const note = kind === "dense" ? "The card trains tensor formats alone: choose TT or BTT to see it." : "";
        results.replaceChildren(
            element("p", { class: "note" }, note),
            element("div", { class: "charts" },
                lines(`Loss, mean of ${WINDOW} steps (measured)`, "samples", "loss", shown, saying(1)),
                lines("Energy so far", "samples", "energy, J", energy, saying(3)),
                bars("Memory at the step's peak", memory,
                    `${memory.map((row) => `${row.name}: ${row.text}`).join("; ")}.`)),
            table(`${encoders} encoders, ${data.formats[kind]}, after ${samples.toLocaleString("en")} samples`, ["device", `loss, mean of ${WINDOW} steps`, "time", "energy", "memory"], rows),
        );
        live.textContent = words;
    };
    const size = slider("encoders", 0, sizes.length - 1, draw), step = slider("samples", 1, 100, draw);
    const format = radios("format", Object.entries(data.formats), draw);
    const gpu = choice("GPU", settings.map((name) => [name, name]), draw);
    const results = element("div"), live = element("p", { class: "live", "aria-live": "polite" });
    step.input.value = 50;
    root.replaceChildren(element("div", { class: "controls" }, size.box, step.box, gpu.box, format.box), results, live);
    format.box.querySelector("input[value=btt]").checked = true;
    draw();
}

function showRace(root, data) {
    const most = Math.max(...data.race.map((racer) => racer.samples.length));
    const kinds = ["c0", "c3", "c1"];
    const axes = { samples: "samples", seconds: "seconds of training", joules: "J (no CPU: it had no meter)" };
    const draw = () => {
        const lap = Number(place.input.value) - 1, axis = across.value();
        place.say(`${data.race[0].samples[Math.min(lap, data.race[0].samples.length - 1)].toLocaleString("en")}`);
        const shown = data.race.map((racer, n) => {
            const x = axis === "joules" ? racer.joules.filter(Boolean).map((band) => band[1]) : racer[axis];
            const by = axis === "samples" ? "" : ` (${axis === "seconds" ? racer.secondsBy : racer.joulesBy})`;
            const y = racer.f1.slice(0, x.length).map((value) => 100 * value);
            return { name: `${racer.device}${by}`, colour: kinds[n], x, y, mark: Math.min(lap, x.length - 1) };
        });
        const rows = data.race.map((racer) => {
            const at = Math.min(lap, racer.samples.length - 1), band = racer.joules[at];
            const range = racer.joulesBy === "modelled" && band ? `, ${inDigits(band[0])} to ${inDigits(band[2])}` : "";
            return [racer.device, `${racer.samples[at].toLocaleString("en")}`, `${inDigits(100 * racer.f1[at])} % (${racer.f1By})`,
                `${inDigits(racer.losses[at])} (measured)`, `${inDigits(racer.seconds[at])} s (${racer.secondsBy})`,
                band ? `${inDigits(band[1])} J (${racer.joulesBy}${range})` : "no meter"];
        });
        const words = rows.map((row) => `${row[0]}: after ${row[1]} samples slot F1 ${row[2]}, ${row[4]}, ${row[5]}`).join("; ") + ".";
        results.replaceChildren(
            element("div", { class: "charts" }, lines("Slot F1 on dev (measured)", axes[axis], "slot F1, %", shown, words)),
            table("The race at this point", ["device", "samples", "slot F1", "loss of the lap", "time", "energy"], rows));
        live.textContent = words;
    };
    const place = slider("samples", 1, most, draw), across = radios("horizontal axis", Object.keys(axes).map((axis) => [axis, axis]), draw);
    const results = element("div"), live = element("p", { class: "live", "aria-live": "polite" });
    place.input.value = most;
    root.replaceChildren(element("div", { class: "controls" }, place.box, across.box), results, live);
    draw();
}

showSteps(document.getElementById("steps"), window.recordedRuns);
showRace(document.getElementById("race"), window.recordedRuns);
