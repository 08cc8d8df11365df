// Addresses of the pages; every one of them can be opened, bookmarked and gone back to. What a
// reader chose on a page (filter, sort, page, axes, tab) stands in its query.

let render = () => {};

export function start(draw) {
  render = draw;
  window.addEventListener("popstate", () => render());
  document.addEventListener("click", (event) => {
    const anchor = event.target.closest("a[href^='/']");
    const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey;
    if (!anchor || !plain || anchor.hasAttribute("download") || anchor.pathname.startsWith("/api/")) return;
    event.preventDefault();
    go(anchor.pathname + anchor.search);
  });
  render();
}

export function go(path) {
  if (path !== location.pathname + location.search) history.pushState(null, "", path);
  window.scrollTo(0, 0);
  render(true);
}

// The same page anew, where the reader is: neither scrolled nor focused.
export function again() {
  render();
}

export function asked(name, otherwise = "") {
  return new URLSearchParams(location.search).get(name) ?? otherwise;
}

// Put choices into the address; "" removes one. ``step`` makes it a step that Back undoes.
export function keep(values, step = true) {
  const words = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(values)) {
    if (value === "" || value === null || value === undefined) words.delete(name);
    else words.set(name, value);
  }
  const query = words.toString().replaceAll("%2C", ",").replaceAll("%3A", ":");
  const path = location.pathname + (query ? `?${query}` : "");
  if (path === location.pathname + location.search) return;
  history[step ? "pushState" : "replaceState"](null, "", path);
}

// What plots remember their choices in.
export const settings = { get: (name) => asked(name, null), set: (name, value) => keep({ [name]: value }) };
