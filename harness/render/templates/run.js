"use strict";
const search = document.querySelector(".search");
const rows = [...document.querySelectorAll(".tall tbody tr")];
const texts = rows.map((row) => row.textContent.toLowerCase());
search.hidden = false;
search.addEventListener("input", () => {
  const words = search.querySelector("input").value.toLowerCase().split(/\s+/);
  const found = rows.filter((row, at) => !(row.hidden = !words.every((word) => texts[at].includes(word))));
  search.querySelector("output").textContent = `${found.length.toLocaleString("en")} found`;
});
