// Addresses of the pages; every one of them can be opened, bookmarked and gone back to.

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
