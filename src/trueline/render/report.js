"use strict";
(() => {
  const numbers = JSON.parse(document.getElementById("numbers").textContent);
  const slider = document.getElementById("step");
  const reading = document.getElementById("step-at");
  const ABSENT = "–";
  document.documentElement.classList.add("js");

  // The same rules as wording.reading in Python, so that a value reads the same before and after the script touches it.
  function text(value, decimals) {
    if (value === null || value === undefined) return ABSENT;
    if (typeof value === "string") return value;
    if (decimals !== undefined) return value.toFixed(decimals).replace("-", "−");
    const size = Math.abs(value);
    let shown;
    if (value === 0) shown = "0";
    else if (size >= 1e-3 && size < 1e6) {
      shown = size >= 1000
        ? Math.round(value).toLocaleString("en-US")
        : value.toPrecision(4);
    } else {
      const [mantissa, exponent] = value.toExponential(2).split("e");
      shown = Number(mantissa) + "e" + Number(exponent);
    }
    return shown.replaceAll("-", "−");
  }

  function range(low, high, decimals) {
    return low === high || typeof low !== "number"
      ? text(low, decimals)
      : text(low, decimals) + " to " + text(high, decimals);
  }

  function lastAtOrBefore(steps, step) {
    let low = 0;
    let high = steps.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (steps[middle] <= step) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  class Chart {
    constructor(figure) {
      this.figure = figure;
      this.data = numbers.charts[figure.dataset.chart];
      this.plot = figure.querySelector(".across");
      this.cross = figure.querySelector(".cross");
      this.at = figure.querySelector(".at");
      this.entries = [...figure.querySelectorAll(".legend li[data-series]")];
      this.paths = [...figure.querySelectorAll("path[data-series]")];
      this.extra = null;
    }

    show(step) {
      const { first, last, x } = this.data;
      const bin = lastAtOrBefore(first, step);
      this.cross.setAttribute("x1", x[bin] + "%");
      this.cross.setAttribute("x2", x[bin] + "%");
      this.cross.classList.add("on");
      const end = last ? last[bin] : first[bin];
      this.at.textContent = end > first[bin] ? "steps " + first[bin] + "–" + end : "step " + first[bin];
      for (const entry of this.entries) this.read(entry, bin);
      return bin;
    }

    read(entry, bin) {
      const series = this.data.series[entry.dataset.series];
      const name = entry.querySelector("span.name");
      const label = series.name + (series.who ? " r" + series.who[bin] : "");
      if (name.textContent !== label) name.textContent = label;
      entry.querySelector("span.value").textContent = range(series.lo[bin], (series.hi || series.lo)[bin], this.data.decimals);
    }

    height(value) {
      const [low, high, log] = this.data.axis;
      return log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
    }

    nearest(bin, height) {
      let best = null;
      let gap = Infinity;
      for (const path of this.paths) {
        const series = this.data.series[path.dataset.series];
        for (const value of [series.lo[bin], (series.hi || series.lo)[bin]]) {
          const away = typeof value === "number" ? Math.abs(this.height(value) - height) : Infinity;
          if (away < gap) [gap, best] = [away, path];
        }
      }
      return best;
    }

    point(event) {
      const box = this.plot.getBoundingClientRect();
      const percent = (100 * (event.clientX - box.left)) / box.width;
      const { x, first } = this.data;
      let bin = 0;
      for (let i = 1; i < x.length; i++) if (Math.abs(x[i] - percent) < Math.abs(x[bin] - percent)) bin = i;
      choose(first[bin]);
      const plotHeight = box.height - 40;
      this.mark(this.nearest(bin, 1 - (event.clientY - box.top - 18) / plotHeight), bin);
    }

    mark(path, bin) {
      for (const other of this.paths) other.classList.toggle("near", other === path);
      const index = path ? path.dataset.series : null;
      for (const entry of this.entries) entry.classList.toggle("near", entry.dataset.series === index);
      const listed = this.entries.some((entry) => entry !== this.extra && entry.dataset.series === index);
      this.markExtra(listed ? null : index, bin);
    }

    // A rank that has no entry of its own in the legend gets one for as long as the pointer is near its line.
    markExtra(index, bin) {
      if (this.extra) this.entries = this.entries.filter((entry) => entry !== this.extra);
      if (index === null) {
        if (this.extra) this.extra.remove();
        this.extra = null;
        return;
      }
      if (!this.extra) {
        this.extra = this.entries[0].cloneNode(true);
        this.extra.querySelector(".swatch")?.remove();
        this.extra.classList.add("near");
        this.figure.querySelector(".legend").append(this.extra);
      }
      this.extra.dataset.series = index;
      this.entries.push(this.extra);
      this.read(this.extra, bin);
    }
  }

  class Matrix {
    constructor(figure) {
      const { ranks, steps } = numbers.matrices[figure.dataset.matrix];
      this.ranks = ranks;
      this.steps = steps;
      this.table = figure.querySelector("table");
      this.at = figure.querySelector(".at");
      this.note = figure.querySelector(".readout");
      this.decimals = Number(this.table.dataset.decimals);
      this.rows = [...this.table.tBodies[0].rows].map((row) => [...row.cells].slice(1));
      this.shown = null;
      this.cell = null;
      this.table.addEventListener("pointermove", (event) => this.point(event.target.closest("td")));
      this.table.addEventListener("pointerleave", () => this.point(null));
    }

    show(step) {
      const index = lastAtOrBefore(this.steps.map((each) => each.step), step);
      if (index === this.shown) return;
      this.shown = index;
      const { cells } = this.steps[index];
      this.at.textContent = "step " + this.steps[index].step;
      let next = 0;
      for (let row = 0; row < this.ranks.length; row++) {
        for (let column = row + 1; column < this.ranks.length; column++) {
          const cosine = cells[next++];
          this.fill(this.rows[row][column], cosine);
          this.fill(this.rows[column][row], cosine);
        }
      }
      this.describe();
    }

    fill(cell, thousandths) {
      if (thousandths === null) {
        cell.className = "none";
        cell.textContent = "NaN";
        return;
      }
      const level = Math.round((Math.min(Math.abs(thousandths), 1000) * numbers.levels) / 1000);
      cell.className = (thousandths >= 0 ? "p" : "n") + level;
      cell.textContent = this.text(thousandths, this.decimals);
    }

    text(thousandths, decimals) {
      const unit = 10 ** (3 - decimals);
      const rounded = Math.floor(Math.abs(thousandths) / unit + 0.5) * unit;
      return (thousandths < 0 && rounded ? "−" : "") + (rounded / 1000).toFixed(decimals);
    }

    point(cell) {
      this.cell?.classList.remove("on");
      this.cell = cell && !cell.classList.contains("own") ? cell : null;
      this.cell?.classList.add("on");
      this.describe();
    }

    describe() {
      const { error, exact, cells } = this.steps[this.shown ?? this.steps.length - 1];
      const tail = "±" + error + " at most (one standard error of the sketch).";
      if (!this.cell) {
        this.note.textContent = exact ? "Exact cosines." : "Each cell " + tail;
        return;
      }
      const row = this.cell.parentElement.rowIndex - 1;
      const column = this.cell.cellIndex - 1;
      const [low, high] = row < column ? [row, column] : [column, row];
      const cosine = cells[low * this.ranks.length - (low * (low + 1)) / 2 + high - low - 1];
      const value = cosine === null ? "NaN" : this.text(cosine, 3);
      this.note.textContent = "r" + this.ranks[row] + " and r" + this.ranks[column] + ": " + value + (exact ? ", exact." : ", " + tail);
    }
  }

  const charts = [...document.querySelectorAll("[data-chart]")].map((figure) => new Chart(figure));
  const matrices = [...document.querySelectorAll("[data-matrix]")].map((figure) => new Matrix(figure));
  let wanted = null;

  function choose(step) {
    if (wanted === null) {
      requestAnimationFrame(() => {
        const step = wanted;
        wanted = null;
        slider.value = step;
        slider.setAttribute("aria-valuetext", "step " + step);
        reading.textContent = step;
        for (const chart of charts) chart.show(step);
        for (const matrix of matrices) matrix.show(step);
      });
    }
    wanted = step;
  }

  if (slider) {
    slider.addEventListener("input", () => choose(Number(slider.value)));
    choose(Number(slider.value));
  }
  for (const chart of charts) {
    const plot = chart.figure.querySelector(".plot");
    plot.addEventListener("pointermove", (event) => chart.point(event));
    plot.addEventListener("pointerdown", (event) => chart.point(event));
    plot.addEventListener("pointerleave", () => chart.mark(null, 0));
  }

  // A page from a file may have no clipboard of its own: then the command is marked, and copied as the reader would.
  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", async () => {
      const command = button.previousElementSibling;
      try {
        await navigator.clipboard.writeText(command.textContent);
      } catch {
        getSelection().selectAllChildren(command);
        document.execCommand("copy");
      }
      button.textContent = "copied";
    });
  }
})();
