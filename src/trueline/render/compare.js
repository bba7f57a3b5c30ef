"use strict";
(() => {
  const numbers = JSON.parse(document.getElementById("numbers").textContent);
  document.documentElement.classList.add("js");

  class Chart {
    constructor(figure) {
      this.points = numbers[figure.dataset.chart];
      this.box = figure.querySelector(".across .box");
      this.readout = document.querySelector('[data-readout="' + figure.dataset.chart + '"]');
      this.spot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
      this.spot.setAttribute("class", "spot");
      this.spot.setAttribute("r", "6");
      figure.querySelector(".across").append(this.spot);
      const plot = figure.querySelector(".plot");
      plot.addEventListener("pointermove", (event) => this.point(event));
      plot.addEventListener("pointerdown", (event) => this.point(event));
      plot.addEventListener("pointerleave", () => this.leave());
      this.leave();
    }

    point(event) {
      const box = this.box.getBoundingClientRect();
      const { x, y, text } = this.points;
      let best = -1;
      let least = Infinity;
      for (let i = 0; i < x.length; i++) {
        const away = Math.hypot((x[i] / 100) * box.width - (event.clientX - box.left), y[i] - (event.clientY - box.top));
        if (away < least) [least, best] = [away, i];
      }
      if (best < 0) return;
      this.spot.setAttribute("cx", x[best] + "%");
      this.spot.setAttribute("cy", y[best] + 18);
      this.spot.classList.add("on");
      this.readout.textContent = text[best];
    }

    leave() {
      this.spot.classList.remove("on");
      this.readout.textContent = "";
    }
  }

  for (const figure of document.querySelectorAll("[data-chart]")) if (numbers[figure.dataset.chart]) new Chart(figure);

  const judgement = document.getElementById("judgement");
  const named = document.getElementById("named");
  const rows = [...document.querySelectorAll("#telling tbody tr")];

  function filter() {
    const wanted = named.value.trim().toLowerCase();
    let found = 0;
    for (const row of rows) {
      const fits =
        (!judgement.value || row.dataset.judgement === judgement.value) && row.textContent.toLowerCase().includes(wanted);
      row.classList.toggle("away-by-filter", !fits);
      found += fits;
    }
    document.getElementById("found").textContent = found === rows.length ? "" : found + " of " + rows.length;
  }

  if (judgement) {
    judgement.addEventListener("change", filter);
    named.addEventListener("input", filter);
  }
})();
