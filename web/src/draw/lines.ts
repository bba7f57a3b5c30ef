/** Lines over steps with uPlot: where several steps share a column both extremes are drawn, so that no spike is lost. */

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { h } from "../dom";
import type { Packed, Schemas } from "../source";
import { number } from "../words";
import { css, ink, NOT_FINITE } from "./colours";

export type SeriesData = Packed<Schemas["Series"]>;

const HEIGHT = 260;
const LEFT = 46;
const HUES = ["--s0", "--s1", "--s2", "--s3"];
const BAND = 5;

/** The colour of each rank that is singled out: pinned or accused ones, or all where they are few. */
export function hues(head: Schemas["Series"]): Map<number, string> {
  const few = head.num_ranks <= HUES.length;
  const singled = few ? head.ranks : [...new Set([...head.flagged, ...head.pinned])];
  return new Map(singled.map((rank, place) => [rank, HUES[place % HUES.length]]));
}

export class Lines {
  readonly element = h("div", { class: "lines" });
  private plot: uPlot | null = null;
  private data: SeriesData | null = null;
  private within: number[] = [];
  private marked: { step: number; name: string }[] = [];
  private readonly watch = new ResizeObserver(() => this.plot?.setSize({ width: this.element.clientWidth, height: HEIGHT }));

  constructor(private readonly heard: { point: (step: number | null) => void; zoom: (first: number, last: number) => void }) {
    this.watch.observe(this.element);
  }

  close(): void {
    this.watch.disconnect();
    this.plot?.destroy();
  }

  /** Shows the lines; `marks` are steps to name, `within` values that the scale reaches. Drawing anew is left out where
   * nothing is new. */
  show(data: SeriesData, marks: { step: number; name: string }[], within: number[] = []): void {
    if (data === this.data && marks.length === this.marked.length) return;
    this.data = data;
    this.within = within;
    this.marked = marks;
    this.plot?.destroy();
    this.element.replaceChildren();
    this.plot = new uPlot(this.options(data), columns(data), this.element);
  }

  /** Moves the cursor to a step that another drawing points at. */
  mark(step: number | null): void {
    if (this.plot === null) return;
    const left = step === null ? -10 : this.plot.valToPos(step, "x");
    this.plot.setCursor({ left, top: step === null ? -10 : 10 }, false);
  }

  private options(data: SeriesData): uPlot.Options {
    const { head } = data;
    const hue = hues(head);
    const quiet = ink("--line");
    const faint = head.ranks.length > 16;
    return {
      width: Math.max(this.element.clientWidth, 100),
      height: HEIGHT,
      padding: [18, 1, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
      select: { show: true, left: 0, top: 0, width: 0, height: 0 },
      scales: { x: { time: false, range: () => span(data) }, y: { range: (_, low, high) => this.range(low, high) } },
      axes: [
        { stroke: ink("--quiet"), grid: { show: false }, ticks: { show: false }, font: font(), size: 22, values: (_, at) => at.map((each) => (Number.isInteger(each) ? each.toLocaleString("en-US") : "")) },
        { stroke: ink("--quiet"), grid: { stroke: ink("--grid"), width: 1 }, ticks: { show: false }, font: font(), size: LEFT, values: (_, at) => at.map((each) => number(each, 3)) },
      ],
      bands: [{ series: [3, 1], fill: ink("--outer") }, { series: [5, 4], fill: ink("--inner") }],
      series: [
        {},
        ...["lowest", "median", "highest", "lower", "upper"].map((name) => ({
          label: name,
          stroke: name === "median" ? ink("--ink") : "transparent",
          width: name === "median" ? 1.5 : 0,
          dash: [4, 3],
          points: { show: false },
        })),
        ...head.ranks.map((rank) => ({
          label: `r${rank}`,
          stroke: hue.has(rank) ? ink(hue.get(rank)!) : faint ? `${quiet}66` : quiet,
          width: head.flagged.includes(rank) || head.pinned.includes(rank) ? 2.2 : hue.has(rank) ? 1.4 : 0.8,
          points: { show: data.int("first").length < 3, size: 4 },
        })),
      ],
      hooks: {
        setCursor: [(plot) => this.heard.point(plot.cursor.left === undefined || plot.cursor.left < 0 ? null : Math.round(plot.posToVal(plot.cursor.left, "x")))],
        setSelect: [(plot) => {
          if (plot.select.width > 4) this.heard.zoom(Math.round(plot.posToVal(plot.select.left, "x")), Math.round(plot.posToVal(plot.select.left + plot.select.width, "x")));
          plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        }],
        draw: [(plot) => this.drawMarks(plot)],
      },
    };
  }

  private range(low: number | null, high: number | null): [number, number] {
    const ends = [low, high, ...this.within].filter((each): each is number => each !== null && Number.isFinite(each));
    if (!ends.length) return [0, 1];
    const [least, most] = [Math.min(...ends), Math.max(...ends)];
    return least === most ? [least - 1, most + 1] : padded(least, most);
  }

  /** Steps that are named, and above the lines where a drawn rank has NaN or infinities. */
  private drawMarks(plot: uPlot): void {
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio;
    ctx.save();
    ctx.font = font(ratio);
    ctx.lineWidth = ratio;
    for (const { step, name } of this.marked) {
      const x = plot.valToPos(step, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = ctx.fillStyle = ink("--error");
      ctx.setLineDash([2 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top - 4 * ratio);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.textAlign = x > bbox.left + bbox.width / 2 ? "right" : "left";
      ctx.fillText(name, x + (ctx.textAlign === "left" ? 3 : -3) * ratio, bbox.top - 7 * ratio);
    }
    const flags = this.data!.byte("flags");
    const first = this.data!.int("first");
    ctx.setLineDash([]);
    for (const [bit, colour] of [[8, NOT_FINITE.neg], [4, NOT_FINITE.pos], [2, NOT_FINITE.nan]] as const)
      for (let column = 0; column < first.length; column++) {
        let found = false;
        for (let line = 0; line * first.length < flags.length; line++) found ||= (flags[line * first.length + column] & bit) !== 0;
        if (!found) continue;
        ctx.fillStyle = css(colour);
        ctx.fillRect(plot.valToPos(first[column], "x", true) - ratio, bbox.top, Math.max(2 * ratio, bbox.width / first.length), 5 * ratio);
      }
    ctx.restore();
  }
}

/** The lowest and the highest value of all ranks; nothing where none is finite. */
export function ends(data: SeriesData): number[] {
  const finite = [...data.float("lowest"), ...data.float("highest"), ...data.float("low"), ...data.float("high")].filter(Number.isFinite);
  return finite.length ? [finite.reduce((a, b) => Math.min(a, b)), finite.reduce((a, b) => Math.max(a, b))] : [];
}

/** The columns of uPlot: each of ours once, or twice where it has several steps, with its lower and upper extreme. */
function columns(data: SeriesData): uPlot.AlignedData {
  const first = data.int("first");
  const end = data.int("end");
  const several = first.length > 0 && end.some((step, at) => step - first[at] > 1);
  const times = several ? 2 : 1;
  const x = new Float64Array(first.length * times);
  first.forEach((step, at) => {
    const middle = (step + end[at] - 1) / 2; // as in the heat map, where a column reaches half a step to either side
    const quarter = (end[at] - step) / 4;
    x[at * times] = several ? middle - quarter : step;
    if (several) x[at * times + 1] = middle + quarter;
  });
  const band = ["lowest", "median", "highest", "lower", "upper"].map((name) => spread(data.float(name), null, 0, first.length, times));
  const lines = data.head.ranks.map((_, line) => spread(data.float("low"), data.float("high"), line * first.length, first.length, times));
  return [x, ...band.slice(0, BAND), ...lines] as unknown as uPlot.AlignedData;
}

function spread(low: Float32Array, high: Float32Array | null, from: number, count: number, times: number): (number | null)[] {
  const out = new Array<number | null>(count * times);
  for (let at = 0; at < count; at++)
    for (let part = 0; part < times; part++) {
      const value = part && high ? high[from + at] : low[from + at];
      out[at * times + part] = Number.isFinite(value) ? value : null;
    }
  return out;
}

/** From the left end of the first column to the right end of the last: as wide as the heat map has them. */
function span(data: SeriesData): [number, number] {
  const [first, end] = [data.int("first"), data.int("end")];
  return first.length ? [first[0] - 0.5, end[end.length - 1] - 0.5] : [0, 1];
}

function padded(low: number, high: number): [number, number] {
  const margin = (high - low) * 0.05;
  return [low >= 0 && low - margin < 0 ? 0 : low - margin, high + margin];
}

function font(ratio = 1): string {
  return `${11 * ratio}px ${getComputedStyle(document.body).fontFamily}`;
}
