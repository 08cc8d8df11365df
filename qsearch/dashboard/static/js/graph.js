// The drawing of a module from boxes that already have places: one cluster per function, from
// the float inputs down to the float outputs; kernels are clusters of their operators.

import { s } from "../web/dom.js";

const PAD = 18;
const TITLE = 26;
const GAP = 26;
const HEAD = 40;
const ROW = 15;

export function graphOf(drawn, onchoose) {
  const partitioned = drawn.frames.some((frame) => frame.part === "integer main");
  const frames = drawn.frames.filter((frame) => !(partitioned && frame.part === "whole"));
  const width = Math.max(240, ...frames.map((frame) => frame.width + 2 * PAD)) + 4;
  const svg = s("svg", { role: "group", "aria-label": "Operators" }, s("defs", {},
    s("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" },
      s("path", { d: "M0 0 8 4 0 8z", class: "arrow" }))));
  let chosen = null;
  function choose(element, title, detail) {
    chosen?.classList.remove("chosen");
    chosen = element;
    chosen.classList.add("chosen");
    onchoose(title, detail);
  }
  let y = 2;
  frames.forEach((frame, index) => {
    const outer = Math.max(frame.width + 2 * PAD, 220);
    const height = frame.height + TITLE + 2 * PAD;
    const x = (width - outer) / 2;
    if (index && frame.part) svg.append(s("path", { class: "edge", d: `M${width / 2} ${y - GAP}V${y}`, "marker-end": "url(#arrow)" }));
    const title = frame.part ? `${frame.part}  ${frame.title}` : frame.title;
    const inner = s("g", { transform: `translate(${PAD + (outer - 2 * PAD - frame.width) / 2} ${TITLE + PAD})` });
    frame.edges.forEach((edge) => inner.append(s("path", { class: edge.quantized ? "edge q" : "edge", d: edge.path, "marker-end": "url(#arrow)" },
      s("title", {}, edge.label))));
    frame.boxes.forEach((box) => inner.append(boxOf(box, choose)));
    svg.append(s("g", { class: "cluster", "data-part": frame.part, transform: `translate(${x} ${y})` },
      s("rect", { width: outer, height, rx: 10 }), s("text", { x: PAD, y: TITLE - 6 }, title), inner));
    y += height + GAP;
  });
  const total = Math.max(y - GAP + 4, 80);
  svg.setAttribute("viewBox", `0 0 ${width} ${total}`);
  svg.setAttribute("width", width);
  svg.setAttribute("height", total);
  return svg;
}

function boxOf(box, choose) {
  const middle = box.width / 2;
  const group = s("g", { class: `box ${box.kind}`, "data-key": box.key, tabindex: 0, role: "button",
    "aria-label": `${box.title}, ${box.subtitle}`, transform: `translate(${box.x} ${box.y})` },
  s("rect", { width: box.width, height: box.height, rx: 6 }),
  s("text", { x: middle, y: 16, "text-anchor": "middle" }, box.title),
  s("text", { class: "type", x: middle, y: 31, "text-anchor": "middle" }, box.subtitle));
  act(group, () => choose(group, box.title, box.detail));
  if (box.rows.length) group.append(s("path", { class: "edge", d: `M0 ${HEAD}H${box.width}` }));
  box.rows.forEach((row, index) => {
    const y = HEAD + ROW * index;
    const line = s("g", { class: "row", tabindex: 0, role: "button", "aria-label": row.title },
      s("rect", { x: 2, y: y + 3, width: box.width - 4, height: ROW, rx: 3 }), s("text", { x: 8, y: y + 14 }, row.title));
    act(line, (event) => {
      event.stopPropagation();
      choose(line, row.title, row.detail);
    });
    group.append(line);
  });
  return group;
}

function act(element, run) {
  element.addEventListener("click", run);
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    run(event);
  });
}
