// Files by GPU and CPU slot over time, on a canvas: drawn whole at each change, since bars below a pixel are merged.
"use strict";
const timeline = (() => {
  const AXIS = 24;
  const FILE = { path: 0, outcome: 1, start: 2, end: 3, seconds: 4, reason: 5, failure: 6, tests: 7, memory: 8 };
  const TEST = { name: 0, outcome: 1, start: 2, end: 3, seconds: 4, memory: 5 };
  const COLOURS = { good: "done", bad: "broken", lost: "lost", quiet: "quiet", stopped: "stopped" };
  const { data } = page;
  const frame = document.querySelector(".frame");
  const canvas = frame.querySelector("canvas");
  const detail = document.querySelector(".detail");
  const pen = canvas.getContext("2d");
  const rows = data.rows;
  const ROW = rows.length > 40 ? 18 : 30;
  const tops = rows.map((_, number) => AXIS + number * ROW);
  const whole = { from: Math.min(0, data.first), to: Math.max(data.last, data.bound || 0, 1) * 1.01 };
  whole.from = data.first - (whole.to - data.first) * 0.005;
  let view = { ...whole };
  let gutter = 150;
  let spot = null; // {row, file (position in the row), test (position in the file, or null)}

  const text = (ms) => {
    const seconds = ms / 1000;
    if (seconds < 1) return `${seconds.toFixed(3)} s`;
    if (seconds < 120) return `${seconds.toFixed(1)} s`;
    const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
    return hours ? `${hours} h ${minutes} min` : `${minutes} min ${Math.round(seconds % 60)} s`;
  };
  const percent = (share) => `${Math.round(share * 100)}%`;
  const toneOf = (outcome) => data.outcomes[outcome][1];
  const fileAt = (at) => data.files[rows[at.row].files[at.file]];
  const width = () => canvas.width / devicePixelRatio;
  const x = (ms) => gutter + ((ms - view.from) / (view.to - view.from)) * (width() - gutter);

  const step = (span, room) => {
    const least = span / Math.max(2, room / 90);
    const power = 10 ** Math.floor(Math.log10(least));
    return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= least);
  };

  const clipped = (words, left, top, room) => {
    if (room < 24) return;
    let shown = words;
    while (shown.length > 1 && pen.measureText(shown).width > room) {
      shown = `${shown.slice(0, Math.floor(shown.length * Math.min(0.9, room / pen.measureText(shown).width)) - 1)}…`;
    }
    if (shown.length > 2) pen.fillText(shown, left, top);
  };

  // The name of a file without its directory, and its part: test_k.py [3/4].
  const labelOf = (path) => path.match(/[^/]*?( \[\d+\/\d+\])?$/)[0];

  const drawAxis = (colours, height) => {
    const span = view.to - view.from;
    const each = step(span, width() - gutter);
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = "center";
    for (let at = Math.ceil((view.from - data.first) / each) * each; at <= view.to - data.first; at += each) {
      const left = Math.round(x(data.first + at)) + 0.5;
      if (left < gutter) continue;
      pen.strokeStyle = colours.rule;
      pen.beginPath();
      pen.moveTo(left, AXIS);
      pen.lineTo(left, height);
      pen.stroke();
      pen.fillStyle = colours.muted;
      const digits = Math.max(0, Math.min(3, 3 - Math.floor(Math.log10(each))));
      pen.fillText(`${(at / 1000).toFixed(digits)} s`, Math.min(left, width() - 22), AXIS / 2);
    }
    pen.textAlign = "left";
    pen.fillText("since the first start", 8, AXIS / 2);
  };

  const drawRow = (row, number, colours, hatch) => {
    const top = tops[number];
    pen.fillStyle = colours.card;
    pen.fillRect(0, top, gutter, ROW);
    pen.fillStyle = colours.ink;
    pen.font = `600 ${ROW > 20 ? 12 : 11}px system-ui, sans-serif`;
    const idle = `idle ${percent(1 - row.busy)}`;
    clipped(row.name, 8, top + ROW / 2, gutter - 70);
    pen.fillStyle = colours.muted;
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = "right";
    pen.fillText(idle, gutter - 8, top + ROW / 2);
    pen.textAlign = "left";
    const [left, right] = [Math.max(x(data.first), gutter), Math.max(x(data.last), gutter)];
    pen.fillStyle = colours.band;
    pen.fillRect(left, top + 2, right - left, ROW - 4);
    if (row.lost !== null) {
      const lost = Math.max(x(row.lost), gutter);
      pen.fillStyle = hatch;
      pen.fillRect(lost, top + 2, right - lost, ROW - 4);
    }
  };

  const drawBars = (row, number, colours) => {
    const top = tops[number];
    pen.save();
    pen.beginPath();
    pen.rect(gutter, top, width() - gutter, ROW);
    pen.clip();
    let filled = -1; // pixels that a bar has: a later one within them would not be seen
    for (const index of row.files) {
      const file = data.files[index];
      const [from, to] = [x(file[FILE.start]), x(file[FILE.end])];
      const tone = toneOf(file[FILE.outcome]);
      if (to < gutter || from > width() || (to < filled && tone === "good")) continue;
      filled = drawFile(file, tone, from, Math.max(to, from + 1.5), top + 3, ROW - 6, colours);
    }
    pen.restore();
  };

  const drawFile = (file, tone, from, to, top, height, colours) => {
    const gap = to - from > 4 ? 1 : 0;
    const head = file[FILE.tests].length && to - from > 6 ? Math.round(height * 0.58) : height;
    pen.fillStyle = colours[tone];
    pen.fillRect(from, top, to - from - gap, head);
    if (head < height) {
      pen.globalAlpha = 0.3;
      pen.fillRect(from, top + head, to - from - gap, height - head);
      pen.globalAlpha = 1;
      let filled = -1;
      for (const test of file[FILE.tests]) {
        const [left, right] = [Math.max(x(test[TEST.start]), from), Math.min(x(test[TEST.end]), to - gap)];
        const testTone = toneOf(test[TEST.outcome]);
        if (right < filled && testTone === "good") continue;
        const least = testTone === "good" || testTone === "quiet" ? 0.7 : 2;
        const shown = Math.max(right - left - (right - left > 3 ? 1 : 0), least);
        pen.fillStyle = colours[testTone];
        pen.fillRect(left, top + head + 1, shown, height - head - 1);
        filled = left + shown;
      }
    }
    pen.fillStyle = colours.card;
    pen.font = "600 11px system-ui, sans-serif";
    const sign = tone === "bad" || tone === "lost" ? "✗ " : tone === "stopped" ? "! " : "";
    const left = Math.max(from, gutter) + 4;
    if (head > 10) clipped(sign + labelOf(file[FILE.path]), left, top + head / 2 + 0.5, to - gap - left - 3);
    return to - gap;
  };

  const drawBound = (colours, height) => {
    if (data.bound === null) return;
    const left = Math.round(x(data.bound)) + 0.5;
    if (left < gutter) return;
    pen.strokeStyle = colours.accent;
    pen.lineWidth = 2;
    pen.setLineDash([5, 4]);
    pen.beginPath();
    pen.moveTo(left, AXIS - 4);
    pen.lineTo(left, height);
    pen.stroke();
    pen.setLineDash([]);
    pen.lineWidth = 1;
  };

  const drawSpot = (colours) => {
    if (!spot) return;
    const file = fileAt(spot);
    const bar = spot.test === null ? file : file[FILE.tests][spot.test];
    const [from, to] = [x(bar[2]), x(bar[3])];
    pen.strokeStyle = colours.ink;
    pen.lineWidth = 2;
    const left = Math.max(from, gutter) - 1;
    pen.strokeRect(left, tops[spot.row] + 2, Math.max(Math.min(to, width()) - left + 1, 4), ROW - 4);
    pen.lineWidth = 1;
  };

  const stripes = (colour) => {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const brush = tile.getContext("2d");
    brush.strokeStyle = colour;
    brush.beginPath();
    brush.moveTo(-2, 10);
    brush.lineTo(10, -2);
    brush.stroke();
    return pen.createPattern(tile, "repeat");
  };

  const draw = () => {
    const room = frame.clientWidth;
    const height = AXIS + rows.length * ROW + 4;
    gutter = room < 560 ? 120 : 160;
    canvas.width = Math.round(room * devicePixelRatio);
    canvas.height = Math.round(height * devicePixelRatio);
    canvas.style.width = `${room}px`;
    canvas.style.height = `${height}px`;
    pen.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    const names = ["ink", "muted", "rule", "band", "card", "accent"];
    const colours = Object.fromEntries(names.map((name) => [name, page.colour(name)]));
    for (const [tone, name] of Object.entries(COLOURS)) colours[tone] = page.colour(name);
    const hatch = stripes(colours.bad);
    pen.textBaseline = "middle";
    rows.forEach((row, number) => drawRow(row, number, colours, hatch));
    drawAxis(colours, height);
    rows.forEach((row, number) => drawBars(row, number, colours));
    drawBound(colours, height);
    drawSpot(colours);
  };

  const line = (words, ...more) => {
    const paragraph = document.createElement("p");
    paragraph.append(words, ...more);
    return paragraph;
  };
  const bold = (words) => Object.assign(document.createElement("b"), { textContent: words });
  const chip = (outcome) => Object.assign(document.createElement("span"), {
    textContent: data.outcomes[outcome][0], className: `outcome ${toneOf(outcome)}`,
  });

  const describe = () => {
    if (!spot) return;
    const row = rows[spot.row];
    const file = fileAt(spot);
    const test = spot.test === null ? null : file[FILE.tests][spot.test];
    const bar = test || file;
    const lines = [line(chip(bar[1]), " ", bold(test ? `${file[FILE.path]}::${test[TEST.name]}` : file[FILE.path]))];
    const times = `${text(bar[4] * 1000)}, from ${text(bar[2] - data.first)} to ${text(bar[3] - data.first)}`;
    lines.push(line(`${row.title}: ${times}`));
    const memory = test ? test[TEST.memory] : file[FILE.memory];
    if (memory) lines.push(line(memory));
    if (!test && file[FILE.reason]) lines.push(line(file[FILE.reason]));
    const num = test ? 0 : file[FILE.tests].length;
    if (num) lines.push(line(`${num.toLocaleString("en")} ${num === 1 ? "test" : "tests"}; Enter moves into the tests`));
    if (file[FILE.failure] >= 0 && document.getElementById(`failure-${file[FILE.failure]}`)) {
      lines.push(line(Object.assign(document.createElement("a"), {
        textContent: "why it failed", href: `#failure-${file[FILE.failure]}`,
      })));
    }
    detail.replaceChildren(...lines);
  };

  const zoom = (factor, middle) => {
    const span = Math.min(whole.to - whole.from, Math.max(20, (view.to - view.from) * factor));
    const share = (middle - view.from) / (view.to - view.from);
    const from = Math.min(Math.max(middle - share * span, whole.from), whole.to - span);
    view = { from, to: from + span };
    draw();
  };
  const middle = () => {
    if (!spot) return (view.from + view.to) / 2;
    const bar = spot.test === null ? fileAt(spot) : fileAt(spot)[FILE.tests][spot.test];
    return Math.min(Math.max((bar[2] + bar[3]) / 2, view.from), view.to);
  };
  const reset = () => { view = { ...whole }; draw(); };

  const reveal = () => {
    const bar = spot.test === null ? fileAt(spot) : fileAt(spot)[FILE.tests][spot.test];
    const span = view.to - view.from;
    if (bar[3] < view.from || bar[2] > view.to) {
      const from = Math.min(Math.max((bar[2] + bar[3]) / 2 - span / 2, whole.from), whole.to - span);
      view = { from, to: from + span };
    }
    const top = tops[spot.row];
    if (top < frame.scrollTop + AXIS) frame.scrollTop = top - AXIS;
    const bottom = top + ROW;
    if (bottom > frame.scrollTop + frame.clientHeight) frame.scrollTop = bottom - frame.clientHeight;
  };
  const select = (next) => {
    spot = next;
    reveal();
    draw();
    describe();
  };

  const nearest = (row, ms) => {
    let best = 0;
    const distance = (file) => Math.max(0, file[FILE.start] - ms, ms - file[FILE.end]);
    rows[row].files.forEach((index, position) => {
      if (distance(data.files[index]) < distance(data.files[rows[row].files[best]])) best = position;
    });
    return { row, file: best, test: null };
  };
  const toRow = (direction) => {
    for (let row = spot.row + direction; row >= 0 && row < rows.length; row += direction) {
      if (rows[row].files.length) return select(nearest(row, middle()));
    }
    return undefined;
  };
  const along = (direction) => {
    if (spot.test !== null) {
      const test = spot.test + direction;
      if (test >= 0 && test < fileAt(spot)[FILE.tests].length) select({ ...spot, test });
      return;
    }
    const file = spot.file + direction;
    if (file >= 0 && file < rows[spot.row].files.length) select({ ...spot, file });
  };
  const KEYS = {
    ArrowLeft: () => along(-1),
    ArrowRight: () => along(1),
    ArrowUp: () => toRow(-1),
    ArrowDown: () => toRow(1),
    Enter: () => { if (fileAt(spot)[FILE.tests].length) select({ ...spot, test: 0 }); },
    Escape: () => select({ ...spot, test: null }),
    Home: () => select({ ...spot, file: 0, test: null }),
    End: () => select({ ...spot, file: rows[spot.row].files.length - 1, test: null }),
    "+": () => zoom(0.5, middle()),
    "=": () => zoom(0.5, middle()),
    "-": () => zoom(2, middle()),
    0: reset,
  };
  frame.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key] || !spot) return;
    event.preventDefault();
    KEYS[event.key]();
  });

  const under = (event) => {
    const box = canvas.getBoundingClientRect();
    const [left, top] = [event.clientX - box.left, event.clientY - box.top];
    const row = tops.findLastIndex((each) => each <= top);
    const ms = view.from + ((left - gutter) / (width() - gutter)) * (view.to - view.from);
    canvas.title = rows[row] ? rows[row].title : "";
    if (left < gutter || !rows[row] || !rows[row].files.length) return null;
    const slack = ((view.to - view.from) / (width() - gutter)) * 3;
    const found = nearest(row, ms);
    const file = fileAt(found);
    if (ms < file[FILE.start] - slack || ms > file[FILE.end] + slack) return null;
    if (top - tops[row] > ROW * 0.58 && top - tops[row] < ROW) {
      const test = file[FILE.tests].findIndex((each) => each[TEST.start] <= ms && ms <= each[TEST.end]);
      if (test >= 0) found.test = test;
    }
    return found;
  };
  canvas.addEventListener("click", (event) => { const found = under(event); if (found) select(found); });
  let waiting = false;
  canvas.addEventListener("pointermove", (event) => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      const found = under(event);
      if (found && JSON.stringify(found) !== JSON.stringify(spot)) { spot = found; draw(); describe(); }
    });
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey) return; // else the page scrolls
    event.preventDefault();
    const left = event.clientX - canvas.getBoundingClientRect().left;
    const ms = view.from + (Math.max(0, left - gutter) / (width() - gutter)) * (view.to - view.from);
    zoom((event.deltaY || event.deltaX) > 0 ? 1.25 : 0.8, ms);
  }, { passive: false });
  const ZOOMS = { in: () => zoom(0.5, middle()), out: () => zoom(2, middle()), reset };
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", ZOOMS[button.dataset.zoom]);
  }

  const legend = document.getElementById("legend");
  const words = { good: "passed", bad: "failed", lost: "hung or crashed", quiet: "skipped or no tests", stopped: "stopped" };
  const used = new Set(data.files.flatMap((file) => [toneOf(file[FILE.outcome]), ...file[FILE.tests].map((test) => toneOf(test[1]))]));
  const keys = Object.entries(words).filter(([tone]) => used.has(tone));
  keys.push(["idle", "idle"]);
  if (rows.some((row) => row.lost !== null)) keys.push(["quarantine", "quarantine"]);
  if (data.bound !== null) keys.push(["bound", "lower bound"]);
  for (const [tone, word] of keys) {
    legend.append(Object.assign(document.createElement("span"), { className: `key ${tone}`, textContent: word }));
  }

  // Shown first: the first failure, else the first file.
  const begun = rows.flatMap((row, number) => row.files.map((_, file) => ({ row: number, file, test: null })));
  spot = begun.find((each) => fileAt(each)[FILE.failure] >= 0) || begun[0] || null;
  if (!rows.length) detail.replaceChildren(line("No file started."));
  draw();
  describe();
  page.onTheme(draw);
  new ResizeObserver(() => { if (frame.clientWidth !== Math.round(width())) draw(); }).observe(frame);

  return {
    FILE, TEST, text, chip,
    show: (index, test) => {
      const row = rows.findIndex((each) => each.files.includes(index));
      if (row < 0) return;
      frame.scrollIntoView({ block: "center" });
      frame.focus({ preventScroll: true });
      select({ row, file: rows[row].files.indexOf(index), test });
    },
  };
})();
