// Plots are drawn by the server as SVG, at the width of their card; here they become alive:
// what the pointer is on is told, and a click opens the trial.

import { getText } from "./api.js";
import { problem, replace, s } from "./dom.js";
import { go } from "./router.js";

const NEAR = 14;

export class Plot {
  constructor(path, trialPath) {
    this.path = path;
    this.trialPath = trialPath;
    this.element = document.createElement("div");
    this.element.className = "canvas";
    this.shown = "";
    this.version = null;
    this.visible = false;
    this.running = null;
    this.watcher = new IntersectionObserver((entries) => {
      this.visible = entries.some((entry) => entry.isIntersecting);
      if (this.visible) this.draw();
    }, { rootMargin: "400px" });
    this.watcher.observe(this.element);
    this.resizer = new ResizeObserver(() => this.draw());
    this.resizer.observe(this.element);
    this.element.addEventListener("pointermove", (event) => this.point(event));
    this.element.addEventListener("pointerleave", () => this.leave());
    this.element.addEventListener("click", (event) => this.open(event));
  }

  update(version) {
    this.version = version;
    this.draw();
  }

  close() {
    this.watcher.disconnect();
    this.resizer.disconnect();
    this.running?.abort();
    hideTip();
  }

  async draw() {
    // Nothing is asked for before ``update``: words and numbers come first.
    if (this.version === null) return;
    const width = Math.floor(this.element.clientWidth / 20) * 20;
    const wanted = `${this.path()}|${width}|${this.version}`;
    if (!this.visible || width < 120 || wanted === this.shown) return;
    this.shown = wanted;
    this.running?.abort();
    this.running = new AbortController();
    const path = this.path();
    const separator = path.includes("?") ? "&" : "?";
    try {
      const text = await getText(`${path}${separator}width=${Math.max(width, 240)}`, this.running.signal);
      replace(this.element, svgOf(text));
    } catch (error) {
      if (error.name === "AbortError") return;
      this.shown = "";
      if (error.status) replace(this.element, problem(error));
    }
  }

  point(event) {
    const found = this.nearest(event);
    if (!found) {
      this.leave();
      return;
    }
    showTip(event, found.title);
    this.cursor(found);
  }

  leave() {
    hideTip();
    this.element.querySelector(".cursor")?.remove();
  }

  open(event) {
    const found = this.nearest(event);
    if (found?.trial !== undefined && this.trialPath) go(this.trialPath(found.trial));
  }

  cursor(found) {
    this.element.querySelector(".cursor")?.remove();
    if (found.x === undefined) return;
    this.element.querySelector("svg").append(s("circle", { class: "cursor", cx: found.x, cy: found.y, r: 7 }));
  }

  nearest(event) {
    const own = event.target.closest?.("[data-trial]");
    if (own) return { trial: own.dataset.trial, title: own.querySelector("title")?.textContent ?? "" };
    const titled = event.target.closest?.("g,path,rect,text");
    const title = [...(titled?.children ?? [])].find((child) => child.tagName === "title");
    const svg = this.element.querySelector("svg");
    const many = svg?.querySelectorAll(".many") ?? [];
    if (many.length) {
      const box = svg.getBoundingClientRect();
      const scale = svg.viewBox.baseVal.width / box.width;
      const x = (event.clientX - box.left) * scale;
      const y = (event.clientY - box.top) * scale;
      let best = null;
      for (const path of many) {
        const points = pointsOf(path);
        for (let i = 0; i < points.trials.length; i += 1) {
          const away = Math.hypot(points.x[i] - x, points.y[i] - y);
          if (away < (best?.away ?? NEAR)) {
            const trial = points.trials[i];
            best = { away, trial, x: points.x[i], y: points.y[i], title: `trial ${trial}` };
          }
        }
      }
      if (best) return best;
    }
    return title ? { title: title.textContent } : null;
  }
}

function pointsOf(path) {
  if (!path.points) {
    const x = [];
    const y = [];
    for (const [, px, py] of path.getAttribute("d").matchAll(/M([\d.]+) ([\d.]+)h0/g)) {
      x.push(Number(px));
      y.push(Number(py));
    }
    path.points = { x, y, trials: path.dataset.trials.split(",") };
  }
  return path.points;
}

// Parsed as a document of its own: it can bring no script here, and no style.
export function svgOf(text) {
  const parsed = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  return document.importNode(parsed, true);
}

export function showTip(event, words) {
  const tip = document.getElementById("tip");
  if (!words) {
    hideTip();
    return;
  }
  tip.textContent = words;
  tip.hidden = false;
  const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
  const top = event.clientY + 16 + tip.offsetHeight > window.innerHeight
    ? event.clientY - tip.offsetHeight - 10 : event.clientY + 16;
  tip.style.left = `${left}px`;
  tip.style.top = `${top}px`;
}

export function hideTip() {
  document.getElementById("tip").hidden = true;
}

export function sparkline(values) {
  const svg = s("svg", { class: "spark", viewBox: "0 0 120 28", role: "img", "aria-label": `best value so far, ${values.length} point${values.length === 1 ? "" : "s"}` });
  if (values.length === 1) svg.append(s("circle", { cx: 4, cy: 14, r: 2.5 }));
  if (values.length < 2) return svg;
  const low = Math.min(...values);
  const high = Math.max(...values);
  const flat = high === low;
  const path = values.map((value, i) => {
    const x = 2 + (116 * i) / (values.length - 1);
    const y = flat ? 14 : 25 - (22 * (value - low)) / (high - low);
    return `${x.toFixed(1)} ${y.toFixed(1)}`;
  });
  svg.append(s("path", { d: `M${path.join("L")}` }));
  return svg;
}
