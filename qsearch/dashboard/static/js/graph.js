// A module as boxes that already have places: one cluster per function, from the float inputs down
// to the float outputs. Wheel and drag move it; find goes to a hit; a map shows where one is.

import { card, h, problem, replace, s, select } from "../web/dom.js";
import { number } from "../web/format.js";

const KINDS = [["float", "float"], ["simulated", "simulated quantization"], ["quantized", "8 bits or fewer"], ["accumulator", "16 or 32 bits"], ["input", "inputs"], ["other", "64 bits, indices, bool"]];
const WORDS = { text: "IR", type: "Type", range: "Integer range", source: "ONNX node", at: "Line", role: "Role", scale: "Scale", loops: "Loops", attributes: "Attributes", constants: "Constants" };
const SEVERAL_LINES = ["attributes", "constants", "loops"];
const MAX_LINES = 20000;
const COLOURS = [
  { name: "kind", words: "colour by kind" },
  { name: "bits", words: "by bits", unit: "bits", of: bitsOf },
  { name: "bytes", words: "by bytes of the result", unit: "bytes", of: bytesOf },
];

const PAD = 18;
const TITLE = 26;
const GAP = 26;
const HEAD = 40;
const ROW = 15;
const LEAST = 0.02;
const MOST = 4;
const READABLE = 0.7;

class GraphView {
  constructor(drawn, onchoose) {
    this.onchoose = onchoose;
    this.boxes = [];
    this.world = s("g", {});
    this.svg = s("svg", { class: "world", role: "group", "aria-label": "Operators" }, s("defs", {},
      s("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" },
        s("path", { d: "M0 0 8 4 0 8z", class: "arrow" }))), this.world);
    this.seen = s("rect", { class: "seen" });
    this.map = s("svg", { class: "map", "aria-hidden": "true" });
    this.element = h("div", { class: "graph", tabindex: "0", role: "group", "aria-label": "Graph of the module: drag, wheel, plus, minus and 0 move it" }, this.svg, this.map);
    this.place(drawn);
    Object.assign(this, { x: 0, y: 0, zoom: 1, hits: [], hit: -1 });
    this.element.addEventListener("wheel", (event) => {
      event.preventDefault();
      const box = this.element.getBoundingClientRect();
      this.scale(event.deltaY > 0 ? 1 / 1.15 : 1.15, event.clientX - box.left, event.clientY - box.top);
    }, { passive: false });
    this.element.addEventListener("pointerdown", (event) => { this.held = [event.clientX - this.x, event.clientY - this.y]; });
    this.element.addEventListener("pointermove", (event) => {
      if (!this.held || !event.buttons) return;
      [this.x, this.y] = [event.clientX - this.held[0], event.clientY - this.held[1]];
      this.show();
    });
    this.element.addEventListener("pointerup", () => { this.held = null; });
    this.element.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[event.key];
      if (event.key === "+") this.scale(1.25);
      else if (event.key === "-") this.scale(0.8);
      else if (event.key === "0") this.fit(LEAST);
      else if (step) {
        this.x += step[0];
        this.y += step[1];
        this.show();
        event.preventDefault();
      }
    });
    this.map.addEventListener("click", (event) => {
      const box = this.map.getBoundingClientRect();
      this.centre((event.clientX - box.left) / this.mapped, (event.clientY - box.top) / this.mapped);
    });
    this.sized = new ResizeObserver(() => {
      if (this.element.clientWidth && !this.fitted) this.fit();
      else this.show();
    });
    this.sized.observe(this.element);
  }

  place(drawn) {
    const partitioned = drawn.frames.some((frame) => frame.part === "integer main");
    const frames = drawn.frames.filter((frame) => !(partitioned && frame.part === "whole"));
    this.frames = frames.length;
    this.width = Math.max(240, ...frames.map((frame) => frame.width + 2 * PAD)) + 4;
    let y = 2;
    frames.forEach((frame, index) => {
      const outer = Math.max(frame.width + 2 * PAD, 250);
      const height = frame.height + TITLE + 2 * PAD;
      const x = (this.width - outer) / 2;
      if (index && frame.part) this.world.append(s("path", { class: "edge", d: `M${this.width / 2} ${y - GAP}V${y}`, "marker-end": "url(#arrow)" }));
      const left = PAD + (outer - 2 * PAD - frame.width) / 2;
      const inner = s("g", { transform: `translate(${left} ${TITLE + PAD})` });
      frame.edges.forEach((edge) => inner.append(s("path", { class: edge.quantized ? "edge q" : "edge", d: edge.path, "marker-end": "url(#arrow)" },
        s("title", {}, edge.label))));
      frame.boxes.forEach((box) => {
        const { group, lines } = this.boxOf(box);
        inner.append(group);
        this.boxes.push({ box, group, lines, x: x + left + box.x + box.width / 2, y: y + TITLE + PAD + box.y + box.height / 2 });
      });
      this.world.append(s("g", { class: "cluster", "data-part": frame.part, transform: `translate(${x} ${y})` },
        s("rect", { width: outer, height, rx: 10 }), s("text", { x: PAD, y: TITLE - 6 }, frame.part ? `${frame.part}  ${frame.title}` : frame.title), inner));
      y += height + GAP;
    });
    this.height = Math.max(y - GAP + 4, 80);
    this.mapped = Math.min(130 / this.width, 170 / this.height);
    this.map.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.map.setAttribute("width", this.width * this.mapped);
    this.map.setAttribute("height", this.height * this.mapped);
    this.map.append(...this.boxes.map((each) => s("rect", { class: `dot ${each.box.kind}`, x: each.x - each.box.width / 2, y: each.y - each.box.height / 2, width: each.box.width, height: each.box.height })), this.seen);
  }

  boxOf(box) {
    const middle = box.width / 2;
    const name = nameOf(box);
    const title = name && box.rows.length ? name : box.title;
    const head = s("g", { class: "name", tabindex: 0, role: "button", "aria-label": `${title}, ${box.subtitle}` },
      s("rect", { class: "hit", width: box.width, height: HEAD }),
      s("text", { x: middle, y: 16, "text-anchor": "middle" }, fitted(title, box.width)),
      s("text", { class: "type", x: middle, y: 31, "text-anchor": "middle" }, box.subtitle, box.rows.length ? s("title", {}, "Choose it to see its steps") : null));
    const lines = [];
    const wide = Math.max(box.width, ...box.rows.map((row) => 16 + 6.2 * row.title.length));
    const steps = s("g", { class: "steps", transform: `translate(0 ${HEAD})` }, s("rect", { width: wide, height: ROW * box.rows.length + 6, rx: 3 }));
    const group = s("g", { class: `box ${box.kind}`, "data-key": box.key, transform: `translate(${box.x} ${box.y})` },
      s("rect", { class: "body", width: box.width, height: box.height, rx: 6 }), head);
    act(head, () => {
      this.open(group);
      this.choose(group, title, detailOf(box));
    });
    if (box.rows.length) {
      head.append(s("text", { class: "type", x: box.width - 10, y: 16 }, "▾"));
      group.append(steps);
    }
    box.rows.forEach((row, index) => {
      const y = ROW * index;
      const line = s("g", { class: "row", tabindex: 0, role: "button", "aria-label": row.title },
        s("rect", { x: 2, y: y + 3, width: wide - 4, height: ROW, rx: 3 }), s("text", { x: 8, y: y + 14 }, row.title));
      act(line, () => this.choose(line, row.title, row.detail));
      steps.append(line);
      lines.push(line);
    });
    return { group, lines };
  }

  // Shows the steps of one box, above all others. What moves in the document loses the focus.
  open(group) {
    if (this.opened === group) return;
    this.opened?.classList.remove("open");
    this.home?.();
    const [inner, next, focused] = [group.parentNode, group.nextSibling, document.activeElement];
    this.home = () => inner.insertBefore(group, next);
    this.opened = group;
    group.classList.add("open");
    inner.append(group);
    if (group.contains(focused)) focused.focus();
  }

  choose(element, title, detail) {
    this.chosen?.classList.remove("chosen");
    this.chosen = element;
    element.classList.add("chosen");
    this.onchoose(title, detail);
  }

  show() {
    this.world.setAttribute("transform", `translate(${this.x} ${this.y}) scale(${this.zoom})`);
    const [wide, high] = [this.element.clientWidth, this.element.clientHeight];
    Object.entries({ x: -this.x / this.zoom, y: -this.y / this.zoom, width: wide / this.zoom, height: high / this.zoom }).forEach(([name, value]) => this.seen.setAttribute(name, value));
    this.map.classList.toggle("idle", this.width * this.zoom <= wide && this.height * this.zoom <= high);
  }

  scale(by, atX = this.element.clientWidth / 2, atY = this.element.clientHeight / 2) {
    const before = this.zoom;
    this.zoom = Math.min(MOST, Math.max(LEAST, this.zoom * by));
    this.x = atX - (atX - this.x) * (this.zoom / before);
    this.y = atY - (atY - this.y) * (this.zoom / before);
    this.show();
  }

  // As large as it can be seen whole; but not below what can be read, unless it is asked for.
  fit(least = READABLE) {
    const [wide, high] = [this.element.clientWidth, this.element.clientHeight];
    if (!wide) return;
    this.fitted = true;
    this.zoom = Math.max(least, Math.min(1, wide / this.width, high / this.height));
    this.x = (wide - this.width * this.zoom) / 2;
    this.y = Math.max(0, (high - this.height * this.zoom) / 2);
    this.show();
  }

  centre(x, y) {
    this.x = this.element.clientWidth / 2 - x * this.zoom;
    this.y = this.element.clientHeight / 2 - y * this.zoom;
    this.show();
  }

  // Boxes that hold the words; how many.
  find(words) {
    const wanted = words.toLowerCase();
    const told = ({ box }) => [box.subtitle, ownWords(box), ...box.rows.map(ownWords)].join("\n");
    this.words = wanted;
    this.hits = wanted ? this.boxes.filter((each) => told(each).includes(wanted)) : [];
    this.hit = -1;
    this.boxes.forEach((each) => each.group.classList.toggle("dimmed", Boolean(wanted) && !this.hits.includes(each)));
    return this.hits.length;
  }

  next(by) {
    if (!this.hits.length) return 0;
    this.hit = (this.hit + by + this.hits.length) % this.hits.length;
    const { box, group, lines, x, y } = this.hits[this.hit];
    this.zoom = Math.max(this.zoom, READABLE);
    this.centre(x, y);
    const row = box.rows.findIndex((each) => ownWords(each).includes(this.words));
    if (row >= 0) this.open(group);
    if (row < 0) this.choose(group, nameOf(box) ?? box.title, detailOf(box));
    else this.choose(lines[row], box.rows[row].title, box.rows[row].detail);
    return this.hit + 1;
  }

  // ``value(box)`` is a number or undefined; the greater, the stronger. Least and greatest.
  colour(value) {
    const values = value ? this.boxes.map((each) => value(each.box)) : [];
    const known = values.filter((each) => each !== undefined);
    const [low, high] = [Math.min(...known), Math.max(...known)];
    this.boxes.forEach((each, i) => {
      const shade = values[i] === undefined ? "" : String(high > low ? Math.min(4, Math.floor((5 * (values[i] - low)) / (high - low))) : 2);
      if (shade) each.group.dataset.shade = shade;
      else delete each.group.dataset.shade;
    });
    return known.length ? [low, high] : null;
  }
}

// What a box, or a row of one, says of itself.
function ownWords({ title, detail }) {
  return [title, ...Object.values(detail)].join("\n").toLowerCase();
}

// The ONNX node that a box came from; of a kernel, that of its first operator that has one.
function nameOf(box) {
  return box.rows.map((row) => row.detail.source).find(Boolean) ?? box.detail.source;
}

// The last operator of a kernel gives its type; its node is that of the first, after which it is named.
function detailOf(box) {
  return box.rows.length ? { ...box.detail, source: nameOf(box) ?? "" } : box.detail;
}

function fitted(words, width) {
  const letters = Math.floor(width / 6.7);
  return words.length > letters ? `${words.slice(0, letters - 1)}…` : words;
}

function act(element, run) {
  element.addEventListener("click", run);
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    event.stopPropagation();
    run(event);
  });
}

function bitsOf(box) {
  const found = /u?int(\d+)|float(\d+)/.exec(box.subtitle);
  return found ? Number(found[1] ?? found[2]) : undefined;
}

function bytesOf(box) {
  const found = /\(([\d, ]*)\) u?(?:int|float)(\d+)/.exec(box.subtitle);
  if (!found) return undefined;
  return (found[1].split(",").filter((word) => word.trim()).reduce((all, word) => all * Number(word), 1) * Number(found[2])) / 8;
}

// The ONNX nodes that a box computes. The cast at the end of a kernel is made for the node that reads it.
function sourcesOf(box) {
  if (!box.rows.length) return box.detail.source ? [box.detail.source] : [];
  const own = box.rows.length > 1 && box.rows.at(-1).title.startsWith("cast") ? box.rows.slice(0, -1) : box.rows;
  return [...new Set(own.map((row) => row.detail.source).filter(Boolean))];
}

// A graph with its tools, and what a click on a box tells.
//
// groups: [name, words] of each grouping, the default first; load(name) gives its drawing.
// measures: colours that need figures by ONNX node: { name, words, unit, label, shown(value), worse,
//   load() }, where load gives a function from a node's name to a number, null (exact) or undefined,
//   and worse is -1 where a low value is the bad one.
// settings: get(name) and set(name, value, step), where choices are kept.
// toText(line): shows a line of the IR text; only the grouping "none" has lines of its own.
export async function graphPanel({ title, groups, load, measures = [], settings, toText = null }) {
  const hint = h("p", { class: "soft small" }, "Choose an operator to see its text, type, attributes and origin.");
  const side = h("div", {}, hint);
  const canvas = h("div", {});
  const told = h("span", { class: "small soft", role: "status" });
  const scale = h("p", { class: "small soft", role: "status" });
  const legend = h("ul", { class: "legend" });
  const colours = [...COLOURS, ...measures];
  const values = new Map();
  const known = (given, all) => (all.includes(given) ? given : all[0]);
  let group = known(settings.get("groups"), groups.map(([name]) => name));
  let colour = known(settings.get("colour"), colours.map((each) => each.name));
  let view = null;

  function show(heading, detail) {
    const line = /^%\w+(?= =)/.exec(detail.text ?? "");
    const figures = measures.map((each) => [each, detail.source && values.get(each.name)?.(detail.source)]).filter(([, value]) => value !== undefined && value !== "");
    replace(side, h("h3", {}, heading), h("dl", { class: "pairs" }, Object.entries(detail).map(([name, value]) => [
      h("dt", {}, WORDS[name] ?? name), h("dd", { class: "mono", "data-detail": name }, SEVERAL_LINES.includes(name) ? h("pre", {}, value) : value)]),
    figures.map(([each, value]) => [h("dt", {}, each.label), h("dd", { class: "mono", "data-detail": each.name }, value === null ? "exact" : each.shown(value))])),
    toText && group === "none" && line ? h("p", { class: "after" }, h("button", { class: "tiny", onclick: () => toText(`${line[0]} =`) }, "Show in the IR text")) : null);
  }

  async function paint() {
    const chosen = colours.find((each) => each.name === colour);
    legend.hidden = Boolean(chosen.unit);
    scale.textContent = "";
    if (!chosen.unit) {
      view.colour(null);
      return;
    }
    if (chosen.load && !values.has(colour)) {
      told.textContent = "measuring…";
      const found = await chosen.load().catch((error) => {
        scale.textContent = [error.what ?? String(error), error.fix].filter(Boolean).join("; ");
        return null;
      });
      told.textContent = "";
      if (!found) return;
      values.set(chosen.name, found);
    }
    if (chosen.name !== colour) return;
    const range = view.colour(chosen.of ?? ((box) => totalOf(sourcesOf(box).map(values.get(colour)), chosen.worse ?? 1)));
    if (range) scale.textContent = `pale to strong: ${range.map((end) => number(Number(Math.abs(end).toPrecision(4)))).join(" to ")} ${chosen.unit}`;
  }

  async function draw(wanted) {
    group = wanted;
    settings.set("groups", group === groups[0][0] ? "" : group, true);
    told.textContent = "drawing…";
    replace(side, hint);
    try {
      const drawn = await load(group);
      view?.sized.disconnect();
      view = new GraphView(drawn, show);
      replace(canvas, view.element);
      const kinds = new Set(view.boxes.map(({ box }) => box.kind));
      replace(legend, KINDS.filter(([kind]) => kinds.has(kind)).map(([kind, words]) => h("li", {}, s("svg", { width: 22, height: 12, "aria-hidden": "true" },
        s("g", { class: `box ${kind}` }, s("rect", { x: 1.5, y: 1.5, width: 19, height: 9, rx: 3 }))), words)));
      told.textContent = `${view.boxes.length} boxes in ${view.frames} function${view.frames === 1 ? "" : "s"}`;
      await paint();
      if (input.value) search(0);
    } catch (error) {
      told.textContent = "";
      replace(canvas, problem(error));
    }
  }

  function search(by) {
    const count = by ? view.hits.length : view.find(input.value);
    const at = view.next(by || 1);
    told.textContent = input.value ? (count ? `${at} of ${count}` : "no box") : `${view.boxes.length} boxes`;
    settings.set("find", input.value, false);
  }

  const input = h("input", { type: "search", placeholder: "Find a node", "aria-label": "Find in the graph", value: settings.get("find") ?? "", oninput: () => view && search(0),
    onkeydown: (event) => { if (event.key === "Enter" && view) search(event.shiftKey ? -1 : 1); } });
  const acts = [told, input, h("button", { class: "tiny", "aria-label": "Next hit", onclick: () => view && search(1) }, "Next"), groups.length > 1 ? select("Grouping", groups, group, draw) : null,
    select("Colour", colours.map(({ name, words }) => [name, words]), colour, (value) => { colour = value; settings.set("colour", value === colours[0].name ? "" : value, true); paint(); }), h("span", { class: "pair" },
      h("button", { class: "tiny", "aria-label": "Smaller", onclick: () => view?.scale(0.8) }, "−"),
      h("button", { class: "tiny", "aria-label": "Larger", onclick: () => view?.scale(1.25) }, "+"), h("button", { class: "tiny", onclick: () => view?.fit(LEAST) }, "Fit"))].filter(Boolean);
  await draw(group);
  return h("div", { class: "split" }, card(title, { acts }, canvas, legend, scale), h("div", { class: "side" }, card("Operator", {}, side)));
}

// What a box with several nodes counts: their sum of costs, the worst of their losses.
function totalOf(values, worse) {
  const numbers = values.filter((each) => typeof each === "number");
  if (!numbers.length) return undefined;
  return worse < 0 ? Math.max(...numbers.map((each) => -each)) : numbers.reduce((all, each) => all + each, 0);
}

// IR text with a search; a line can be shown in the graph.
export function textPanel({ text, cut = false, settings, toGraph }) {
  const written = text.split("\n");
  const lines = written.slice(0, MAX_LINES).map((line) => h("div", { ondblclick: () => shown(line) }, line));
  const code = h("div", { class: "code", tabindex: "0", role: "group", "aria-label": "IR text" }, lines);
  const count = h("span", { class: "small soft", role: "status" });
  let hits = [];
  let here = -1;

  function shown(line) {
    const name = /^\s*(%\w+ =)/.exec(line);
    if (name) toGraph(name[1]);
  }

  function next(by) {
    if (!hits.length) return;
    hits[here]?.classList.remove("here");
    here = (here + by + hits.length) % hits.length;
    hits[here].classList.add("here");
    hits[here].scrollIntoView({ block: "center" });
    count.textContent = `${here + 1} of ${hits.length}`;
  }

  function search() {
    settings.set("find", input.value, false);
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
  }

  const input = h("input", { type: "search", placeholder: "Search", "aria-label": "Search in the text", value: settings.get("find") ?? "", oninput: search,
    onkeydown: (event) => { if (event.key === "Enter") next(event.shiftKey ? -1 : 1); } });
  const acts = [count, input, h("button", { "aria-label": "Next match", onclick: () => next(1) }, "Next"), h("button", { onclick: () => here >= 0 && shown(hits[here].textContent) }, "Show in the graph")];
  if (input.value) setTimeout(search);
  return card("IR text", { acts }, cut || written.length > MAX_LINES ? h("p", { class: "notice" }, "The text is longer than a page can show; its end is missing.") : null, code);
}
