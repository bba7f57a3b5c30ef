/** Lines over steps with uPlot: where several steps share a column both extremes are drawn, so that no spike is lost. */

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { h } from "../dom";
import type { Context } from "../screen";
import { type Packed, Refused, type Schemas } from "../source";
import { number } from "../words";
import { axes, font, HUES } from "./axes";
import { css, ink, NOT_FINITE } from "./colours";
import { saveButtons } from "./save";

export type SeriesData = Packed<Schemas["Series"]>;
export type Axis = "step" | "seconds" | "tokens";

/** The lines at a path of the Run that is shown; null where they are not there, as in a file without room for them: the
 * words that stand beside them do not depend on that. */
export async function seriesAt(context: Context, path: string): Promise<SeriesData | null> {
  try {
    return await context.source.packed<Schemas["Series"]>(context.api(path));
  } catch (error) {
    if (error instanceof Refused) return null;
    throw error;
  }
}

const HEIGHT = 260;
/** Room at the right for the names of lines, in pixels. */
const NAMES = 62;
const MOST_NAMES = 8;
const NAME_HEIGHT = 13;
const ACCUSED = "--accused";
const BAND = ["lowest", "median", "highest", "lower", "upper"] as const;

/** The colour of each rank that is singled out: the accused in one accent, pinned ones each in its own, all where they
 * are few and none is accused. */
export function hues(head: Schemas["Series"]): Map<number, string> {
  const pinned = head.pinned.filter((rank) => !head.flagged.includes(rank));
  const others = !head.flagged.length && head.num_ranks <= HUES.length ? head.ranks : pinned;
  return new Map([...head.flagged.map((rank): [number, string] => [rank, ACCUSED]), ...others.map((rank, place): [number, string] => [rank, HUES[place % HUES.length]])]);
}

/** How lines are shown: `smooth` columns are averaged, `log` scales values, `along` is the axis below. */
export interface Look {
  smooth: number;
  log: boolean;
  along: Axis;
}

export const PLAIN: Look = { smooth: 1, log: false, along: "step" };

export class Lines {
  readonly element = h("div", { class: "lines" });
  private readonly drawing = h("div", null);
  private readonly readout = h("p", { class: "readout", role: "status" });
  private readonly saving = h("span", null);
  private plot: uPlot | null = null;
  private data: SeriesData | null = null;
  private look = PLAIN;
  private within: number[] = [];
  private marked: { step: number; name: string }[] = [];
  private drawn = "";
  private readonly watch = new ResizeObserver(() => this.plot?.setSize({ width: this.element.clientWidth, height: this.shape.height }));

  constructor(private readonly heard: { point: (step: number | null) => void; zoom: (first: number, last: number) => void }, private readonly shape = { height: HEIGHT, named: true }) {
    this.watch.observe(this.element);
    this.element.append(h("div", { class: "chart-head" }, this.readout, this.saving), this.drawing);
  }

  close(): void {
    this.watch.disconnect();
    this.plot?.destroy();
  }

  /** Shows the lines; `marks` are steps to name, `within` values that the scale reaches. Drawing anew is left out where
   * nothing is new. */
  show(data: SeriesData, marks: { step: number; name: string }[], within: number[] = [], look = PLAIN): void {
    const drawn = JSON.stringify([marks, within, look]);
    if (data === this.data && drawn === this.drawn) return;
    this.data = data;
    this.drawn = drawn;
    this.look = look.along !== "step" && !Number.isFinite(placed(data, look.along)[0]) ? { ...look, along: "step" } : look;
    this.within = within;
    this.marked = marks;
    this.plot?.destroy();
    this.drawing.replaceChildren();
    this.plot = new uPlot(this.options(data), columns(data, this.look), this.drawing);
    this.say(null);
    this.saving.replaceChildren(saveButtons(data.head.signal.replaceAll("/", "-"), () => this.plot!.ctx.canvas, () => csv(data)));
  }

  /** Moves the cursor to a step that another drawing points at. */
  mark(step: number | null): void {
    if (this.plot === null || this.data === null) return;
    const at = step === null ? -1 : columnOf(this.data, step);
    const left = at < 0 ? -10 : this.plot.valToPos(this.look.along === "step" ? step! : placed(this.data, this.look.along)[at], "x");
    this.plot.setCursor({ left, top: at < 0 ? -10 : 10 }, false);
    this.say(step);
  }

  /** What all lines that are singled out have at a step, and where the others lie. */
  private say(step: number | null): void {
    if (this.data === null) return;
    const at = step === null ? this.data.int("first").length - 1 : columnOf(this.data, step);
    this.readout.textContent = at < 0 ? "" : readoutAt(this.data, at);
  }

  private options(data: SeriesData): uPlot.Options {
    const { head } = data;
    const hue = hues(head);
    const quiet = ink("--line");
    const faint = head.ranks.length > 16 || head.flagged.length > 0;
    const names = this.shape.named && head.num_ranks > 1 && [...hue.keys()].some((rank) => head.ranks.includes(rank)) && hue.size <= MOST_NAMES;
    return {
      width: Math.max(this.element.clientWidth, 100),
      height: this.shape.height,
      padding: [18, names ? NAMES : 1, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
      select: { show: true, left: 0, top: 0, width: 0, height: 0 },
      scales: { x: { time: false, range: () => this.span(data) }, y: { distr: this.look.log ? 3 : 1, range: (_, low, high) => this.range(low, high) } },
      axes: axes(TITLES[this.look.along]),
      bands: [{ series: [3, 1], fill: ink("--outer") }, { series: [5, 4], fill: ink("--inner") }],
      series: [
        {},
        ...BAND.map((name) => ({
          label: name,
          stroke: name === "median" && head.num_ranks > 1 ? ink("--ink") : "transparent",
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
        setCursor: [(plot) => this.pointed(plot)],
        setSelect: [(plot) => {
          if (plot.select.width > 4) this.heard.zoom(this.stepAt(plot, plot.select.left), this.stepAt(plot, plot.select.left + plot.select.width));
          plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        }],
        draw: [(plot) => { this.drawMarks(plot); if (names) this.drawNames(plot, hue); }],
      },
    };
  }

  private pointed(plot: uPlot): void {
    const step = plot.cursor.left === undefined || plot.cursor.left < 0 ? null : this.stepAt(plot, plot.cursor.left);
    this.say(step);
    this.heard.point(step);
  }

  /** The step at a place of the axis, whatever that shows. */
  private stepAt(plot: uPlot, left: number): number {
    const value = plot.posToVal(left, "x");
    if (this.look.along === "step") return Math.round(value);
    const places = placed(this.data!, this.look.along);
    let best = 0;
    places.forEach((each, at) => { if (Math.abs(each - value) < Math.abs(places[best] - value)) best = at; });
    return this.data!.int("first")[best];
  }

  private range(low: number | null, high: number | null): [number, number] {
    const ends = [low, high, ...this.within].filter((each): each is number => each !== null && Number.isFinite(each) && (!this.look.log || each > 0));
    if (!ends.length) return this.look.log ? [0.1, 1] : [0, 1];
    const [least, most] = [Math.min(...ends), Math.max(...ends)];
    if (this.look.log) return [least / 1.1, most * 1.1];
    return least === most ? [least - 1, most + 1] : padded(least, most);
  }

  /** From the left end of the first column to the right end of the last: as wide as the heat map has them. */
  private span(data: SeriesData): [number, number] {
    const [first, end] = [data.int("first"), data.int("end")];
    if (!first.length) return [0, 1];
    if (this.look.along === "step") return [first[0] - 0.5, end[end.length - 1] - 0.5];
    const places = placed(data, this.look.along);
    const [low, high] = [places[0], places[places.length - 1]];
    return low === high ? [low - 1, high + 1] : [low, high];
  }

  /** The names of lines that are singled out, at their ends, moved apart where they would cover each other. */
  private drawNames(plot: uPlot, hue: Map<number, string>): void {
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio;
    const { head } = this.data!;
    const ends = head.ranks.flatMap((rank, line) => {
      if (!hue.has(rank)) return [];
      const values = plot.data[1 + BAND.length + line] as (number | null)[];
      const last = values.findLast((value) => value !== null && (!this.look.log || value > 0));
      return last === null || last === undefined ? [] : [{ rank, y: plot.valToPos(last, "y", true) }];
    }).sort((a, b) => a.y - b.y);
    ends.forEach((end, place) => { if (place) end.y = Math.max(end.y, ends[place - 1].y + NAME_HEIGHT * ratio); });
    ctx.save();
    ctx.font = font(ratio);
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    for (const { rank, y } of ends) {
      ctx.fillStyle = ink(hue.get(rank)!);
      ctx.fillText(`rank ${rank}`, bbox.left + bbox.width + 5 * ratio, y);
    }
    ctx.restore();
  }

  /** Steps that are named, and above the lines where a drawn rank has NaN or infinities. */
  private drawMarks(plot: uPlot): void {
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio;
    const places = placed(this.data!, this.look.along);
    ctx.save();
    ctx.font = font(ratio);
    ctx.lineWidth = ratio;
    for (const { step, name } of this.marked) {
      const at = columnOf(this.data!, step);
      const x = at < 0 ? -1 : plot.valToPos(this.look.along === "step" ? step : places[at], "x", true);
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
    ctx.setLineDash([]);
    for (const [bit, colour] of [[8, NOT_FINITE.neg], [4, NOT_FINITE.pos], [2, NOT_FINITE.nan]] as const)
      places.forEach((place, column) => {
        if (!this.data!.head.ranks.some((_, line) => flags[line * places.length + column] & bit)) return;
        const x = plot.valToPos(place, "x", true);
        ctx.fillStyle = css(colour);
        ctx.fillRect(x - ratio, bbox.top, Math.max(2 * ratio, bbox.width / places.length), 5 * ratio);
      });
    ctx.restore();
  }
}

const TITLES: Record<Axis, string> = { step: "step", seconds: "seconds since the first step", tokens: "tokens of all ranks since the first step" };

/** The last column that begins at `step` or before; -1 where none does. */
export function columnOf(data: SeriesData, step: number): number {
  return data.int("first").findLastIndex((first) => first <= step);
}

/** `steps 12–15: rank 2 2.31, rank 0 1.2; all: lowest 1.1 (r0), median 1.2, highest 2.31 (r2)`. */
export function readoutAt(data: SeriesData, at: number): string {
  const { head } = data;
  const [first, last] = [data.int("first")[at], data.int("end")[at] - 1];
  const columns = data.int("first").length;
  const named = head.ranks.flatMap((rank, line) => (hues(head).has(rank) && head.num_ranks > 1 ? [`rank ${rank} ${number(data.float("last")[line * columns + at])}`] : [])).slice(0, MOST_NAMES);
  const steps = first === last ? `step ${first.toLocaleString("en-US")}` : `steps ${first.toLocaleString("en-US")}–${last.toLocaleString("en-US")}`;
  if (head.num_ranks <= 1) return `${steps}: ${number(data.float("last")[at])}`;
  const all = `lowest ${number(data.float("lowest")[at])} (rank ${data.int("lowest_rank")[at]}), median ${number(data.float("median")[at])}, highest ${number(data.float("highest")[at])} (rank ${data.int("highest_rank")[at]})`;
  return `${steps}: ${[named.join(", "), all].filter(Boolean).join("; ")}`;
}

/** The lowest and the highest value that is drawn, for a scale that two drawings share. */
export function ends(data: SeriesData): number[] {
  const values = [...data.float("lowest"), ...data.float("highest"), ...data.float("low"), ...data.float("high")].filter(Number.isFinite);
  return values.length ? [values.reduce((low, each) => Math.min(low, each)), values.reduce((high, each) => Math.max(high, each))] : [];
}

/** Where each column lies on the axis below. */
function placed(data: SeriesData, along: Axis): Float32Array | Int32Array {
  return along === "step" ? data.int("first") : data.float(along);
}

/** The columns of uPlot: each of ours once, or twice where it has several steps, with its lower and upper extreme. */
function columns(data: SeriesData, look: Look): uPlot.AlignedData {
  const first = data.int("first");
  const end = data.int("end");
  const several = look.along === "step" && look.smooth === 1 && first.length > 0 && end.some((step, at) => step - first[at] > 1);
  const times = several ? 2 : 1;
  const x = new Float64Array(first.length * times);
  placed(data, look.along).forEach((place, at) => {
    const middle = (place + end[at] - 1) / 2; // as in the heat map, where a column reaches half a step to either side
    const quarter = (end[at] - place) / 4;
    x[at * times] = several ? middle - quarter : place;
    if (several) x[at * times + 1] = middle + quarter;
  });
  const shown = (low: Float32Array, high: Float32Array | null, from: number) => smoothed(spread(low, high, from, first.length, times), look.smooth);
  const lines = data.head.ranks.map((_, line) => shown(data.float(look.smooth > 1 ? "last" : "low"), data.float("high"), line * first.length));
  return [x, ...BAND.map((name) => shown(data.float(name), null, 0)), ...lines] as unknown as uPlot.AlignedData;
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

/** The mean of each value and the `over - 1` before it that are there. */
function smoothed(values: (number | null)[], over: number): (number | null)[] {
  if (over <= 1) return values;
  let sum = 0;
  let count = 0;
  return values.map((value, at) => {
    const left = at >= over ? values[at - over] : null;
    if (left !== null) { sum -= left; count--; }
    if (value !== null) { sum += value; count++; }
    return value === null || !count ? null : sum / count;
  });
}

/** The numbers that are drawn, a line a column of steps. */
function csv(data: SeriesData): string {
  const [first, end] = [data.int("first"), data.int("end")];
  const { ranks } = data.head;
  const cells = (at: number) => [first[at], end[at] - 1, ...BAND.map((name) => data.float(name)[at]), ...ranks.flatMap((_, line) => [data.float("low")[line * first.length + at], data.float("high")[line * first.length + at]])];
  const head = ["first_step", "last_step", ...BAND, ...ranks.flatMap((rank) => [`rank_${rank}_low`, `rank_${rank}_high`])];
  return [head, ...[...first].map((_, at) => cells(at))].map((line) => line.join(",")).join("\n");
}

function padded(low: number, high: number): [number, number] {
  const margin = (high - low) * 0.05;
  return [low >= 0 && low - margin < 0 ? 0 : low - margin, high + margin];
}
