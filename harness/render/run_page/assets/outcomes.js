// The list of files and tests: filtered by outcome and by name, a hundred rows at a time.
"use strict";
(() => {
  const { data } = page;
  const { FILE, TEST } = timeline;
  const CHUNK = 100;
  const RANK = { bad: 0, lost: 1, stopped: 2, quiet: 3, good: 4 };
  const body = document.getElementById("found");
  const more = document.getElementById("more");
  const search = document.getElementById("search");
  const filters = document.getElementById("filters");
  const toneOf = (outcome) => data.outcomes[outcome][1];

  const bars = data.files.flatMap((file, index) => [
    { index, test: null, kind: "file", name: file[FILE.path], outcome: file[FILE.outcome], seconds: file[FILE.seconds], file },
    ...file[FILE.tests].map((test, position) => ({
      index, test: position, kind: "test", name: `${file[FILE.path]}::${test[TEST.name]}`, outcome: test[TEST.outcome],
      seconds: test[TEST.seconds], file,
    })),
  ]);
  bars.forEach((bar) => { bar.key = bar.name.toLowerCase(); });
  bars.sort((a, b) => RANK[toneOf(a.outcome)] - RANK[toneOf(b.outcome)]); // stable: else as they ran
  const counts = new Map();
  for (const bar of bars) {
    const key = `${bar.kind} ${bar.outcome}`;
    counts.set(key, (counts.get(key) || 0) + 1);
  }
  const chosen = new Set();
  let found = bars;
  let shown = 0;

  const cell = (tag, ...contents) => {
    const made = document.createElement(tag);
    made.append(...contents);
    return made;
  };
  const rowOf = (bar) => {
    const name = cell("th", Object.assign(document.createElement("code"), { textContent: bar.name }));
    name.scope = "row";
    const go = cell("td");
    if (bar.file[FILE.start] >= 0) {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: "show" });
      button.setAttribute("aria-label", `Show ${bar.name} in the timeline`);
      button.addEventListener("click", () => timeline.show(bar.index, bar.test));
      go.append(button);
    }
    const reason = bar.test === null ? bar.file[FILE.reason] : "";
    if (reason) name.append(Object.assign(document.createElement("small"), { textContent: ` ${reason}` }));
    const started = bar.file[FILE.start] >= 0;
    return cell("tr", cell("td", timeline.chip(bar.outcome)), name,
      cell("td", started ? timeline.text(bar.seconds * 1000) : "–"), go);
  };
  const showMore = () => {
    body.append(...found.slice(shown, shown + CHUNK).map(rowOf));
    shown = Math.min(found.length, shown + CHUNK);
    more.hidden = shown >= found.length;
    document.getElementById("num-found").textContent =
      `${found.length.toLocaleString("en")} of ${bars.length.toLocaleString("en")} files and tests`
      + (shown < found.length ? `; the first ${shown.toLocaleString("en")} are listed` : "");
  };
  const update = () => {
    const wanted = search.value.trim().toLowerCase();
    found = bars.filter((bar) => bar.key.includes(wanted)
      && (!chosen.size || chosen.has(`${bar.kind} ${bar.outcome}`)));
    body.replaceChildren();
    shown = 0;
    showMore();
  };

  for (const [key, num] of counts) {
    const [kind, outcome] = key.split(" ");
    const [word] = data.outcomes[Number(outcome)];
    const button = Object.assign(document.createElement("button"), {
      type: "button", textContent: `${kind}s ${word} (${num.toLocaleString("en")})`,
    });
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => {
      if (!chosen.delete(key)) chosen.add(key);
      button.setAttribute("aria-pressed", String(chosen.has(key)));
      update();
    });
    filters.append(button);
  }
  // A link to a failure opens it.
  const openTarget = () => {
    const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    if (target && target.tagName === "DETAILS") target.open = true;
  };
  addEventListener("hashchange", openTarget);
  openTarget();

  search.addEventListener("input", update);
  more.addEventListener("click", showMore);
  update();
})();
