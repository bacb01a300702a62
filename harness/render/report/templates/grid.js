// What differs when: rows of values by phase, columns of steps, on a canvas that holds only what is seen of it.
"use strict";
(() => {
  const ROW = 16;
  const HEAD = 22; // of a phase
  const AXIS = 22;
  const MAX_HEIGHT = 520;
  const MAX_OPEN = 40; // rows: with more of them only the phase in which the runs part is open at first
  const NO_RANK = 0xffff;
  const RECORD = 42; // bytes; grid_data.py says what they are

  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const numbers = (text) => new Uint32Array(bytes(text).buffer);
  const hex = (data) => {
    const text = Array.from(data, (byte) => byte.toString(16).padStart(2, "0")).join("");
    return /^0*$/.test(text) ? "" : text;
  };

  const decode = (data) => {
    const different = numbers(data.different);
    const firsts = bytes(data.firsts);
    const view = new DataView(firsts.buffer);
    const at = new Map(); // of each cell that differs, where its record is
    for (let cell = 0, next = 0; cell < different.length; cell++) {
      if (different[cell]) { at.set(cell, next); next += RECORD; }
    }
    const first = (cell) => {
      const start = at.get(cell);
      if (start === undefined) return null;
      const [row, column] = [Math.floor(cell / data.columns.length), cell % data.columns.length];
      const rank = view.getUint16(start + 2, true);
      return {
        step: data.columns[column][0] + view.getUint16(start, true),
        rank: rank === NO_RANK ? null : rank,
        occurrence: view.getUint16(start + 4, true),
        name: data.rows[row].names[view.getUint16(start + 6, true)],
        kind: data.kinds[view.getUint8(start + 8)].replaceAll("_", " "),
        algorithm: data.algorithms[view.getUint8(start + 9)],
        a: hex(firsts.subarray(start + 10, start + 26)),
        b: hex(firsts.subarray(start + 26, start + 42)),
        value: data.values[cell],
      };
    };
    return { ...data, pairs: numbers(data.pairs), different, first };
  };

  class Grid {
    constructor(element, data) {
      this.data = decode(data);
      this.frame = element.querySelector(".grid-frame");
      this.space = element.querySelector(".grid-space");
      this.canvas = element.querySelector("canvas");
      this.told = element.querySelector(".grid-cell");
      this.numColumns = data.columns.length;
      this.open = new Set();
      this.spot = null; // {line, column} under the pointer or the keys
      this.origin = this.findOrigin();
      const isSmall = data.rows.length <= MAX_OPEN;
      data.phases.forEach((_, phase) => { if (isSmall) this.open.add(phase); });
      if (this.origin) this.open.add(data.rows[this.origin.row].phase);
      this.layOut();
      this.listen();
      if (this.origin) this.choose(this.lines.indexOf(this.lineOf(this.origin)), this.origin.column);
    }

    // The cell of the earliest step, in the order of the phases.
    findOrigin() {
      for (let column = 0; column < this.numColumns; column++) {
        let best = null;
        for (let row = 0; row < this.data.rows.length; row++) {
          const cell = row * this.numColumns + column;
          if (!this.data.different[cell]) continue;
          const { step } = this.data.first(cell);
          if (!best || step < best.step) best = { row, column, step };
        }
        if (best) return best;
      }
      return null;
    }

    // Where a row stands: its own line, or that of its phase, where that is folded.
    lineOf({ row }) {
      const { phase } = this.data.rows[row];
      return this.lines.find((line) => line.name === null && line.rows[0] === row) || this.lines.find((line) => line.phase === phase);
    }

    // What stands below each other: phases, and of open ones their rows.
    layOut() {
      this.lines = [];
      let top = 0;
      this.data.phases.forEach((name, phase) => {
        const rows = [];
        this.data.rows.forEach((row, at) => { if (row.phase === phase) rows.push(at); });
        this.lines.push({ top, height: HEAD, rows, name, phase });
        top += HEAD;
        if (this.open.has(phase)) {
          for (const row of rows) { this.lines.push({ top, height: ROW, rows: [row], name: null, phase }); top += ROW; }
        }
      });
      this.height = top;
      this.resize();
    }

    resize() {
      const width = this.frame.clientWidth;
      const shown = Math.min(this.height + AXIS, MAX_HEIGHT);
      const ratio = devicePixelRatio || 1;
      this.space.style.height = `${this.height + AXIS}px`;
      this.frame.style.height = `${shown}px`;
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(shown * ratio);
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${shown}px`;
      this.size = { width, height: shown, ratio };
      this.gutter = Math.min(230, Math.max(96, Math.round(width * 0.27)));
      this.draw();
    }

    edge(column) {
      return this.gutter + (column * (this.size.width - this.gutter - 1)) / this.numColumns;
    }

    draw() {
      const ctx = this.canvas.getContext("2d");
      const { width, height, ratio } = this.size;
      const scroll = this.frame.scrollTop;
      this.colours = Object.fromEntries(
        ["card", "ink", "muted", "rule", "equal", "different", "part", "band", "font"].map((name) => [name, page.colour(name)]),
      );
      ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
      ctx.clearRect(0, 0, width, height);
      ctx.textBaseline = "middle";
      for (const line of this.lines) {
        const top = line.top - scroll;
        if (top + line.height < 0 || top > height - AXIS) continue;
        this.drawLine(ctx, line, top);
      }
      const pinned = this.pinned();
      if (pinned) this.drawLine(ctx, pinned, 0);
      this.drawOrigin(ctx, scroll);
      this.drawSpot(ctx, scroll);
      this.drawAxis(ctx);
    }

    // The phase whose rows are seen while its own line is above: it stays at the top.
    pinned() {
      const above = this.lines.filter((line) => line.name !== null && line.top < this.frame.scrollTop);
      const last = above[above.length - 1];
      return last && this.open.has(last.phase) ? last : null;
    }

    drawLine(ctx, line, top) {
      const { width } = this.size;
      const middle = top + line.height / 2;
      if (line.name !== null) {
        ctx.fillStyle = this.colours.band;
        ctx.fillRect(0, top, width, line.height);
        ctx.fillStyle = this.colours.ink;
        ctx.font = `600 12px ${this.colours.font}`;
        const name = `${this.open.has(line.phase) ? "▾" : "▸"} ${line.name}`;
        ctx.fillText(name, 6, middle);
        const end = 6 + ctx.measureText(name).width;
        const number = String(line.rows.length);
        ctx.font = `11px ${this.colours.font}`;
        ctx.fillStyle = this.colours.muted;
        const start = this.gutter - 8 - ctx.measureText(number).width;
        if (start > end + 8) ctx.fillText(number, start, middle);
      } else {
        const row = this.data.rows[line.rows[0]];
        ctx.fillStyle = this.colours.muted;
        ctx.font = `11px ${this.colours.font}`;
        const more = row.names.length > 1 ? ` +${row.names.length - 1}` : "";
        ctx.fillText(this.fitted(ctx, row.names[0] + more + (row.part ? " (part)" : ""), this.gutter - 28), 20, middle);
      }
      this.drawCells(ctx, line, top);
    }

    // Names are cut at their beginning: the end distinguishes two values.
    fitted(ctx, text, room) {
      if (ctx.measureText(text).width <= room) return text;
      let start = 1;
      while (start < text.length && (text[start] === "." || ctx.measureText(`…${text.slice(start)}`).width > room)) start++;
      return `…${text.slice(start)}`;
    }

    drawCells(ctx, line, top) {
      for (let column = 0; column < this.numColumns; column++) {
        const { pairs, different } = this.sums(line, column);
        const left = this.edge(column);
        const right = this.edge(column + 1);
        const gap = right - left > 4 ? 1 : 0;
        const wide = Math.max(1, right - left - gap);
        if (different) {
          const share = different / pairs;
          const full = (line.height - 3) * (0.45 + 0.55 * share);
          ctx.fillStyle = this.colours.different;
          ctx.globalAlpha = 0.55 + 0.45 * share;
          ctx.fillRect(left, top + (line.height - full) / 2, wide, full);
          ctx.globalAlpha = 1;
        } else if (pairs) {
          ctx.fillStyle = this.colours.equal;
          ctx.fillRect(left, top + line.height / 2 - 1, wide + gap, 2);
        }
        if (this.data.onlyA[column] || this.data.onlyB[column]) this.hatch(ctx, left, top, wide + gap, line.height);
      }
    }

    hatch(ctx, left, top, width, height) {
      ctx.save();
      ctx.beginPath();
      ctx.rect(left, top, width, height);
      ctx.clip();
      ctx.strokeStyle = this.colours.rule;
      ctx.beginPath();
      const start = left - ((left + top) % 6) - height;
      for (let x = start; x < left + width; x += 6) { ctx.moveTo(x, top + height); ctx.lineTo(x + height, top); }
      ctx.stroke();
      ctx.restore();
    }

    sums(line, column) {
      let pairs = 0;
      let different = 0;
      for (const row of line.rows) {
        pairs += this.data.pairs[row * this.numColumns + column];
        different += this.data.different[row * this.numColumns + column];
      }
      return { pairs, different };
    }

    drawOrigin(ctx, scroll) {
      if (!this.origin) return;
      const left = this.edge(this.origin.column);
      const right = Math.max(left + 3, this.edge(this.origin.column + 1));
      ctx.strokeStyle = this.colours.part;
      ctx.lineWidth = 1.5;
      ctx.setLineDash([4, 3]);
      ctx.beginPath();
      ctx.moveTo(left - 0.5, 0);
      ctx.lineTo(left - 0.5, this.size.height - AXIS);
      ctx.stroke();
      ctx.setLineDash([]);
      const line = this.lineOf(this.origin);
      const top = line.top - scroll;
      if (top >= -line.height && top < this.size.height - AXIS) {
        ctx.lineWidth = 2;
        ctx.strokeRect(left - 1, top, right - left + 1, line.height);
      }
    }

    drawSpot(ctx, scroll) {
      if (!this.spot) return;
      const line = this.lines[this.spot.line];
      const left = this.edge(this.spot.column);
      ctx.strokeStyle = this.colours.ink;
      ctx.lineWidth = 1.5;
      ctx.strokeRect(left - 0.5, line.top - scroll + 0.5, Math.max(4, this.edge(this.spot.column + 1) - left), line.height - 1);
    }

    drawAxis(ctx) {
      const { width, height } = this.size;
      ctx.fillStyle = this.colours.card;
      ctx.fillRect(0, height - AXIS, width, AXIS);
      ctx.fillStyle = this.colours.rule;
      ctx.fillRect(this.gutter, height - AXIS, width - this.gutter, 1);
      ctx.font = `11px ${this.colours.font}`;
      ctx.fillStyle = this.colours.muted;
      ctx.fillText("step", this.gutter - 30, height - AXIS / 2);
      let free = -Infinity;
      const { columns } = this.data;
      const size = Math.max(1, Math.ceil(columns.length / ((width - this.gutter) / 60)));
      const stride = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((each) => each >= size) || size;
      for (let column = 0; column < columns.length; column += stride) {
        const text = String(columns[column][0]);
        const x = this.edge(column);
        if (x < free || x + ctx.measureText(text).width > width) continue;
        ctx.fillText(text, x, height - AXIS / 2 + 1);
        free = x + ctx.measureText(text).width + 12;
      }
    }

    listen() {
      this.frame.addEventListener("scroll", () => this.draw());
      this.canvas.addEventListener("pointermove", (event) => this.point(event));
      this.canvas.addEventListener("pointerdown", (event) => this.point(event));
      this.canvas.addEventListener("click", (event) => {
        const line = this.lineAt(event);
        if (line && line.name !== null && event.offsetX < this.gutter) this.toggle(line.phase);
      });
      this.frame.addEventListener("keydown", (event) => this.press(event));
      page.onTheme(() => this.draw());
      new ResizeObserver(() => {
        if (this.frame.clientWidth && this.frame.clientWidth !== this.size.width) this.resize();
      }).observe(this.frame);
    }

    lineAt(event) {
      const y = event.offsetY + this.frame.scrollTop;
      if (event.offsetY < HEAD && this.pinned()) return this.pinned();
      return event.offsetY > this.size.height - AXIS ? null : this.lines.find((line) => y >= line.top && y < line.top + line.height);
    }

    point(event) {
      const line = this.lineAt(event);
      const column = Math.floor(((event.offsetX - this.gutter) * this.numColumns) / (this.size.width - this.gutter - 1));
      this.canvas.style.cursor = line && line.name !== null && event.offsetX < this.gutter ? "pointer" : "crosshair";
      if (!line || column < 0 || column >= this.numColumns) return;
      this.choose(this.lines.indexOf(line), column);
    }

    press(event) {
      const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      if (event.key === "Enter" && this.spot) {
        const { phase } = this.lines[this.spot.line];
        const { column } = this.spot;
        this.toggle(phase);
        this.choose(this.lines.findIndex((line) => line.phase === phase), column);
      } else if (moves[event.key]) {
        const spot = this.spot || { line: 0, column: this.origin ? this.origin.column : 0 };
        const [down, right] = this.spot ? moves[event.key] : [0, 0];
        const line = Math.min(this.lines.length - 1, Math.max(0, spot.line + down));
        this.choose(line, Math.min(this.numColumns - 1, Math.max(0, spot.column + right)));
        this.show(this.lines[line]);
      } else return;
      event.preventDefault();
    }

    show(line) {
      const bottom = this.frame.scrollTop + this.size.height - AXIS;
      if (line.top < this.frame.scrollTop) this.frame.scrollTop = line.top;
      else if (line.top + line.height > bottom) this.frame.scrollTop += line.top + line.height - bottom;
    }

    toggle(phase) {
      if (!this.open.delete(phase)) this.open.add(phase);
      this.spot = null;
      this.layOut();
    }

    choose(line, column) {
      this.spot = { line, column };
      this.draw();
      this.tell(this.lines[line], column);
    }

    tell(line, column) {
      const [start, end, numSteps] = this.data.columns[column];
      const steps = numSteps > 1 ? `steps ${start} to ${end}` : `step ${start}`;
      const row = line.name === null ? this.data.rows[line.rows[0]] : null;
      const where = row ? `${this.data.phases[row.phase]} ${row.names.join(", ")}${row.part ? " (part)" : ""}` : `${line.name}, ${line.rows.length} rows`;
      const { pairs, different } = this.sums(line, column);
      const said = [];
      if (this.data.onlyA[column]) said.push(`${this.data.onlyA[column]} only in A`);
      if (this.data.onlyB[column]) said.push(`${this.data.onlyB[column]} only in B`);
      if (pairs === 1) said.push(different ? "differs" : "equal");
      else if (pairs) said.push(different ? `${different} of ${pairs} differ${different === 1 ? "s" : ""}` : `${pairs} equal`);
      this.told.replaceChildren(this.part("b", `${steps} · ${where}`), this.part("span", said.join(", ") || "nothing recorded"));
      const cells = line.rows.map((each) => this.data.first(each * this.numColumns + column)).filter(Boolean);
      const first = cells.reduce((best, each) => (!best || each.step < best.step ? each : best), null);
      const isOne = numSteps === 1 && row !== null && row.names.length === 1;
      if (first) this.told.append(...this.details(first, isOne));
    }

    // Of the first difference in a cell; what its heading has said already is left out.
    details(first, isOne) {
      const words = isOne ? [] : [`first: step ${first.step}`, first.name];
      if (first.occurrence) words.push(`occurrence ${first.occurrence}`);
      if (first.rank !== null && this.data.ranks > 1) words.push(`rank ${first.rank}`);
      if (first.kind !== "value") words.push(first.kind);
      const found = words.length ? [this.part("span", words.join(", "))] : [];
      if (first.value) found.push(this.part("span", first.value));
      for (const side of ["a", "b"]) {
        found.push(this.part("code", `${side.toUpperCase()}  ${first[side] ? `${first.algorithm} ${first[side]}` : "none"}`));
      }
      return found;
    }

    part(kind, text) {
      const element = document.createElement(kind);
      element.textContent = text;
      return element;
    }
  }

  const grids = [...document.querySelectorAll(".grid")].map((element) => new Grid(element, page.data.grids[+element.dataset.grid]));
  addEventListener("beforeprint", () => grids.forEach((grid) => grid.draw()));
})();
