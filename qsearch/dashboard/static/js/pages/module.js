// The module that the study emitted: drawing, text, proof, downloads.

import { get, query } from "../api.js";
import { card, h, link, problem, replace, s, scroller, select } from "../../web/dom.js";
import { bytes, number, plain } from "../../web/format.js";
import { resultHead, studyChip } from "../../web/head.js";
import { graphOf } from "../graph.js";

const TABS = [["graph", "Graph"], ["text", "IR text"], ["proof", "Proof"], ["files", "Files"]];
const GROUPS = [["none", "operators"], ["fused", "fused kernels"], ["opu_q", "groups on opu_q"], ["npu", "groups on npu"], ["opu", "groups on opu"]];
const KINDS = [["float", "float"], ["quantized", "8 bits or fewer"], ["accumulator", "16 or 32 bits"], ["other", "inputs, 64 bits, others"]];
const MAX_LINES = 20000;
const SMALLEST = 0.7;

export async function modulePage(page, key) {
  const study = await get(`/studies/${key}`);
  page.crumbs([study.name, `/studies/${key}`], ["module"]);
  const body = h("div", { role: "tabpanel", id: "panel", "aria-labelledby": "tab-graph" });
  const draw = { graph: drawGraph, text: drawText, proof: drawProof, files: drawFiles };
  const buttons = TABS.map(([name, words]) => h("button", {
    role: "tab", id: `tab-${name}`, "aria-controls": "panel", "data-tab": name,
    onclick: () => choose(name),
    onkeydown: (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = (TABS.findIndex(([each]) => each === name) + step + TABS.length) % TABS.length;
      choose(TABS[next][0]);
      buttons[next].focus();
    },
  }, words));
  let turn = 0;

  async function choose(name) {
    turn += 1;
    const mine = turn;
    buttons.forEach((button) => {
      const chosen = button.dataset.tab === name;
      button.setAttribute("aria-selected", chosen);
      button.tabIndex = chosen ? 0 : -1;
    });
    body.setAttribute("aria-labelledby", `tab-${name}`);
    replace(body, h("p", { class: "empty" }, "Reading the module…"));
    try {
      const shown = await draw[name](key, study);
      if (mine === turn && page.current()) replace(body, shown);
    } catch (error) {
      if (mine === turn) replace(body, problem(error));
    }
  }

  page.show(h("div", { class: "head" }, h("h1", {}, "Module")),
    h("p", { class: "under" }, `best.qmod of ${study.name}`),
    h("div", { class: "tabs", role: "tablist", "aria-label": "Parts of the module" }, buttons), body);
  await choose("graph");
}

async function drawGraph(key) {
  const hint = h("p", { class: "soft small" }, "Choose an operator to see its text, type, range and origin.");
  const side = h("div", {}, hint);
  const canvas = h("div", { class: "graph", tabindex: "0", role: "region", "aria-label": "Graph of the module" });
  const told = h("span", { class: "small soft", role: "status" });
  let zoom = 1;
  let svg = null;

  function show(title, detail) {
    const words = { text: "IR", type: "Type", range: "Integer range", source: "ONNX node", at: "Line", role: "Role", scale: "Scale", loops: "Loops" };
    replace(side, h("h3", {}, title), h("dl", { class: "pairs" }, Object.entries(detail).map(([name, value]) => [
      h("dt", {}, words[name] ?? name), h("dd", { class: "mono", "data-detail": name }, name === "loops" ? h("pre", {}, value) : value)])));
  }

  // What is in the middle stays there.
  function scale(by) {
    const before = zoom;
    zoom = Math.min(3, Math.max(0.15, zoom * by));
    const { width, height } = svg.viewBox.baseVal;
    svg.setAttribute("width", width * zoom);
    svg.setAttribute("height", height * zoom);
    const moved = (start, seen) => (start + seen / 2) * (zoom / before) - seen / 2;
    canvas.scrollTo(moved(canvas.scrollLeft, canvas.clientWidth), moved(canvas.scrollTop, canvas.clientHeight));
  }

  function fit() {
    const fits = canvas.clientWidth / svg.viewBox.baseVal.width;
    if (fits < 1) scale(Math.max(fits, SMALLEST));
    canvas.scrollTo((canvas.scrollWidth - canvas.clientWidth) / 2, 0);
  }

  async function load(groups) {
    told.textContent = "drawing…";
    replace(side, hint);
    try {
      const drawn = await get(`/studies/${key}/module/graph?${query({ groups })}`);
      svg = graphOf(drawn, show);
      replace(canvas, svg);
      zoom = 1;
      if (canvas.clientWidth) fit();
      const boxes = drawn.frames.reduce((sum, frame) => sum + frame.boxes.length, 0);
      told.textContent = `${boxes} boxes in ${drawn.frames.length} functions`;
    } catch (error) {
      told.textContent = "";
      replace(canvas, problem(error));
    }
  }

  const acts = [told, select("Grouping", GROUPS, "fused", load), h("span", { class: "pair" },
    h("button", { "aria-label": "Smaller", onclick: () => svg && scale(0.8) }, "−"),
    h("button", { "aria-label": "Larger", onclick: () => svg && scale(1.25) }, "+"))];
  const box = h("div", { class: "split" }, card("Partitions", { acts }, canvas, legend()), h("div", { class: "side" }, card("Operator", {}, side)));
  await load("fused");
  // It has a width once the page shows it.
  const shown = new ResizeObserver(() => {
    if (!canvas.clientWidth) return;
    shown.disconnect();
    if (svg) fit();
  });
  shown.observe(canvas);
  return box;
}

function legend() {
  return h("ul", { class: "legend" }, KINDS.map(([kind, words]) => h("li", {}, s("svg", { width: 22, height: 12, "aria-hidden": "true" },
    s("g", { class: `box ${kind}` }, s("rect", { x: 1.5, y: 1.5, width: 19, height: 9, rx: 3 }))), words)));
}

async function drawText(key) {
  const found = await get(`/studies/${key}/module/text`);
  const written = found.text.split("\n");
  const lines = written.slice(0, MAX_LINES).map((line) => h("div", {}, line));
  const code = h("div", { class: "code", tabindex: "0", role: "region", "aria-label": "IR text" }, lines);
  const count = h("span", { class: "small soft", role: "status" });
  let hits = [];
  let here = -1;
  function next(by) {
    if (!hits.length) return;
    hits[here]?.classList.remove("here");
    here = (here + by + hits.length) % hits.length;
    hits[here].classList.add("here");
    hits[here].scrollIntoView({ block: "center" });
    count.textContent = `${here + 1} of ${hits.length}`;
  }
  const input = h("input", {
    type: "search", placeholder: "Search", "aria-label": "Search in the text",
    oninput: () => {
      const words = input.value.toLowerCase();
      hits = [];
      here = -1;
      for (const line of lines) {
        const hit = words !== "" && line.textContent.toLowerCase().includes(words);
        line.className = hit ? "hit" : "";
        if (hit) hits.push(line);
      }
      count.textContent = words ? "no line" : "";
      next(1);
    },
    onkeydown: (event) => { if (event.key === "Enter") next(event.shiftKey ? -1 : 1); },
  });
  const acts = [count, input, h("button", { "aria-label": "Next match", onclick: () => next(1) }, "Next")];
  return card("IR text", { acts }, found.cut || written.length > MAX_LINES ? h("p", { class: "notice" }, "The text is longer than a page can show; its end is missing.") : null, code);
}

async function drawProof(key) {
  const { derived, record } = await get(`/studies/${key}/module/proof`);
  const holds = derived.verdict === "proved";
  const claims = derived.proved.map((claim) => h("tr", {}, h("td", { class: claim.holds ? "ok" : "bad" }, claim.holds ? "✓ holds" : "✗ fails"),
    h("th", { scope: "row" }, claim.claim), h("td", { class: "words" }, claim.detail)));
  // Constants are their own range.
  const computed = derived.values.filter((value) => value.op || !value.name.startsWith("constant"));
  return h("div", { class: "grid" }, card("Verdict", { wide: true }, h("p", { class: `verdict ${holds ? "ok" : "bad"}`, "data-verdict": derived.verdict }, holds ? "✓ Proved" : "✗ Refuted"),
    h("p", { class: "soft" }, "Derived now from the file alone, for every input within the ranges below; ",
      { agrees: "and the writer's record agrees.", disagrees: "but the writer's record disagrees: the file was changed.", missing: "but the writer's record is missing.", older: "but the writer's record is of an older format." }[record])),
  card("Claims", { wide: true }, scroller("Claims", h("table", {}, h("tbody", {}, claims)))),
  derived.findings.length ? card("Findings", { wide: true }, derived.findings.map((finding) => problem({ what: finding.what, where: `${finding.check}, ${finding.node}`, fix: finding.bound }))) : null,
  card("Inputs", {}, h("table", {}, h("tbody", {}, derived.inputs.map((input) => h("tr", {}, h("th", { scope: "row" }, input.name), h("td", { class: "mono" }, `${input.low} … ${input.high}`)))))),
  card("Conversions", {}, h("pre", { class: "log", tabindex: "0" }, derived.conversions.join("\n"))),
  card("Ranges of what operators compute", { wide: true }, h("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": "Ranges of values" }, h("table", { class: "dense" },
    h("thead", {}, h("tr", {}, ["Value", "Operator", "Type", "Least", "Greatest"].map((words, i) => h("th", { scope: "col", class: i > 2 ? "num" : "" }, words)))),
    h("tbody", {}, computed.slice(0, 2000).map((value) => h("tr", {}, h("td", { class: "mono" }, value.name), h("td", {}, value.op),
      h("td", { class: "mono" }, `${value.dtype} (${value.shape.join(", ")})`), h("td", { class: "num" }, number(value.low)), h("td", { class: "num" }, number(value.high)))))))));
}

async function drawFiles(key) {
  const found = await get(`/studies/${key}/module/text`);
  const base = `/api/v1/studies/${key}`;
  const files = [["best.qmod", `files/best.qmod`, `The module, ${bytes(found.bytes)}: qsearch run, verify and export read it.`],
    ["ONNX, exact integers", "export/onnx", "ConvInteger, MatMulInteger, BitShift; any runtime with opset 13."],
    ["ONNX, integers on a float grid", "export/grid", "The same integers carried in float32, fast on onnxruntime."],
    ["C99 source", "export/c", "One .c, one .h, and a main.c that checks itself."],
    ["qconfig.json", "files/qconfig.json", "The winning configuration."], ["report.json", "files/report.json", "Every trial, as JSON."]];
  return h("div", { class: "grid" }, card("Downloads", { wide: true }, h("table", {}, h("tbody", {}, files.map(([words, path, about]) => h("tr", {},
    h("td", {}, link(`${base}/${path}`, words, { download: true })), h("td", { class: "soft" }, about)))))),
  card("What it is", {}, h("dl", { class: "pairs" }, Object.entries({ sha256: found.sha256, ...found.inputs, ...found.provenance }).map(([name, value]) => [h("dt", {}, name), h("dd", { class: "mono" }, plain(value))]))),
  card("Configuration", {}, found.qconfig ? h("dl", { class: "pairs" }, Object.entries(found.qconfig).map(([name, value]) => [h("dt", {}, name), h("dd", { class: "mono" }, plain(value))])) : h("p", { class: "soft" }, "not recorded")));
}
