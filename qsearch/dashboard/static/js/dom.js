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
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function replace(element, ...children) {
  element.replaceChildren(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function card(title, { wide = false, acts = [], id } = {}, ...body) {
  const heading = h("h2", {}, title);
  const head = h("header", {}, heading, acts.length ? h("div", { class: "acts" }, acts) : null);
  return h("section", { class: wide ? "card wide" : "card", id, "aria-label": title }, head, ...body);
}

export function scroller(label, table) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table);
}

export function select(label, options, value, onchange) {
  const element = h("select", { "aria-label": label, onchange: () => onchange(element.value) },
    options.map(([key, words]) => h("option", { value: key, selected: key === value }, words)));
  return element;
}

export function chip(state, words) {
  return h("span", { class: `chip ${state}` }, words ?? state);
}

// A search whose driver is gone is not running, whatever it last wrote of itself.
export function studyChip(study) {
  if (study.state !== "running" || study.listening) return chip(study.state);
  return study.silent ? chip("idle", "no driver") : chip("waiting", "preparing");
}

export function link(path, words, attributes = {}) {
  return h("a", { href: path, ...attributes }, words);
}

let toastTimer = 0;
export function toast(words) {
  const element = document.getElementById("toast");
  element.textContent = words;
  element.classList.add("on");
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => element.classList.remove("on"), 5000);
}

export function problem(error) {
  return h("div", { class: "notice", role: "alert" },
    h("p", {}, error.what ?? String(error)),
    error.where ? h("p", { class: "small soft" }, error.where) : null,
    error.fix ? h("p", { class: "small" }, error.fix) : null);
}
