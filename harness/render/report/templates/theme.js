// The switch of light and dark, and what is told when it changes; the buttons that copy a command.
"use strict";
const page = (() => {
  const KEY = "rlharness-theme";
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const listeners = [];
  const root = document.documentElement;
  const changed = () => listeners.forEach((listener) => listener());
  const stored = () => { try { return localStorage.getItem(KEY) || "auto"; } catch { return "auto"; } };
  const choose = (theme) => {
    if (theme === "auto") root.removeAttribute("data-theme"); else root.setAttribute("data-theme", theme);
    changed();
  };
  const control = document.querySelector(".theme");
  control.hidden = false;
  control.addEventListener("change", (event) => {
    try { localStorage.setItem(KEY, event.target.value); } catch { /* a page of a file may have no storage */ }
    choose(event.target.value);
  });
  const chosen = control.querySelector(`input[value="${stored()}"]`);
  if (chosen) { chosen.checked = true; choose(chosen.value); }
  dark.addEventListener("change", changed);

  // On paper it is light, whatever the screen is.
  addEventListener("beforeprint", () => choose("light"));
  addEventListener("afterprint", () => choose(control.querySelector("input:checked").value));

  for (const button of document.querySelectorAll(".copy")) {
    if (!navigator.clipboard) break; // pages of files have one in some browsers only
    button.hidden = false;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(button.previousElementSibling.textContent);
      button.textContent = "copied";
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
  }
  return {
    data: JSON.parse(document.getElementById("data").textContent),
    onTheme: (listener) => listeners.push(listener),
    colour: (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim(),
  };
})();
