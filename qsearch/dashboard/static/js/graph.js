// A module as boxes that already have places: one cluster per function, from the float inputs down
// to the float outputs. Wheel and drag move it; find goes to a hit; a map shows where one is.

import { h, s } from "../web/dom.js";

const PAD = 18;
const TITLE = 26;
const GAP = 26;
const HEAD = 40;
const ROW = 15;
const LEAST = 0.02;
const MOST = 4;
const READABLE = 0.7;

export class GraphView {
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
    this.width = Math.max(240, ...frames.map((frame) => frame.width + 2 * PAD)) + 4;
    let y = 2;
    frames.forEach((frame, index) => {
      const outer = Math.max(frame.width + 2 * PAD, 220);
      const height = frame.height + TITLE + 2 * PAD;
      const x = (this.width - outer) / 2;
      if (index && frame.part) this.world.append(s("path", { class: "edge", d: `M${this.width / 2} ${y - GAP}V${y}`, "marker-end": "url(#arrow)" }));
      const left = PAD + (outer - 2 * PAD - frame.width) / 2;
      const inner = s("g", { transform: `translate(${left} ${TITLE + PAD})` });
      frame.edges.forEach((edge) => inner.append(s("path", { class: edge.quantized ? "edge q" : "edge", d: edge.path, "marker-end": "url(#arrow)" },
        s("title", {}, edge.label))));
      frame.boxes.forEach((box) => {
        const group = this.boxOf(box);
        inner.append(group);
        this.boxes.push({ box, group, x: x + left + box.x + box.width / 2, y: y + TITLE + PAD + box.y + box.height / 2 });
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
      s("text", { class: "type", x: middle, y: 31, "text-anchor": "middle" }, box.subtitle));
    const group = s("g", { class: `box ${box.kind}`, "data-key": box.key, transform: `translate(${box.x} ${box.y})` },
      s("rect", { class: "body", width: box.width, height: box.height, rx: 6 }), head);
    act(head, () => this.choose(group, title, box.detail));
    if (box.rows.length) group.append(s("path", { class: "edge", d: `M0 ${HEAD}H${box.width}` }));
    box.rows.forEach((row, index) => {
      const y = HEAD + ROW * index;
      const line = s("g", { class: "row", tabindex: 0, role: "button", "aria-label": row.title },
        s("rect", { x: 2, y: y + 3, width: box.width - 4, height: ROW, rx: 3 }), s("text", { x: 8, y: y + 14 }, row.title));
      act(line, () => this.choose(line, row.title, row.detail));
      group.append(line);
    });
    return group;
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
    const told = ({ box }) => [box.title, box.subtitle, ...Object.values(box.detail), ...box.rows.flatMap((row) => [row.title, ...Object.values(row.detail)])].join("\n").toLowerCase();
    this.hits = wanted ? this.boxes.filter((each) => told(each).includes(wanted)) : [];
    this.hit = -1;
    this.boxes.forEach((each) => each.group.classList.toggle("dimmed", Boolean(wanted) && !this.hits.includes(each)));
    return this.hits.length;
  }

  next(by) {
    if (!this.hits.length) return 0;
    this.hit = (this.hit + by + this.hits.length) % this.hits.length;
    const { box, group, x, y } = this.hits[this.hit];
    this.zoom = Math.max(this.zoom, READABLE);
    this.centre(x, y);
    this.choose(group, nameOf(box) ?? box.title, box.detail);
    return this.hit + 1;
  }

  // ``value(box)`` is a number or undefined; the greater, the darker. Least and greatest.
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

// The ONNX node that a box came from; of a kernel, that of its first operator that has one.
export function nameOf(box) {
  return box.rows.map((row) => row.detail.source).find(Boolean) ?? box.detail.source;
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
