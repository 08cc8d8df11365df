// Plots, drawn here from JSON: the dashboard and the report use the same code. D3 gives scales,
// brushes and densities; what it does not give is drawn by hand.

import "./vendor/d3.js";
import { hideTip, h, replace, s, save, select, showTip } from "./dom.js";
import { brokenLimits } from "./head.js";
import { isInfinite, labelOf, measure, number, plain, shown, tick } from "./format.js";

const MANY = 1000;
const NEAR = 16;
const SHADES = 5;
const LINES = 400;
const STATES = ["complete", "pruned", "infeasible"];
const SHAPES = {
  complete: "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0",
  pruned: "M0-4.5l4.5 4.5l-4.5 4.5l-4.5-4.5z",
  infeasible: "M-4 3.5h8l-4-8z",
  square: "M-3.5-3.5h7v7h-7z",
  cross: "M-4-2.5l2.5 2.5l-2.5 2.5l1.5 1.5l2.5-2.5l2.5 2.5l1.5-1.5l-2.5-2.5l2.5-2.5l-1.5-1.5l-2.5 2.5l-2.5-2.5z",
};
const SERIES = ["complete", "square", "infeasible", "pruned", "cross"];

// The trials of a study from lists per column; see trials_as_columns.
export class Trials {
  constructor(columns, study) {
    Object.assign(this, { columns, study, count: columns.number.length, best: study.best?.number, parameters: Object.keys(columns.params) });
    this.measures = new Map(study.measures.map((each) => [each.name, each]));
    this.onFront = new Set(columns.front);
  }

  number(i) { return this.columns.number[i]; }

  state(i) { return this.columns.state.values[this.columns.state.at[i]]; }

  // Whether somebody asked for it.
  tried(i) { return this.columns.stage.values[this.columns.stage.at[i]] === "tried"; }

  // In the unit that is shown; undefined where there is none that can be drawn. The score of a part
  // of the samples is what is to be expected on all, by the trial that it was compared with.
  score(name, i) {
    const value = this.columns.part[i]?.[name] ?? this.columns.scores[name]?.[i];
    const about = this.measures.get(name);
    return value === null || value === undefined || isInfinite(value, about) ? undefined : shown(value, about);
  }

  param(name, i) {
    const column = this.columns.params[name];
    return column.at[i] < 0 ? undefined : column.values[column.at[i]];
  }

  // Numbers by size, then words.
  values(name) {
    const rank = (value) => (typeof value === "number" ? 0 : 1);
    return [...this.columns.params[name].values].sort((a, b) => rank(a) - rank(b) || (rank(a) ? plain(a).localeCompare(plain(b)) : a - b));
  }

  told(i) {
    const lines = [`trial ${this.number(i)}, ${this.state(i)}${this.tried(i) ? ", asked for" : ""}${this.number(i) === this.best ? ", the best" : ""}`];
    if (this.columns.part[i]) lines.push(`stopped after ${this.columns.part[i].samples} samples; drawn where it is expected on all`);
    for (const [name, about] of this.measures) {
      const value = this.columns.scores[name][i];
      if (value !== null) lines.push(`${about.words} ${measure(value, about)}`);
    }
    for (const name of this.parameters) {
      if (this.param(name, i) !== undefined && this.columns.params[name].values.length > 1) lines.push(`${name} = ${plain(this.param(name, i))}`);
    }
    return lines.join("\n");
  }
}

// One plot in a card: choices above it, the drawing, a legend that switches series off.
// ``draw(plot)`` fills ``plot.svg``; ``settings`` keeps what was chosen, by ``name``.
export class Plot {
  constructor({ name, title, settings, choices = [], logs = [], zooms = false, draw, open }) {
    Object.assign(this, { name, title, settings, zooms, drawing: draw, open, hidden: new Set(), zoom: null, marks: [], at: -1, stale: true });
    this.canvas = h("div", { class: "canvas", tabindex: "0", role: "group", "aria-label": `${title}. Arrow keys go from mark to mark.` });
    this.legend = h("div", { class: "legend" });
    this.said = h("p", { class: "small soft plot-note", role: "status" });
    const again = () => { this.zoom = null; this.draw(); };
    this.reset = h("button", { class: "tiny", hidden: true, onclick: again }, "Reset zoom");
    this.acts = [
      ...choices.map(([key, label, options, initial]) => {
        const legal = options.map(([value]) => value);
        const given = settings.get(`${name}.${key}`);
        this[key] = legal.includes(given) ? given : initial;
        return select(label, options, this[key], (value) => {
          this[key] = value;
          settings.set(`${name}.${key}`, value === initial ? "" : value);
          again();
        });
      }),
      ...logs.map((axis) => {
        this[`log${axis}`] = settings.get(`${name}.log${axis}`) === "1";
        return h("label", { class: "check" }, h("input", { type: "checkbox", checked: this[`log${axis}`], "aria-label": `Logarithmic ${axis} axis of ${title}`,
          onchange: (event) => {
            this[`log${axis}`] = event.target.checked;
            settings.set(`${name}.log${axis}`, event.target.checked ? "1" : "");
            again();
          } }), `log ${axis}`);
      }),
      this.reset,
      h("button", { class: "tiny", "aria-label": `Save ${title} as SVG`, onclick: () => this.saveAs("svg") }, "SVG"),
      h("button", { class: "tiny", "aria-label": `Save ${title} as PNG`, onclick: () => this.saveAs("png") }, "PNG"),
    ];
    this.element = h("div", {}, this.canvas, this.legend, this.said);
    this.seen = new IntersectionObserver((entries) => { this.visible = entries.some((entry) => entry.isIntersecting); if (this.visible && this.stale) this.draw(); }, { rootMargin: "300px" });
    this.seen.observe(this.canvas);
    this.sized = new ResizeObserver(() => { if (this.width && Math.abs(this.canvas.clientWidth - this.width) > 8) this.draw(); });
    this.sized.observe(this.canvas);
    this.canvas.addEventListener("pointermove", (event) => this.point(this.nearest(event), event));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
    this.canvas.addEventListener("click", (event) => this.openMark(this.nearest(event)));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("blur", () => this.point(null));
  }

  close() {
    this.seen.disconnect();
    this.sized.disconnect();
    hideTip();
  }

  async draw() {
    this.stale = !this.visible;
    if (this.stale || this.canvas.clientWidth < 100) return;
    this.width = this.canvas.clientWidth;
    this.marks = [];
    this.at = -1;
    this.series = [];
    this.svg = s("svg", { class: "plot", role: "img", "aria-label": this.title });
    this.said.textContent = "";
    await this.drawing(this);
    if (!this.svg.childNodes.length) this.svg = this.nothing("nothing to draw yet");
    replace(this.canvas, this.svg);
    // Who goes through the marks with the keyboard stays at the same trial.
    this.at = this.reached === undefined ? -1 : this.marks.findIndex((mark) => mark.trial === this.reached);
    if (this.at >= 0) this.point(this.at);
    this.reset.hidden = !this.zoom;
    replace(this.legend, this.series.map(([kind, shape, words]) => h("button", { class: "tiny", "aria-pressed": String(!this.hidden.has(words)),
      onclick: () => {
        if (!this.hidden.delete(words)) this.hidden.add(words);
        this.draw();
      } }, s("svg", { class: "plot", width: 14, height: 12, "aria-hidden": "true" }, glyph(kind, shape, 7, 6)), words)));
  }

  nothing(words) {
    this.size(120);
    this.svg.append(text(this.width / 2, 64, words, "mid soft"));
    return this.svg;
  }

  size(height) {
    this.height = height;
    const box = { width: this.width, height, viewBox: `0 0 ${this.width} ${height}` };
    Object.entries(box).forEach(([name, value]) => this.svg.setAttribute(name, value));
  }

  has(words, kind, shape) {
    this.series.push([kind, shape, words]);
    return !this.hidden.has(words);
  }

  // Both axes with their grid and names; the space between them.
  frame(x, y, { left = 56, bottom = 40, top = 10, right = 14, height = 300, xTicks, yTicks } = {}) {
    this.size(height);
    const area = { left, right: this.width - right, top, bottom: height - bottom };
    const made = (about, range, key) => {
      if (about.scale) return about.scale.range(range);
      const zoomed = this.zoom?.[key];
      let [low, high] = zoomed ?? reach(about.values, about.most, about.smaller);
      const log = about.log && low > 0;
      if (!zoomed && about.zero) low = Math.min(0, low);
      const scale = (log ? d3.scaleLog() : d3.scaleLinear()).domain([low, high]).range(range);
      return zoomed || about.tight ? scale : log ? scale : scale.nice(5);
    };
    const sx = made(x, [area.left, area.right], "x");
    const sy = made(y, [area.bottom, area.top], "y");
    const put = (scale, count, given) => (scale.ticks ? ticks(scale, count).map((value) => [scale(value), (given ?? tick)(value)]) : scale.domain().map((value) => [scale(value), plain(value)]));
    const step = sx.step?.() ?? 80;
    for (const [at, words] of put(sy, Math.max(2, (area.bottom - area.top) / 44), yTicks)) {
      this.svg.append(s("path", { class: "grid", d: `M${area.left} ${at}H${area.right}` }), text(area.left - 6, at + 4, words, "end", area.left - 16));
    }
    put(sx, Math.max(2, (area.right - area.left) / 84), xTicks).forEach(([at, words], index) => {
      const low = sx.step && step < 7 * words.length && index % 2;
      this.svg.append(s("path", { class: "grid faint", d: `M${at} ${area.top}V${area.bottom}` }), text(at, area.bottom + (low ? 26 : 15), words, "mid", (sx.step && step < 60 ? 1.9 : 1) * Math.max(step, 40)));
    });
    this.svg.append(text(area.right, height - 4, x.label, "end soft", this.width - 20));
    const name = text(0, 0, y.label, "mid soft", area.bottom - area.top);
    name.setAttribute("transform", `translate(11 ${(area.top + area.bottom) / 2}) rotate(-90)`);
    this.svg.append(name);
    if (this.zooms && !x.scale && !y.scale) this.zoomBox(area, sx, sy);
    return { sx, sy, area };
  }

  zoomBox(area, sx, sy) {
    const box = d3.brush().touchable(() => false).extent([[area.left, area.top], [area.right, area.bottom]]).on("end", (event) => {
      if (!event.selection || !event.sourceEvent) return;
      const [[x0, y0], [x1, y1]] = event.selection;
      if (x1 - x0 < 6 || y1 - y0 < 6) return;
      this.zoom = { x: [sx.invert(x0), sx.invert(x1)], y: [sy.invert(y1), sy.invert(y0)] };
      this.moved = performance.now();
      this.draw();
    });
    const layer = s("g", { class: "zoom" });
    this.svg.append(layer);
    d3.select(layer).call(box);
    const id = `clip-${this.name}`;
    this.svg.append(s("clipPath", { id }, s("rect", { x: area.left - 6, y: area.top - 6, width: area.right - area.left + 12, height: area.bottom - area.top + 12 })));
    this.inside = s("g", { "clip-path": `url(#${id})`, class: "inside" });
    this.svg.append(this.inside);
  }

  // Marks of trials: elements up to a thousand, beyond that one faint path and its density.
  points(places, words, kind, shape = kind) {
    const into = this.inside?.parentNode === this.svg ? this.inside : this.svg;
    if (!this.has(words, kind, shape) || !places.length) return;
    this.marks.push(...places);
    if (this.total <= MANY) {
      into.append(...places.map((place) => {
        const mark = glyph(place.kind ?? kind, shape, place.x, place.y);
        if (place.trial !== undefined) mark.setAttribute("data-trial", place.trial);
        if (place.layer !== undefined) mark.setAttribute("data-layer", place.layer);
        return mark;
      }));
      return;
    }
    const shades = new Map();
    for (const place of places) {
      const key = place.kind ?? kind;
      shades.set(key, `${shades.get(key) ?? ""}M${place.x.toFixed(1)} ${place.y.toFixed(1)}h0`);
    }
    for (const [key, d] of shades) into.append(s("path", { class: `many ${key}`, d }));
    if (kind !== "complete" || places.length < MANY) return;
    const rings = d3.contourDensity().x((p) => p.x).y((p) => p.y).size([this.width, this.height]).bandwidth(14).thresholds(6)(places);
    for (const ring of rings) into.append(s("path", { class: "density", d: ring.coordinates.flat().map((loop) => `M${loop.map((p) => p.map((v) => v.toFixed(1))).join("L")}Z`).join("") }));
  }

  line(places, words, kind) {
    if (!this.has(words, kind, "line") || places.length < 1) return;
    (this.inside?.parentNode === this.svg ? this.inside : this.svg).append(s("path", { class: `line ${kind}`, d: `M${places.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}` }));
  }

  level(value, words, kind, { sy, area }) {
    if (value === undefined || value === null) return;
    const at = sy(value);
    if (!(at >= area.top - 1 && at <= area.bottom + 1)) return;
    this.svg.append(s("path", { class: `level ${kind}`, d: `M${area.left} ${at}H${area.right}` }), text(area.right - 2, at > area.top + 14 ? at - 4 : at + 12, words, "end halo soft"));
  }

  nearest(event) {
    if (!this.svg || !this.marks.length) return null;
    const box = this.svg.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let found = null;
    let away = NEAR;
    this.marks.forEach((mark, index) => {
      // A bar is met anywhere on its row.
      const distance = mark.row ? (Math.abs(mark.y - y) <= mark.row / 2 ? Math.abs(mark.x - x) / 1e3 : away) : Math.hypot(mark.x - x, mark.y - y);
      if (distance < away) {
        away = distance;
        found = index;
      }
    });
    return found;
  }

  point(index, event) {
    this.svg?.querySelector(".cursor")?.remove();
    const mark = index === null ? null : this.marks[index];
    this.canvas.classList.toggle("opens", Boolean(mark?.trial !== undefined && this.open));
    if (!mark) {
      hideTip();
      return;
    }
    const box = this.svg.getBoundingClientRect();
    this.svg.append(s("circle", { class: "cursor", cx: mark.x, cy: mark.y, r: 7 }));
    showTip(event ?? { clientX: box.left + mark.x, clientY: box.top + mark.y }, mark.told());
  }

  key(event) {
    if (event.target !== this.canvas) return;
    if (event.key === "Enter") this.openTrial(this.reached);
    if (!this.marks.length) return; // being drawn
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      const order = [...this.marks.keys()].sort((a, b) => this.marks[a].x - this.marks[b].x || this.marks[a].y - this.marks[b].y);
      const place = order.indexOf(this.at);
      this.at = order[(place + step + order.length) % order.length];
      this.reached = this.marks[this.at].trial;
      this.point(this.at);
      this.said.textContent = this.marks[this.at].told().split("\n").slice(0, 3).join(", ");
    } else if (event.key === "Escape") this.point(null);
  }

  openMark(index) {
    if (performance.now() - (this.moved ?? -1e9) >= 300) this.openTrial(this.marks[index]?.trial);
  }

  openTrial(trial) {
    if (trial === undefined || !this.open) return;
    hideTip();
    this.open(trial);
  }

  async saveAs(kind) {
    const copy = this.svg.cloneNode(true);
    copy.querySelectorAll(".cursor,.zoom").forEach((each) => each.remove());
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    const rules = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]).map((rule) => rule.cssText);
    const used = rules.filter((rule) => rule.startsWith(".plot")).join("\n");
    const values = getComputedStyle(document.documentElement);
    const names = [...new Set(used.match(/--[\w-]+/g))].map((name) => `${name}:${values.getPropertyValue(name)}`).join(";");
    copy.prepend(s("style", {}, `svg{${names}}\n${used}`), s("rect", { width: "100%", height: "100%", fill: values.getPropertyValue("--plot-ground") }));
    const file = this.title.toLowerCase().replaceAll(/[^a-z0-9]+/g, "-");
    const svg = new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" });
    if (kind === "svg") {
      save(svg, `${file}.svg`);
      return;
    }
    const image = new Image(this.width * 2, this.height * 2);
    const address = URL.createObjectURL(svg);
    image.src = address;
    await image.decode();
    const canvas = h("canvas", { width: this.width * 2, height: this.height * 2 });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    URL.revokeObjectURL(address);
    canvas.toBlob((png) => save(png, `${file}.png`));
  }
}

function text(x, y, words, kind, room = 1e9) {
  const letters = Math.max(3, Math.floor(room / 6.2));
  const short = words.length > letters ? `${words.slice(0, letters - 1)}…` : words;
  return s("text", { x, y, class: kind }, short, short === words ? null : s("title", {}, words));
}

function glyph(kind, shape, x, y) {
  if (shape === "line") return s("path", { class: `line ${kind}`, d: `M${x - 6} ${y}h12` });
  if (shape === "ring") return s("circle", { class: `ring ${kind}`, cx: x, cy: y, r: 5 });
  return s("path", { class: `mark ${kind}`, d: SHAPES[shape] ?? SHAPES.complete, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` });
}

function ticks(scale, count) {
  const found = scale.ticks(count);
  if (found.length <= 2 * count) return found;
  const powers = found.filter((value) => Math.abs(Math.log10(value) % 1) < 1e-9);
  return powers.length > 1 ? powers : found.filter((_, index) => index % Math.ceil(found.length / count) === 0);
}

// Least and greatest, without what lies far below the rest: a trial that lost everything would
// press all others into a line. Of what is better small, such as costs, the least is a good trial.
function reach(values, most = Infinity, smallerIsBetter = false) {
  const known = values.filter((value) => Number.isFinite(value)).sort((a, b) => a - b);
  if (!known.length) return [0, 1];
  let low = known[0];
  const high = known.at(-1);
  if (known.length >= 8 && !smallerIsBetter) {
    const quarter = known[Math.floor(known.length / 4)];
    const floor = quarter - 6 * Math.max(high - quarter, 2e-3 * Math.max(Math.abs(high), 1));
    low = known.find((value) => value >= floor);
  }
  if (low === high) return [low - (Math.abs(low) * 0.01 || 1), Math.min(high + (Math.abs(high) * 0.01 || 1), Math.max(most, high))];
  const room = (high - low) * 0.05;
  return [low - room, Math.min(high + room, Math.max(most, high))];
}

function mostOf(about) {
  return about.unit === "%" ? 100 : Infinity;
}

function drawn(plot, trials, keep = () => true) {
  const chosen = [];
  for (let i = 0; i < trials.count; i += 1) if (STATES.includes(trials.state(i)) && keep(i)) chosen.push(i);
  plot.total = chosen.length;
  return chosen;
}

function byState(plot, trials, chosen, place) {
  for (const state of STATES) {
    const some = chosen.filter((i) => trials.state(i) === state);
    if (some.length) plot.points(some.map((i) => ({ ...place(i), trial: trials.number(i), told: () => trials.told(i) })), state, state);
  }
  const tried = chosen.filter((i) => trials.tried(i));
  if (tried.length && plot.has("asked for", "tried", "ring")) (plot.inside ?? plot.svg).append(...tried.map((i) => s("circle", { class: "ring tried", "data-tried": trials.number(i), cx: place(i).x, cy: place(i).y, r: 9 })));
}

// What the float model reaches, in the unit that is shown.
function floatOf(trials, name) {
  const about = trials.measures.get(name);
  const base = trials.study.baseline?.[name];
  return base === null || base === undefined || isInfinite(base, about) ? undefined : shown(base, about);
}

function history(plot, trials) {
  const about = trials.measures.get(plot.y);
  const chosen = drawn(plot, trials, (i) => trials.score(plot.y, i) !== undefined);
  if (!chosen.length) return;
  const float = floatOf(trials, plot.y);
  const made = plot.frame({ values: chosen.map((i) => trials.number(i)), label: "trial", tight: true },
    { values: [...chosen.map((i) => trials.score(plot.y, i)), ...(float === undefined ? [] : [float])], label: labelOf(about), log: plot.logy, most: mostOf(about), smaller: about.smaller_is_better });
  plot.level(float, "float model", "base", made);
  byState(plot, trials, chosen, (i) => ({ x: made.sx(trials.number(i)), y: made.sy(trials.score(plot.y, i)) }));
  const sign = about.smaller_is_better ? -1 : 1;
  const steps = [];
  let best;
  // What the search is after decides by more than this value: ties, limits, what luck explains.
  const won = plot.y === trials.study.measure.name ? new Set(trials.columns.winners) : null;
  for (const i of chosen) {
    const value = trials.score(plot.y, i);
    if (trials.state(i) !== "complete" || (won ? !won.has(trials.number(i)) : best !== undefined && sign * value <= sign * best)) continue;
    if (best !== undefined) steps.push([made.sx(trials.number(i)), made.sy(best)]);
    best = value;
    steps.push([made.sx(trials.number(i)), made.sy(best)]);
  }
  if (steps.length) plot.line([...steps, [made.area.right, made.sy(best)]], won ? "best trial so far" : "best so far", "best");
}

function scatter(plot, trials) {
  const [ax, ay] = [trials.measures.get(plot.x), trials.measures.get(plot.y)];
  const chosen = drawn(plot, trials, (i) => trials.score(plot.x, i) !== undefined && trials.score(plot.y, i) !== undefined);
  if (!chosen.length) return;
  const float = floatOf(trials, plot.y);
  const made = plot.frame({ values: chosen.map((i) => trials.score(plot.x, i)), label: labelOf(ax), log: plot.logx, most: mostOf(ax), smaller: ax.smaller_is_better },
    { values: [...chosen.map((i) => trials.score(plot.y, i)), ...(float === undefined ? [] : [float])], label: labelOf(ay), log: plot.logy, most: mostOf(ay), smaller: ay.smaller_is_better });
  plot.level(float, "float model", "base", made);
  if (plot.y === trials.study.accuracy && trials.study.floor !== null) plot.level(shown(trials.study.floor, ay), "least allowed", "floor", made);
  const place = (i) => ({ x: made.sx(trials.score(plot.x, i)), y: made.sy(trials.score(plot.y, i)) });
  byState(plot, trials, chosen, place);
  // What a measurement took is not what a module costs: no front over it.
  if (plot.x === plot.y || ["seconds", "cpu_s"].some((name) => [plot.x, plot.y].includes(name))) return;
  const better = (a, b, about) => (about.smaller_is_better ? a - b : b - a);
  const kept = chosen.filter((i) => trials.state(i) === "complete" && !brokenLimits(trials.study, (name) => trials.columns.scores[name]?.[i]).length);
  kept.sort((a, b) => better(trials.score(plot.x, a), trials.score(plot.x, b), ax) || better(trials.score(plot.y, a), trials.score(plot.y, b), ay));
  // The front of the objectives of the study is given: more than these values decides.
  const asked = trials.study.objectives.map((each) => each.name);
  const own = asked.length === 2 && [plot.x, plot.y].every((name) => asked.includes(name));
  const front = own ? kept.filter((i) => trials.onFront.has(trials.number(i))) : [];
  if (!own) for (const i of kept) if (!front.length || better(trials.score(plot.y, i), trials.score(plot.y, front.at(-1)), ay) < 0) front.push(i);
  if (!front.length || !plot.has("Pareto front", "front", "ring")) return;
  const stairs = [];
  for (const i of front) {
    const { x, y } = place(i);
    if (stairs.length) stairs.push([x, stairs.at(-1)[1]]);
    stairs.push([x, y]);
  }
  const into = plot.inside ?? plot.svg;
  into.append(s("path", { class: "line front", d: `M${stairs.map((p) => p.join(" ")).join("L")}` }), ...front.map((i) => s("circle", { class: "ring", "data-front": trials.number(i), cx: place(i).x, cy: place(i).y, r: 6 })));
}

function slice(plot, trials) {
  const about = trials.measures.get(plot.y);
  const chosen = drawn(plot, trials, (i) => trials.param(plot.x, i) !== undefined && trials.score(plot.y, i) !== undefined);
  if (!chosen.length) return;
  const values = trials.values(plot.x);
  const scale = d3.scalePoint().domain(values.map(plain)).padding(0.5);
  const made = plot.frame({ scale, label: plot.x }, { values: chosen.map((i) => trials.score(plot.y, i)), label: labelOf(about), log: plot.logy, most: mostOf(about), smaller: about.smaller_is_better }, { bottom: 50 });
  const half = Math.min(scale.step() * 0.3, 26);
  const best = about.smaller_is_better ? Math.min : Math.max;
  const marked = plot.has("best of its value", "best", "line");
  for (const value of marked ? values : []) {
    const reached = chosen.filter((i) => trials.state(i) === "complete" && plain(trials.param(plot.x, i)) === plain(value)).map((i) => trials.score(plot.y, i));
    if (!reached.length) continue;
    const y = made.sy(reached.reduce((a, b) => best(a, b)));
    plot.svg.append(s("path", { class: "line best", d: `M${scale(plain(value)) - half} ${y}h${2 * half}` }));
  }
  byState(plot, trials, chosen, (i) => ({ x: scale(plain(trials.param(plot.x, i))) + half * jitter(trials.number(i)), y: made.sy(trials.score(plot.y, i)) }));
}

function rank(plot, trials) {
  const about = trials.measures.get(plot.m);
  const chosen = drawn(plot, trials, (i) => trials.state(i) === "complete" && trials.param(plot.x, i) !== undefined && trials.param(plot.y, i) !== undefined && trials.score(plot.m, i) !== undefined);
  if (!chosen.length) return;
  const axis = (name) => d3.scalePoint().domain(trials.values(name).map(plain)).padding(0.5);
  const [x, y] = [axis(plot.x), axis(plot.y)];
  plot.frame({ scale: x, label: plot.x }, { scale: y, label: plot.y }, { left: Math.min(110, plot.width * 0.28), bottom: 50 });
  const sign = about.smaller_is_better ? -1 : 1;
  const order = [...chosen].sort((a, b) => sign * (trials.score(plot.m, a) - trials.score(plot.m, b)));
  const [wide, high] = [x.step() * 0.32, y.step() * 0.32];
  const places = order.map((i, at) => ({
    x: x(plain(trials.param(plot.x, i))) + wide * jitter(trials.number(i)), y: y(plain(trials.param(plot.y, i))) + high * jitter(trials.number(i) * 7 + 3),
    kind: `shade${Math.floor((SHADES * at) / order.length)}`, trial: trials.number(i), told: () => trials.told(i),
  }));
  plot.points(places, "trials, the stronger the better", "shade4", "complete");
}

function jitter(number) {
  return ((number * 0.618034) % 1) * 2 - 1;
}

// ``onbrush({name: values or [low, high]})``: what is chosen on the axes.
function parallel(plot, trials, names, onbrush) {
  const about = trials.measures.get(plot.y);
  const chosen = drawn(plot, trials, (i) => trials.state(i) === "complete" && trials.score(plot.y, i) !== undefined);
  const axes = names.filter((name) => trials.columns.params[name].values.length > 1).slice(0, Math.max(2, Math.floor(plot.width / 95)));
  if (!chosen.length || !axes.length) return;
  plot.size(300);
  const [left, right, top, bottom] = [40, plot.width - 56, 14, 244];
  const x = d3.scalePoint().domain([...axes.keys(), axes.length]).range([left, right]);
  const y = axes.map((name) => d3.scalePoint().domain(trials.values(name).map(plain)).range([bottom, top]).padding(0.5));
  const value = d3.scaleLinear().domain(reach(chosen.map((i) => trials.score(plot.y, i)), mostOf(about), about.smaller_is_better)).range([bottom, top]);
  const sign = about.smaller_is_better ? -1 : 1;
  const order = [...chosen].sort((a, b) => sign * (trials.score(plot.y, a) - trials.score(plot.y, b)));
  const step = Math.ceil(order.length / LINES);
  const lines = order.map((i, at) => [i, at]).filter(([, at]) => at % step === 0 || at === order.length - 1);
  const ways = lines.map(([i, at]) => {
    const path = axes.flatMap((name, a) => (trials.param(name, i) === undefined ? [] : [[x(a), y[a](plain(trials.param(name, i)))]]));
    path.push([right, value(trials.score(plot.y, i))]);
    plot.marks.push({ x: right, y: path.at(-1)[1], trial: trials.number(i), told: () => trials.told(i) });
    const element = s("path", { class: `way shade${Math.floor((SHADES * at) / order.length)}`, "data-trial": trials.number(i), d: `M${path.map((p) => p.map((v) => v.toFixed(1)).join(" ")).join("L")}` }, s("title", {}, trials.told(i)));
    element.addEventListener("click", () => plot.open?.(trials.number(i)));
    plot.svg.append(element);
    return [i, element];
  });
  if (step > 1) plot.said.textContent = `${lines.length} of ${order.length} trials are drawn; a brush filters all of them.`;
  const room = x.step();
  axes.forEach((name, a) => {
    plot.svg.append(s("path", { class: "rule", d: `M${x(a)} ${top}V${bottom}` }), a ? text(x(a), a % 2 ? 262 : 278, name, "mid soft", 1.9 * room) : text(2, 278, name, "soft", 1.9 * room));
    y[a].domain().forEach((words) => plot.svg.append(text(x(a) + 5, y[a](words) + 4, words, "halo small", room - 8)));
  });
  plot.svg.append(s("path", { class: "rule", d: `M${right} ${top}V${bottom}` }), text(plot.width - 4, 278, labelOf(about), "end soft", 140));
  value.ticks(5).forEach((each) => plot.svg.append(text(right + 5, value(each) + 4, tick(each), "small")));
  const picked = {};
  const show = () => ways.forEach(([i, element]) => element.classList.toggle("dim", !Object.entries(picked).every(([name, range]) => (
    name === plot.y ? trials.score(name, i) >= range[0] && trials.score(name, i) <= range[1] : range.includes(plain(trials.param(name, i)))))));
  [...axes, null].forEach((name, a) => {
    const layer = s("g", { class: "axis-brush", "data-axis": name ?? plot.y });
    plot.svg.append(layer);
    d3.select(layer).call(d3.brushY().touchable(() => false).extent([[x(a) - 12, top], [x(a) + 12, bottom]]).on("brush end", (event) => {
      if (!event.sourceEvent) return;
      const key = name ?? plot.y;
      if (!event.selection) delete picked[key];
      else if (name) picked[key] = y[a].domain().filter((words) => y[a](words) >= event.selection[0] && y[a](words) <= event.selection[1]);
      else picked[key] = [value.invert(event.selection[1]), value.invert(event.selection[0])];
      show();
      if (event.type === "end") onbrush?.(key, picked[key], name ? null : about);
    }));
  });
}

// A scale above rows, with its lines through them.
function ruler(plot, x, left) {
  for (const value of ticks(x, Math.max(2, (plot.width - left) / 90))) {
    plot.svg.append(s("path", { class: "grid faint", d: `M${x(value)} 20V${plot.height - 26}` }), text(x(value), 13, tick(value), "mid soft"));
  }
}

function timeline(plot, trials) {
  const { started_at: begins, finished_at: ends, driver_id: drivers, from_store: known } = trials.columns;
  const chosen = [...begins.keys()].filter((i) => begins[i] && ends[i] && !known[i]).sort((a, b) => begins[a] - begins[b]);
  if (!chosen.length) return;
  const first = begins[chosen[0]];
  const lanes = [];
  for (const i of chosen) {
    let lane = lanes.find((each) => each.driver === drivers[i] && each.end <= begins[i] + 1e-3);
    if (!lane) lanes.push(lane = { driver: drivers[i], items: [] });
    lane.end = ends[i];
    lane.items.push(i);
  }
  lanes.sort((a, b) => (a.driver ?? 0) - (b.driver ?? 0));
  const names = new Map(trials.study.drivers?.map((driver) => [driver.id, driver.name]));
  const row = lanes.length > 40 ? 8 : 18;
  const [left, top] = [Math.min(120, plot.width * 0.3), 24];
  plot.size(top + row * lanes.length + 26);
  const x = d3.scaleLinear().domain([0, Math.max(...chosen.map((i) => ends[i])) - first]).range([left, plot.width - 14]);
  ruler(plot, x, left);
  plot.svg.append(text(plot.width - 14, plot.height - 6, "seconds since the first trial began", "end soft"));
  lanes.forEach((lane, index) => {
    const y = top + row * index;
    if (index === 0 || lanes[index - 1].driver !== lane.driver) plot.svg.append(text(left - 6, y + 12, names.get(lane.driver) ?? `driver ${lane.driver ?? "?"}`, "end", left - 8));
    const paths = new Map();
    for (const i of lane.items) {
      const state = trials.state(i);
      const [from, wide] = [x(begins[i] - first), Math.max(1, x(ends[i] - first) - x(begins[i] - first) - 0.5)];
      paths.set(state, `${paths.get(state) ?? ""}M${from.toFixed(1)} ${y + 2}h${wide.toFixed(1)}v${row - 4}h${-wide.toFixed(1)}z`);
      plot.marks.push({ x: from + wide / 2, y: y + row / 2, trial: trials.number(i), told: () => `${trials.told(i)}\nran ${number(ends[i] - begins[i])} s from second ${number(Number((begins[i] - first).toFixed(1)))}` });
    }
    for (const [state, d] of paths) plot.svg.append(s("path", { class: `span ${state}`, d }));
  });
  plot.said.textContent = "A row for every trial that runs at the same time, by driver.";
}

// Bars from zero: rows of {label, value, note, told}.
export function bars(plot, rows, unit) {
  if (!rows.length) return;
  const row = 20;
  const left = Math.min(Math.max(...rows.map((each) => each.label.length)) * 6.6 + 14, plot.width * 0.45);
  plot.size(48 + row * rows.length);
  const values = rows.map((each) => each.value ?? 0);
  const x = d3.scaleLinear().domain([Math.min(0, ...values), Math.max(...values, 1e-9)]).range([left, plot.width - 60]);
  ruler(plot, x, left);
  rows.forEach((each, index) => {
    const y = 22 + row * index;
    const open = each.value === null;
    const end = open ? plot.width - 60 : x(each.value);
    const [from, wide] = [Math.min(x(0), end), Math.max(Math.abs(end - x(0)), 1)];
    plot.svg.append(text(left - 6, y + 13, each.label, "end", left - 8), s("rect", { class: open ? "bar open" : "bar", "data-layer": each.label, x: from, y: y + 4, width: wide, height: row - 8, rx: 2 }),
      text(Math.max(end, x(0)) + 5, y + 13, each.note ?? number(Number(each.value.toPrecision(3))), "soft"));
    plot.marks.push({ x: end, y: y + row / 2, row, trial: each.trial, told: () => each.told ?? `${each.label}: ${open ? each.note : number(each.value)} ${unit}` });
  });
  plot.svg.append(text(plot.width - 4, plot.height - 6, unit, "end soft", plot.width));
}

// A row per label with a marker per series: series are [words], rows {label, values, note, chosen}.
export function markers(plot, series, rows, unit, top) {
  const known = rows.flatMap((each) => each.values.filter((value) => value !== null && value !== undefined));
  if (!known.length) {
    plot.nothing("nothing is lost");
    return;
  }
  const row = 20;
  const left = Math.min(Math.max(...rows.map((each) => each.label.length)) * 6.6 + 14, plot.width * 0.4);
  plot.size(50 + row * rows.length);
  plot.total = 0;
  const x = d3.scaleLinear().domain([Math.min(0, ...known), top ?? Math.max(...known)]).range([left, plot.width - 52]).clamp(true);
  if (top === undefined) x.nice(5);
  ruler(plot, x, left);
  const shownSeries = series.map((words, index) => plot.has(words, `s${index}`, SERIES[index % SERIES.length]));
  rows.forEach((each, index) => {
    const y = 22 + row * index + row / 2;
    plot.svg.append(text(left - 8, y + 4, each.label, "end", left - 8));
    const places = each.values.map((value, k) => (shownSeries[k] && value !== null && value !== undefined ? x(value) : null));
    const there = places.filter((place) => place !== null);
    if (there.length > 1) plot.svg.append(s("path", { class: "rule", d: `M${Math.min(...there)} ${y}H${Math.max(...there)}` }));
    places.forEach((place, k) => {
      if (place === null) return;
      if (k === each.chosen) plot.svg.append(s("circle", { class: "ring", cx: place, cy: y, r: 7 }));
      const mark = glyph(`s${k}`, SERIES[k % SERIES.length], place, y);
      mark.setAttribute("data-layer", each.label);
      plot.svg.append(mark);
      plot.marks.push({ x: place, y, told: () => [each.label, ...series.map((words, n) => (each.values[n] === null || each.values[n] === undefined ? null : `${words}: ${number(each.values[n])} ${unit}`)).filter(Boolean)].join("\n") });
    });
    if (each.note) plot.svg.append(text(plot.width - 4, y + 4, each.note, "end soft"));
  });
  plot.svg.append(text(plot.width - 4, 13, unit, "end soft"));
}

// How often values occur, on a logarithmic scale, and the ends of the range that is kept.
export function histogram(point) {
  const [width, height, side, top, bottom] = [300, 150, 8, 12, 126];
  const svg = s("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Values of ${point.label}` });
  const x = d3.scaleLinear().domain([point.low, point.high]).range([side, width - side]);
  const most = Math.log10(Math.max(1, ...point.counts) + 1);
  const step = (width - 2 * side) / Math.max(point.counts.length, 1);
  const d = point.counts.map((count, i) => {
    const high = ((bottom - top) * Math.log10(count + 1)) / most;
    return count ? `M${(side + i * step).toFixed(1)} ${bottom}v${-high.toFixed(1)}h${step.toFixed(2)}v${high.toFixed(1)}z` : "";
  }).join("");
  svg.append(s("path", { class: "bar", d }), s("path", { class: "rule", d: `M${side} ${bottom}H${width - side}` }));
  x.ticks(5).forEach((value) => svg.append(text(x(value), bottom + 14, tick(value), "mid soft")));
  for (const name of ["threshold_low", "threshold_high"]) {
    const value = point[name];
    if (value !== null && value >= point.low && value <= point.high) svg.append(s("path", { class: "threshold", d: `M${x(value)} ${top}V${bottom}` }, s("title", {}, `${name.replace("_", " ")}: ${value}`)));
  }
  return svg;
}

const FIGURES = [["sqnr_loss_db", "SQNR lost by the outputs (dB)"], ["sqnr_db", "SQNR of the outputs (dB)"], ["weight_elements", "weights"]];

// Names of the figures in which layers differ, those that tell most first.
function figuresOf(layers) {
  const values = new Map();
  for (const layer of layers) {
    for (const [name, value] of Object.entries(layer.figures)) {
      if (typeof value === "number") values.set(name, (values.get(name) ?? new Set()).add(value));
    }
  }
  const order = FIGURES.map(([name]) => name);
  const place = (name) => (order.includes(name) ? order.indexOf(name) : order.length);
  return [...values].filter(([, found]) => found.size > 1 || layers.length === 1).map(([name]) => name).sort((a, b) => place(a) - place(b));
}

function figureWords(layers, name) {
  const bits = new Set(layers.map((layer) => layer.figures.bits));
  const at = bits.size === 1 && name.includes("sqnr") && [...bits][0] ? `, alone at ${[...bits][0]} bits` : "";
  return `${FIGURES.find(([each]) => each === name)?.[1] ?? name}${at}`;
}

// Every plot of a study: [plot, wide]. ``source`` has importances(measure) and layers();
// ``onbrush`` filters a table.
export function studyPlots(source, { settings, open, onbrush }) {
  const study = source.study;
  const measures = study.measures.map((each) => [each.name, each.words]);
  const primary = study.measure.name;
  const objectives = study.objectives.map((each) => each.name).filter((name) => study.measures.some((each) => each.name === name));
  const differs = (name) => study.measures.some((each) => each.name === name) && !study.constant.includes(name) && name !== primary;
  const cost = study.cost ?? ["sqnr_db", "agreement"].find(differs) ?? primary;
  const accuracy = study.measure.smaller_is_better && study.cost === primary ? study.accuracy : primary;
  const good = study.measures.some((each) => each.name === accuracy) ? accuracy : primary;
  const names = study.parameters.map((name) => [name, name]);
  const changing = study.parameters.filter((name) => !study.constant.includes(`params.${name}`));
  const trials = () => source.trials;
  const made = [];
  const add = (options, wide = false) => made.push({ plot: new Plot({ settings, open, ...options }), wide });
  add({ name: "history", title: "Optimisation history", zooms: true, choices: [["y", "Measure of the history", measures, primary]], logs: ["y"], draw: (plot) => history(plot, trials()) });
  add({ name: "scatter", title: "Accuracy and cost", zooms: true, logs: ["x", "y"],
    choices: [["x", "Measure across", measures, cost], ["y", "Measure upwards", measures, good]], draw: (plot) => scatter(plot, trials()) });
  add({ name: "importance", title: "Importance of parameters", choices: [["y", "Measure of the importances", measures, primary]],
    draw: async (plot) => {
      const found = await source.importances(plot.y);
      const rows = Object.entries(found.importances).sort((a, b) => b[1] - a[1]).slice(0, 24);
      if (rows.length) bars(plot, rows.map(([label, value]) => ({ label, value, note: value.toFixed(2) })), `share of what decides ${trials().measures.get(plot.y).words}`);
      else plot.nothing("importances need some complete trials that differ");
      if (found.left_out.length) plot.said.textContent = `Left out, as not every trial has them: ${found.left_out.join(", ")}.`;
    } });
  if (names.length) {
    add({ name: "slice", title: "Slice", zooms: false, logs: ["y"], choices: [["x", "Parameter of the slice", names, changing[0] ?? names[0][0]], ["y", "Measure of the slice", measures, primary]], draw: (plot) => slice(plot, trials()) });
  }
  add({ name: "timeline", title: "Timeline", draw: (plot) => timeline(plot, trials()) });
  if (changing.length > 1) {
    const some = changing.map((name) => [name, name]);
    add({ name: "rank", title: "Rank over two parameters", choices: [["x", "Parameter across", some, changing[0]], ["y", "Parameter upwards", some, changing[1]], ["m", "Measure of the rank", measures, objectives[0] ?? primary]], draw: (plot) => rank(plot, trials()) });
    add({ name: "parallel", title: "Parallel coordinates", choices: [["y", "Measure of the coordinates", measures, primary]],
      draw: async (plot) => {
        const found = await source.importances(plot.y);
        const order = [...changing].sort((a, b) => (found.importances[b] ?? 0) - (found.importances[a] ?? 0));
        parallel(plot, trials(), order, onbrush);
      } }, true);
  }
  for (const kind of study.layer_kinds) made.push({ plot: layersPlot(source, kind, settings), wide: true });
  return made;
}

export function layersPlot(source, kind, settings) {
  const some = source.layers.filter((layer) => layer.kind === kind);
  const figures = figuresOf(some);
  return new Plot({ name: `layers-${kind}`, title: `Layers: ${kind}`, settings, choices: figures.length ? [["x", "Figure of the layers", figures.map((name) => [name, figureWords(some, name)]), figures[0]]] : [],
    draw: (plot) => bars(plot, some.filter((layer) => typeof layer.figures[plot.x] === "number").map((layer) => ({ label: layer.layer, value: layer.figures[plot.x] })), figures.length ? figureWords(some, plot.x) : "") });
}

