// The module that the study emitted: drawing, text, proof, downloads.

import { get, query } from "../api.js";
import { card, h, link, problem, replace, s, scroller, select } from "../../web/dom.js";
import { bytes, number, plain } from "../../web/format.js";
import { resultHead, studyChip } from "../../web/head.js";
import { GraphView } from "../graph.js";
import { asked, keep } from "../router.js";
import { downloadsOf } from "./study.js";

const TABS = [["graph", "Graph"], ["text", "IR text"], ["proof", "Proof"], ["files", "Files"]];
const GROUPS = [["none", "operators"], ["fused", "fused kernels"], ["opu_q", "groups on opu_q"], ["npu", "groups on npu"], ["opu", "groups on opu"]];
const KINDS = [["float", "float"], ["quantized", "8 bits or fewer"], ["accumulator", "16 or 32 bits"], ["other", "inputs, 64 bits, others"]];
const MAX_LINES = 20000;

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

  async function choose(name, more = { find: "" }) {
    keep({ tab: name === "graph" ? "" : name, ...more });
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
      const shown = await draw[name](key, study, choose);
      if (mine === turn && page.current()) replace(body, shown);
    } catch (error) {
      if (mine === turn) replace(body, problem(error));
    }
  }

  page.show(h("div", { class: "head" }, h("h1", {}, "Module"), studyChip(study)),
    h("p", { class: "under" }, `best.qmod of ${study.name}`), resultHead(study, (number_) => `/studies/${key}/trials/${number_}`, { downloads: downloadsOf(key, study) }),
    h("div", { class: "tabs", role: "tablist", "aria-label": "Parts of the module" }, buttons), body);
  const asked_ = asked("tab", "graph");
  await choose(asked_ in draw ? asked_ : "graph", {});
}

const COLOURS = [["kind", "colour by kind"], ["loss", "by SQNR (dark: much is lost)"], ["bits", "by bits"], ["bytes", "by bytes of the result"]];

async function drawGraph(key, study, choose) {
  const hint = h("p", { class: "soft small" }, "Choose an operator to see its text, type, range and origin.");
  const side = h("div", {}, hint);
  const canvas = h("div", {});
  const told = h("span", { class: "small soft", role: "status" });
  const given = asked("groups", "fused");
  let groups = GROUPS.some(([name]) => name === given) ? given : "fused";
  let colour = asked("colour", "kind");
  let view = null;
  let ratios = null;

  function show(title, detail) {
    const words = { text: "IR", type: "Type", range: "Integer range", source: "ONNX node", at: "Line", role: "Role", scale: "Scale", loops: "Loops" };
    const line = /^%\w+(?= =)/.exec(detail.text ?? "");
    const loss = lossOf(detail.source);
    replace(side, h("h3", {}, title), h("dl", { class: "pairs" }, Object.entries(detail).map(([name, value]) => [
      h("dt", {}, words[name] ?? name), h("dd", { class: "mono", "data-detail": name }, name === "loops" ? h("pre", {}, value) : value)]),
    loss === undefined ? null : [h("dt", {}, "SQNR of its inputs"), h("dd", { class: "mono" }, loss === null ? "exact" : `${loss.toFixed(2)} dB`)]),
    groups === "none" && line ? h("p", { class: "after" }, h("button", { class: "tiny", onclick: () => choose("text", { find: `${line[0]} =` }) }, "Show in the IR text")) : null);
  }

  function lossOf(source) {
    return ratios?.find((layer) => source && layer.name === source)?.upstream_db;
  }

  async function paint() {
    legendOf.hidden = colour !== "kind";
    scale.textContent = "";
    if (colour === "kind") {
      view.colour(null);
      return;
    }
    if (colour === "loss" && !ratios && study.best) {
      told.textContent = "measuring layers…";
      ratios = (await get(`/studies/${key}/trials/${study.best.number}/layers`).catch((error) => {
        scale.textContent = `${error.what}; ${error.fix ?? ""}`;
        return { layers: [] };
      })).layers;
      told.textContent = "";
    }
    const sources = (box) => [box.detail.source, ...box.rows.map((row) => row.detail.source)];
    const value = {
      loss: (box) => sources(box).map(lossOf).filter((each) => typeof each === "number").map((each) => -each)[0],
      bits: (box) => { const found = /u?int(\d+)|float(\d+)/.exec(box.subtitle); return found ? Number(found[1] ?? found[2]) : undefined; },
      bytes: (box) => { const found = /\(([\d, ]*)\) u?(?:int|float)(\d+)/.exec(box.subtitle); return found ? (found[1].split(",").filter((word) => word.trim()).reduce((all, word) => all * Number(word), 1) * Number(found[2])) / 8 : undefined; },
    }[colour];
    const range = view.colour(value);
    const unit = { loss: "dB", bits: "bits", bytes: "bytes" }[colour];
    if (range) scale.textContent = `light to dark: ${range.map((end) => number(Number(Math.abs(end).toPrecision(4)))).join(" to ")} ${unit}`;
  }

  async function load(wanted) {
    groups = wanted;
    keep({ groups: groups === "fused" ? "" : groups });
    told.textContent = "drawing…";
    replace(side, hint);
    try {
      const drawn = await get(`/studies/${key}/module/graph?${query({ groups })}`);
      view?.sized.disconnect();
      view = new GraphView(drawn, show);
      replace(canvas, view.element);
      told.textContent = `${view.boxes.length} boxes in ${drawn.frames.length} functions`;
      await paint();
      if (find.value) search(0);
    } catch (error) {
      told.textContent = "";
      replace(canvas, problem(error));
    }
  }

  function search(by) {
    const count = by ? view.hits.length : view.find(find.value);
    const at = view.next(by || 1);
    told.textContent = find.value ? (count ? `${at} of ${count}` : "no box") : `${view.boxes.length} boxes`;
    keep({ find: find.value }, false);
  }

  const find = h("input", { type: "search", placeholder: "Find an operator or ONNX node", "aria-label": "Find in the graph", value: asked("find"), oninput: () => view && search(0),
    onkeydown: (event) => { if (event.key === "Enter" && view) search(event.shiftKey ? -1 : 1); } });
  const scale = h("p", { class: "small soft", role: "status" });
  const legendOf = legend();
  const acts = [told, find, h("button", { class: "tiny", "aria-label": "Next hit", onclick: () => view && search(1) }, "Next"), select("Grouping", GROUPS, groups, load),
    select("Colour", COLOURS, colour, (value) => { colour = value; keep({ colour: value === "kind" ? "" : value }); paint(); }), h("span", { class: "pair" },
      h("button", { "aria-label": "Smaller", onclick: () => view?.scale(0.8) }, "−"),
      h("button", { "aria-label": "Larger", onclick: () => view?.scale(1.25) }, "+"), h("button", { onclick: () => view?.fit(0.02) }, "Fit"))];
  const box = h("div", { class: "split" }, card("Partitions", { acts }, canvas, legendOf, scale), h("div", { class: "side" }, card("Operator", {}, side)));
  await load(groups);
  return box;
}

function legend() {
  return h("ul", { class: "legend" }, KINDS.map(([kind, words]) => h("li", {}, s("svg", { width: 22, height: 12, "aria-hidden": "true" },
    s("g", { class: `box ${kind}` }, s("rect", { x: 1.5, y: 1.5, width: 19, height: 9, rx: 3 }))), words)));
}

async function drawText(key, study, choose) {
  const found = await get(`/studies/${key}/module/text`);
  const written = found.text.split("\n");
  const lines = written.slice(0, MAX_LINES).map((line) => h("div", { ondblclick: () => toGraph(line) }, line));
  const code = h("div", { class: "code", tabindex: "0", role: "group", "aria-label": "IR text" }, lines);
  const count = h("span", { class: "small soft", role: "status" });
  let hits = [];
  let here = -1;
  function toGraph(line) {
    const name = /^\s*(%\w+ =)/.exec(line);
    if (name) choose("graph", { groups: "none", find: name[1] });
  }
  function next(by) {
    if (!hits.length) return;
    hits[here]?.classList.remove("here");
    here = (here + by + hits.length) % hits.length;
    hits[here].classList.add("here");
    hits[here].scrollIntoView({ block: "center" });
    count.textContent = `${here + 1} of ${hits.length}`;
  }
  const input = h("input", {
    type: "search", placeholder: "Search", "aria-label": "Search in the text", value: asked("find"),
    oninput: () => {
      keep({ find: input.value }, false);
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
  const acts = [count, input, h("button", { "aria-label": "Next match", onclick: () => next(1) }, "Next"), h("button", { onclick: () => here >= 0 && toGraph(hits[here].textContent) }, "Show in the graph")];
  if (input.value) setTimeout(() => input.dispatchEvent(new Event("input")));
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
  card("Conversions", {}, h("pre", { class: "log", tabindex: "0", role: "group", "aria-label": "Conversions" }, derived.conversions.join("\n"))),
  card("Ranges of what operators compute", { wide: true }, h("div", { class: "scroll tall", tabindex: "0", role: "group", "aria-label": "Ranges of values" }, h("table", { class: "dense" },
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
