/** The same number of several Runs over steps: of each Run the median of its ranks. */

import uPlot from "uplot";
import { h } from "../dom";
import type { Packed, Schemas } from "../source";
import { number } from "../words";
import { axes, HUES } from "./axes";
import { ink } from "./colours";
import { saveButtons } from "./save";

export interface Overlay {
  name: string;
  series: Packed<Schemas["Series"]>;
}

const HEIGHT = 280;
/** Of more Runs than there are hues the second four are dashed. */
const DASH = [6, 4];

export class Overlaid {
  readonly element = h("div", { class: "lines" });
  private readonly drawing = h("div", null);
  private readonly readout = h("p", { class: "readout", role: "status" });
  private readonly saving = h("span", null);
  private plot: uPlot | null = null;
  private drawn: readonly Overlay[] = [];
  private readonly watch = new ResizeObserver(() => this.plot?.setSize({ width: this.element.clientWidth, height: HEIGHT }));

  constructor() {
    this.watch.observe(this.element);
    this.element.append(h("div", { class: "chart-head" }, this.readout, this.saving), this.drawing);
  }

  close(): void {
    this.watch.disconnect();
    this.plot?.destroy();
  }

  show(overlays: readonly Overlay[]): void {
    if (overlays.length === this.drawn.length && overlays.every((each, at) => each.series.head === this.drawn[at].series.head)) return;
    this.drawn = overlays;
    this.plot?.destroy();
    this.drawing.replaceChildren();
    if (!overlays.length) return;
    const data = uPlot.join(overlays.map(({ series }) => [Array.from(series.int("first")), Array.from(series.float("median"), (value) => (Number.isFinite(value) ? value : null))] as uPlot.AlignedData));
    const hue = (at: number) => HUES[at % HUES.length];
    this.plot = new uPlot({
      width: Math.max(this.element.clientWidth, 100),
      height: HEIGHT,
      legend: { show: false },
      cursor: { y: false, points: { show: false } }, // a drag zooms, a double click leads back
      scales: { x: { time: false } },
      axes: axes("step"),
      series: [{}, ...overlays.map(({ name }, at) => ({ label: name, stroke: ink(hue(at)), width: 1.6, spanGaps: true, points: { show: false }, dash: at < HUES.length ? [] : DASH }))],
      hooks: { setCursor: [(plot) => this.say(data, plot.cursor.idx ?? null)] },
    }, data, this.drawing);
    this.drawing.append(h("p", { class: "legend" }, ...overlays.map(({ name, series }, at) => {
      const swatch = h("i", { class: "swatch line" });
      swatch.style.background = at < HUES.length ? `var(${hue(at)})` : `repeating-linear-gradient(90deg, var(${hue(at)}) 0 6px, transparent 6px 10px)`;
      return h("span", { class: "key" }, swatch, name, series.head.num_ranks > 1 ? h("span", { class: "quiet" }, ` median of ${series.head.num_ranks} ranks`) : null);
    }), h("span", { class: "quiet" }, "Drag to zoom in; a double click leads back.")));
    this.say(data, null);
    this.saving.replaceChildren(saveButtons(overlays[0].series.head.signal, () => this.plot!.ctx.canvas, () => csv(overlays, data)));
  }

  private say(data: uPlot.AlignedData, at: number | null): void {
    const place = at ?? data[0].length - 1;
    if (place < 0) return;
    this.readout.textContent = `step ${data[0][place].toLocaleString("en-US")}: ${this.drawn.map(({ name }, run) => `${name} ${number(data[run + 1][place] ?? null)}`).join(", ")}`;
  }
}

function csv(overlays: readonly Overlay[], data: uPlot.AlignedData): string {
  const quoted = (text: string) => `"${text.replaceAll('"', '""')}"`;
  return [["step", ...overlays.map(({ name }) => quoted(name))], ...Array.from(data[0], (step, at) => [step, ...overlays.map((_, run) => data[run + 1][at] ?? "")])].map((line) => line.join(",")).join("\n");
}
