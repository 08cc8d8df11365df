// Elements from plain calls; text is always a text node, so nothing that a model, a study or an
// error says of itself becomes markup.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function s(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...there(children));
  return element;
}

function there(children) {
  return children.flat(3).filter((child) => child !== null && child !== undefined && child !== false);
}

export function replace(element, ...children) {
  element.replaceChildren(...there(children));
  return element;
}

export function card(title, { wide = false, acts = [], id } = {}, ...body) {
  const heading = h("h2", {}, title);
  const head = h("header", {}, heading, acts.length ? h("div", { class: "acts" }, acts) : null);
  return h("section", { class: wide ? "card wide" : "card", id, "aria-label": title }, head, ...body);
}

export function scroller(label, table) {
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": label }, table);
}

export function select(label, options, value, onchange) {
  const element = h("select", { "aria-label": label, onchange: () => onchange(element.value) },
    options.map(([key, words]) => h("option", { value: key, selected: key === value }, words)));
  return element;
}

export function chip(state, words) {
  return h("span", { class: `chip ${state}` }, words ?? state);
}

export function link(path, words, attributes = {}) {
  return h("a", { href: path, ...attributes }, words);
}

// How much of a whole is done; the numbers stand beside it.
export function meter(done, all) {
  const bar = h("span", {});
  bar.style.width = `${Math.min(100, (100 * done) / Math.max(all, 1))}%`;
  return h("div", { class: "meter", "aria-hidden": "true" }, bar);
}

let toastTimer = 0;
export function toast(words) {
  const element = document.getElementById("toast");
  if (!element) return;
  element.textContent = words;
  element.classList.add("on");
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => element.classList.remove("on"), 5000);
}

// What failed, and what to do, in one line.
export function failed(error) {
  toast([error.what ?? String(error), error.fix].filter(Boolean).join(": "));
}

export function problem(error) {
  return h("div", { class: "notice", role: "alert" },
    h("p", {}, error.what ?? String(error)),
    error.where ? h("p", { class: "small soft" }, error.where) : null,
    error.fix ? h("p", { class: "small" }, error.fix) : null);
}

let tip = null;

export function showTip(event, words) {
  tip ??= document.getElementById("tip") ?? document.body.appendChild(h("div", { id: "tip", class: "tip", role: "tooltip" }));
  tip.textContent = words;
  tip.hidden = false;
  tip.style.left = `${Math.max(8, Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8))}px`;
  const below = event.clientY + 16 + tip.offsetHeight > window.innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 16;
  tip.style.top = `${Math.max(8, below)}px`;
}

export function hideTip() {
  if (tip) tip.hidden = true;
}

// Hand a file to the reader.
export function save(blob, name) {
  const address = URL.createObjectURL(blob);
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

export function sparkline(values) {
  const svg = s("svg", { class: "spark", viewBox: "0 0 120 28", role: "img", "aria-label": `value of the best trial so far, ${values.length} point${values.length === 1 ? "" : "s"}` });
  if (values.length === 1) svg.append(s("circle", { cx: 4, cy: 14, r: 2.5 }));
  if (values.length < 2) return svg;
  const low = Math.min(...values);
  const high = Math.max(...values);
  const path = values.map((value, i) => `${(2 + (116 * i) / (values.length - 1)).toFixed(1)} ${(high === low ? 14 : 25 - (22 * (value - low)) / (high - low)).toFixed(1)}`);
  svg.append(s("path", { d: `M${path.join("L")}` }));
  return svg;
}

export async function copy(words) {
  try {
    await navigator.clipboard.writeText(words);
    toast("copied");
  } catch {
    toast(words);
  }
}

// A question before something that cannot be undone; true where the answer is yes.
export function ask(words, yes) {
  return new Promise((answer) => {
    const told = (value) => () => { dialog.close(); dialog.remove(); answer(value); };
    const dialog = h("dialog", { "aria-label": words, oncancel: told(false) }, h("p", {}, words),
      h("div", { class: "tools after" }, h("button", { class: "danger", onclick: told(true) }, yes), h("button", { onclick: told(false) }, "Cancel")));
    document.body.append(dialog);
    dialog.showModal();
  });
}
