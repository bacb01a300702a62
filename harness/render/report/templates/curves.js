// The curves: a plot of uPlot for each value, all runs over each other, one cursor for all plots.
"use strict";
(() => {
  const { letters, parts, panels } = page.data.curves;
  const NUM_COLOURS = 6;
  const HEIGHT = 190;
  const DASHES = [[], [7, 5], [2, 4], [9, 4, 2, 4], [1, 3], [12, 3]];
  const colourOf = (run) => page.colour(`run-${run % NUM_COLOURS}`);
  const keys = document.getElementById("curve-keys");
  const plots = [];
  const sync = uPlot.sync("curves");

  // Where each run parts from the first: a line across the plot, with its letter; letters that would meet are put below
  // each other.
  const marks = (plot) => {
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio;
    const isOne = parts.length === 1;
    const ends = []; // of the last letter in each row
    ctx.save();
    ctx.lineWidth = 1.5 * ratio;
    ctx.setLineDash([4 * ratio, 3 * ratio]);
    ctx.font = `600 ${11 * ratio}px ${page.colour("font")}`;
    ctx.textBaseline = "top";
    ctx.textAlign = "left";
    for (const { letter, step } of [...parts].sort((one, other) => one.step - other.step)) {
      if (step < plot.scales.x.min || step > plot.scales.x.max) continue;
      ctx.strokeStyle = ctx.fillStyle = isOne ? page.colour("part") : colourOf(letters.indexOf(letter));
      const x = Math.round(plot.valToPos(step, "x", true));
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      const text = isOne ? `${letter} diverges` : letter;
      const width = ctx.measureText(text).width + 5 * ratio;
      const isRight = x + width < bbox.left + bbox.width;
      const start = isRight ? x : x - width;
      const free = ends.findIndex((end) => end < start);
      const row = free < 0 ? ends.length : free;
      ends[row] = start + width;
      ctx.fillText(text, isRight ? x + 5 * ratio : start, bbox.top + (3 + 13 * row) * ratio);
    }
    ctx.restore();
  };

  const number = (value) => (value == null ? "–" : String(+value.toPrecision(6)));

  // Labels of an axis: as few digits as tell one from the other.
  const compact = (values) => {
    const told = values.filter((value) => value != null);
    const digits = [4, 6, 8, 10, 12, 14].find((each) => new Set(told.map((value) => value.toPrecision(each))).size === told.length);
    return values.map((value) => (value == null ? "" : String(+value.toPrecision(digits || 17))));
  };
  const room = (_, labels) => Math.max(58, 18 + 7 * Math.max(0, ...(labels || []).map((label) => label.length)));
  const axis = (extra) => ({
    stroke: () => page.colour("muted"),
    grid: { stroke: () => page.colour("rule"), width: 1 },
    ticks: { stroke: () => page.colour("rule"), width: 1 },
    font: `11px ${page.colour("font")}`,
    ...extra,
  });

  // A line that never moves gets room around it, not an axis to a hundred; one that hardly does is what is shown.
  const widened = (_, low, high) => {
    const span = high - low;
    const size = Math.max(Math.abs(low), Math.abs(high));
    if (span < 1e-12 * size || span === 0) return [low - (Math.abs(low) * 0.1 || 1), high + (Math.abs(high) * 0.1 || 1)];
    if (span < 1e-3 * size) return [low - 0.08 * span, high + 0.08 * span];
    return uPlot.rangeNum(low, high, 0.08, true);
  };

  const distances = (lines) => lines.slice(1).map((line) => line.map((value, at) => {
    const other = lines[0][at];
    return value == null || other == null || value === other ? null : Math.abs(value - other);
  }));

  const plot = (panel, target, isDistance) => {
    const lines = isDistance ? distances(panel.lines) : panel.lines;
    const first = isDistance ? 1 : 0;
    const isUnlike = isDistance && panel.together > 1; // extremes of two runs need not be of the same steps
    if (isUnlike || lines.every((line) => line.every((value) => value == null))) {
      const why = isUnlike ? `two points stand for ${panel.together} steps` : "equal wherever both have a value";
      target.textContent = isDistance ? `no distance: ${why}` : "no numbers";
      target.classList.add("blank");
      return;
    }
    const options = {
      width: target.clientWidth,
      height: HEIGHT,
      cursor: { sync: { key: sync.key }, points: { size: 6 }, focus: { prox: 24 } },
      legend: { live: true },
      scales: { x: { time: false }, y: isDistance ? { distr: 3 } : { range: widened } },
      axes: [
        axis({ size: 26, gap: 3, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5, 1e6] }),
        axis({ size: room, gap: 4, values: (_, values) => compact(values) }),
      ],
      series: [
        { label: "step", value: (_, value) => (value == null ? "–" : value) },
        ...lines.map((_, run) => ({
          label: isDistance ? `|${letters[run + first]} − A|` : letters[run],
          stroke: () => colourOf(run + first),
          width: run + first ? 2 : 2.5,
          dash: DASHES[(run + first) % DASHES.length],
          points: { show: panel.steps.length < 3 || isDistance, size: 4, fill: () => colourOf(run + first) },
          value: (_, value) => number(value),
        })),
      ],
      hooks: { draw: [marks], setCursor: [(made) => target.classList.toggle("idle", made.cursor.idx == null)] },
    };
    target.classList.add("idle"); // nothing is pointed at: the legend has no values to tell
    const made = new uPlot(options, [panel.steps, ...lines], target);
    plots.push({ made, target });
  };

  const figure = (panel) => {
    const outer = document.createElement("figure");
    const caption = document.createElement("figcaption");
    const title = document.createElement("b");
    title.textContent = panel.name;
    caption.append(title);
    const notes = [...panel.wild];
    if (panel.together > 1) notes.push(`two points, minimum and maximum, for every ${panel.together} steps`);
    if (notes.length) {
      const told = document.createElement("small");
      told.textContent = notes.join("; ");
      caption.append(told);
    }
    const target = document.createElement("div");
    target.className = "plot";
    outer.append(caption, target);
    return { outer, target, panel };
  };

  const build = () => {
    const found = panels.map(figure);
    for (const { outer, panel } of found) {
      document.getElementById(panel.place).append(outer);
    }
    return found;
  };

  const boxes = document.querySelectorAll("#curves ~ details"); // drawn once they are open
  document.getElementById("no-curves").hidden = panels.length > 0;
  document.getElementById("curve-bar").hidden = panels.length === 0;
  for (const [at, letter] of letters.entries()) {
    const key = document.createElement("span");
    key.className = `key line-${at % NUM_COLOURS}`;
    key.textContent = letter;
    keys.append(key);
  }
  const figures = build();
  boxes.forEach((box) => { box.hidden = !box.querySelector("figure"); });
  const mode = document.getElementById("curve-mode");
  mode.hidden = letters.length < 2 || panels.length === 0;

  const draw = () => {
    const isDistance = mode.querySelector("input:checked").value === "distance";
    plots.splice(0).forEach(({ made }) => made.destroy());
    for (const { target, panel } of figures) {
      target.textContent = "";
      target.classList.remove("blank", "idle");
      if (!target.closest("details:not([open])")) plot(panel, target, isDistance);
    }
  };
  mode.addEventListener("change", draw);
  boxes.forEach((box) => box.addEventListener("toggle", draw));
  page.onTheme(() => plots.forEach(({ made }) => made.redraw(false, true)));
  new ResizeObserver(() => plots.forEach(({ made, target }) => {
    if (target.clientWidth && made.width !== target.clientWidth) made.setSize({ width: target.clientWidth, height: HEIGHT });
  })).observe(document.getElementById("panels"));
  draw();
})();
