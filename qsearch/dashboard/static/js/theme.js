// Light, dark, or as the system says; remembered by this browser.

const NEXT = { auto: "light", light: "dark", dark: "auto" };
const MARKS = { auto: "◐", light: "☀", dark: "☾" };

export function themeSwitch() {
  const button = document.getElementById("theme");
  let now = "auto";
  function show(theme) {
    now = theme;
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = MARKS[theme];
    button.setAttribute("aria-label", `Theme: ${theme}`);
  }
  try {
    show(localStorage.getItem("theme") in NEXT ? localStorage.getItem("theme") : "auto");
  } catch {
    show("auto");
  }
  button.addEventListener("click", () => {
    show(NEXT[now]);
    try {
      localStorage.setItem("theme", now);
    } catch {
      // Kept until the page is left.
    }
  });
}
