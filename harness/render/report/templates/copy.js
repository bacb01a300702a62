"use strict";
for (const button of document.querySelectorAll(".copy")) {
  if (!navigator.clipboard) break; // pages of files have one in some browsers only
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.previousElementSibling.textContent);
    button.textContent = "copied";
  });
}
