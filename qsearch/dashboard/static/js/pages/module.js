// The module that the study emitted: drawing, text, proof, downloads.

import { get, query } from "../api.js";
import { card, h, link, problem, replace, scroller } from "../../web/dom.js";
import { bytes, number, plain } from "../../web/format.js";
import { resultHead, studyChip } from "../../web/head.js";
import { graphPanel, textPanel } from "../graph.js";
import { asked, keep } from "../router.js";
import { downloadsOf } from "./study.js";

const TABS = [["graph", "Graph"], ["text", "IR text"], ["proof", "Proof"], ["files", "Files"]];
const GROUPS = [["fused", "layers"], ["none", "steps"], ["opu_q", "groups on opu_q"], ["npu", "groups on npu"], ["opu", "groups on opu"]];

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
    h("p", { class: "under" }, "best.qmod of ", link(`/studies/${key}`, study.name)), resultHead(study, (number_) => `/studies/${key}/trials/${number_}`, { downloads: downloadsOf(key, study) }),
    h("div", { class: "tabs", role: "tablist", "aria-label": "Parts of the module" }, buttons), body);
  const asked_ = asked("tab", "graph");
  await choose(asked_ in draw ? asked_ : "graph", {});
}

const address = { get: (name) => asked(name, null), set: (name, value, step) => keep({ [name]: value }, step) };

async function drawGraph(key, study, choose) {
  const path = `/studies/${key}/module`;
  const best = study.best?.number;
  return graphPanel({
    title: "Partitions", groups: GROUPS, settings: address,
    load: (groups) => get(`${path}/graph?${query({ groups })}`),
    toText: (line) => choose("text", { find: line }),
    measures: [
      { name: "loss", words: "by SQNR (strong: much is lost)", unit: "dB", label: "SQNR of its inputs", worse: -1, shown: (value) => `${value.toFixed(2)} dB`,
        load: async () => byName(best === undefined ? [] : (await get(`/studies/${key}/trials/${best}/layers`)).layers, "name", "upstream_db") },
      { name: "time", words: "by CPU time on the engine", unit: "µs", label: "CPU time of its layer", shown: (value) => `${number(Number(value.toPrecision(3)))} µs`,
        load: async () => byName((await get(`${path}/times`)).layers, "layer", "us") },
    ],
  });
}

function byName(rows, name, value) {
  const known = new Map(rows.map((row) => [row[name], row[value]]));
  return (source) => known.get(source);
}

async function drawText(key, study, choose) {
  const found = await get(`/studies/${key}/module/text`);
  return textPanel({ ...found, settings: address, toGraph: (find) => choose("graph", { groups: "none", find }) });
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
      { agrees: "and the writer's record agrees.", disagrees: "but the writer's record disagrees: the file was changed.", missing: "but the writer's record is missing." }[record])),
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
    ["ONNX, exact integers", "export/onnx", "ConvInteger, MatMulInteger, BitShift; any runtime with opset 17."],
    ["ONNX, QDQ", "export/qdq", "QuantizeLinear and DequantizeLinear for the 8 bit kernels of onnxruntime; of a search for qdq."],
    ["C99 source", "export/c", "One .c, one .h, and a main.c that checks itself."],
    ["qconfig.json", "files/qconfig.json", "The winning configuration."], ["report.json", "files/report.json", "Every trial, as JSON."]];
  return h("div", { class: "grid" }, card("Downloads", { wide: true }, h("table", {}, h("tbody", {}, files.map(([words, path, about]) => h("tr", {},
    h("td", {}, link(`${base}/${path}`, words, { download: true })), h("td", { class: "soft" }, about)))))),
  card("What it is", {}, h("dl", { class: "pairs" }, Object.entries({ sha256: found.sha256, ...found.inputs, ...found.provenance }).map(([name, value]) => [h("dt", {}, name), h("dd", { class: "mono" }, plain(value))]))),
  card("Configuration", {}, found.qconfig ? h("dl", { class: "pairs" }, Object.entries(found.qconfig).map(([name, value]) => [h("dt", {}, name), h("dd", { class: "mono" }, plain(value))])) : h("p", { class: "soft" }, "not recorded")));
}
