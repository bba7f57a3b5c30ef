/** A heat map on a canvas: a cell is a row and some steps; where pixels are fewer than rows, the worst row is shown. */

import { h, perFrame } from "../dom";
import type { Packed, Schemas } from "../source";
import { NOT_FINITE, pixel, ramp, scaleOf, type Scale } from "./colours";

export type HeatData = Packed<Schemas["Heat"]>;
export interface Cell {
  row: number;
  column: number;
}

const LEAST_LEFT = 46;
const MOST_LEFT = 160;
const BELOW = 20;
const MAX_HEIGHT = 520;
const MIN_ROW = 3;
const HALF_LETTER = 6;
const NAN = 2;
const POS = 4;
const NEG = 8;

export class Heat {
  readonly element = h("div", { class: "heat", tabindex: "0", role: "application", "aria-label": "Heat map. Arrow keys move, Enter pins the rank, Escape shows all steps." });
  private readonly canvas = h("canvas");
  private readonly over = h("canvas", { class: "over" });
  private data: HeatData | null = null;
  private labels: readonly string[] = [];
  private left = LEAST_LEFT;
  private image: HTMLCanvasElement | null = null;
  private step: number | null = null;
  private row: number | null = null;
  private brush: [number, number] | null = null;
  private pinned: readonly number[] = [];
  private readonly overlay = perFrame(() => this.drawOver());
  private readonly watch = new ResizeObserver(() => this.draw());
  scale: Scale = scaleOf(null, null, null, false);

  constructor(private readonly heard: { point: (cell: Cell | null) => void; pick: (cell: Cell) => void; zoom: (first: number, last: number) => void }) {
    this.element.append(this.canvas, this.over);
    this.watch.observe(this.element);
    this.over.addEventListener("pointermove", (event) => this.moved(event));
    this.over.addEventListener("pointerleave", () => this.heard.point(null));
    this.over.addEventListener("pointerdown", (event) => this.pressed(event));
    this.over.addEventListener("pointerup", (event) => this.released(event));
  }

  close(): void {
    this.watch.disconnect();
  }

  show(data: HeatData, pinned: readonly number[]): void {
    this.pinned = pinned;
    if (data !== this.data) {
      this.data = data;
      this.labels = telling(data.head.rows);
      this.image = null;
    }
    this.draw();
  }

  /** Marks a step, and a row, which another drawing may have chosen. */
  mark(step: number | null, row: number | null): void {
    if (step === this.step && row === this.row) return;
    this.step = step;
    this.row = row;
    this.overlay();
  }

  /** The text of a cell's value. */
  value(cell: Cell): number {
    return this.data!.float("value")[cell.row * this.columns + cell.column];
  }

  flags(cell: Cell): number {
    return this.data!.byte("flags")[cell.row * this.columns + cell.column];
  }

  /** The column that has `step`; -1 where none has. */
  columnOf(step: number): number {
    const first = this.data!.int("first");
    let low = 0;
    let high = first.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (first[middle] <= step) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  get columns(): number {
    return this.data?.shape.value[1] ?? 0;
  }

  get rows(): number {
    return this.data?.shape.value[0] ?? 0;
  }

  private get width(): number {
    return Math.max(this.element.clientWidth - this.left, 1);
  }

  private get height(): number {
    return Math.round(Math.min(MAX_HEIGHT, Math.max(this.rows * (this.rows <= 24 ? 18 : MIN_ROW), 40)));
  }

  private draw(): void {
    if (this.data === null || this.element.clientWidth === 0) return;
    const ratio = devicePixelRatio;
    this.measure();
    for (const canvas of [this.canvas, this.over]) {
      canvas.width = (this.width + this.left) * ratio;
      canvas.height = (this.height + BELOW) * ratio;
      canvas.style.width = `${this.width + this.left}px`;
      canvas.style.height = `${this.height + BELOW}px`;
    }
    this.element.style.height = `${this.height + BELOW}px`;
    const context = this.canvas.getContext("2d")!;
    context.scale(ratio, ratio);
    context.imageSmoothingEnabled = false;
    this.image ??= this.painted(Math.min(this.rows, Math.floor(this.height * ratio)));
    if (this.columns) context.drawImage(this.image, this.left, 0, this.width, this.height);
    this.letters(context);
    this.drawOver();
  }

  /** All cells as an image of at most `lines` lines; of the rows that share one, the worst cell is taken. */
  private painted(lines: number): HTMLCanvasElement {
    const { head } = this.data!;
    const apart = head.worst === "far";
    const colours = ramp(apart);
    this.scale = scaleOf(head.low ?? null, head.high ?? null, head.smallest ?? null, apart);
    const value = this.data!.float("value");
    const flags = this.data!.byte("flags");
    const image = h("canvas", { width: Math.max(this.columns, 1), height: Math.max(lines, 1) });
    const context = image.getContext("2d")!;
    const made = context.createImageData(image.width, image.height);
    const pixels = new Uint32Array(made.data.buffer);
    const [nan, pos, neg] = [pixel(NOT_FINITE.nan), pixel(NOT_FINITE.pos), pixel(NOT_FINITE.neg)];
    const worse = head.worst === "low" ? (a: number, b: number) => a < b : head.worst === "high" ? (a: number, b: number) => a > b : (a: number, b: number) => Math.abs(a) > Math.abs(b);
    for (let line = 0; line < lines; line++) {
      const from = Math.floor((line * this.rows) / lines);
      const to = Math.max(Math.floor(((line + 1) * this.rows) / lines), from + 1);
      for (let column = 0; column < this.columns; column++) {
        let flag = 0;
        let worst = NaN;
        for (let row = from; row < to; row++) {
          const at = row * this.columns + column;
          flag |= flags[at];
          const each = value[at];
          if (each === each && (worst !== worst || worse(each, worst))) worst = each;
        }
        pixels[line * this.columns + column] =
          flag & NAN ? nan : flag & POS ? pos : flag & NEG ? neg : worst === worst ? colours[this.scale.at(worst)] : 0;
      }
    }
    context.putImageData(made, 0, 0);
    return image;
  }

  /** The room that the longest label takes, within bounds. */
  private measure(): void {
    const context = this.canvas.getContext("2d")!;
    context.font = `11px ${getComputedStyle(this.element).fontFamily}`;
    const widest = Math.max(...this.labels.map((label) => context.measureText(label).width), 0);
    this.left = Math.round(Math.min(Math.max(widest + 14, LEAST_LEFT), MOST_LEFT, this.element.clientWidth / 3));
  }

  private letters(context: CanvasRenderingContext2D): void {
    const style = getComputedStyle(this.element);
    context.font = `11px ${style.fontFamily}`;
    context.fillStyle = style.color;
    context.textBaseline = "middle";
    context.textAlign = "right";
    const { rows } = this.data!.head;
    const every = Math.max(1, Math.ceil((rows.length * 14) / this.height));
    for (let row = 0; row < rows.length; row += every)
      context.fillText(elided(context, this.labels[row], this.left - 12), this.left - 6, Math.max(this.yOf(row + 0.5), HALF_LETTER)); // whole, also of a thin first row
    const [first, end] = [this.data!.int("first"), this.data!.int("end")];
    if (!first.length) return;
    context.textBaseline = "alphabetic";
    context.textAlign = "left";
    context.fillText(`${this.data!.head.over} ${first[0]}`, this.left, this.height + 14);
    context.textAlign = "right";
    context.fillText(String(end[end.length - 1] - 1), this.left + this.width, this.height + 14);
  }

  private drawOver(): void {
    if (this.data === null) return;
    const context = this.over.getContext("2d")!;
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    context.clearRect(0, 0, this.width + this.left, this.height + BELOW);
    const style = getComputedStyle(this.element);
    const ranks = this.data.head.ranks;
    context.fillStyle = style.getPropertyValue("--error");
    this.data.head.marked.forEach((row) => context.fillRect(this.left - 4, this.yOf(row), 3, Math.max(this.yOf(row + 1) - this.yOf(row), 2)));
    context.strokeStyle = style.getPropertyValue("--ink");
    context.lineWidth = 1;
    ranks.forEach((rank, row) => { if (this.pinned.includes(rank)) context.strokeRect(this.left + 0.5, this.yOf(row) + 0.5, this.width - 1, Math.max(this.yOf(row + 1) - this.yOf(row) - 1, 1)); });
    if (this.brush !== null) {
      const [from, to] = [Math.min(...this.brush), Math.max(...this.brush)];
      context.fillStyle = style.getPropertyValue("--brush");
      context.fillRect(from, 0, to - from, this.height);
    }
    const column = this.step === null ? -1 : this.columnOf(this.step);
    if (column >= 0) context.strokeRect(Math.round(this.xOf(column)) + 0.5, 0.5, Math.max(this.xOf(column + 1) - this.xOf(column), 1), this.height - 1);
    if (this.row !== null && column >= 0) {
      context.lineWidth = 2;
      context.strokeRect(this.xOf(column) - 1, this.yOf(this.row) - 1, Math.max(this.xOf(column + 1) - this.xOf(column), 2) + 2, Math.max(this.yOf(this.row + 1) - this.yOf(this.row), 2) + 2);
    }
  }

  private xOf(column: number): number {
    return this.left + (column / this.columns) * this.width;
  }

  private yOf(row: number): number {
    return (row / Math.max(this.rows, 1)) * this.height;
  }

  private cellAt(event: PointerEvent): Cell | null {
    const x = event.offsetX - this.left;
    if (this.data === null || x < 0 || event.offsetY >= this.height || !this.columns || !this.rows) return null;
    return {
      row: Math.min(Math.floor((event.offsetY / this.height) * this.rows), this.rows - 1),
      column: Math.min(Math.floor((x / this.width) * this.columns), this.columns - 1),
    };
  }

  private moved(event: PointerEvent): void {
    if (this.brush !== null) {
      this.brush[1] = Math.max(this.left, Math.min(event.offsetX, this.left + this.width));
      this.overlay();
    }
    this.heard.point(this.cellAt(event));
  }

  private pressed(event: PointerEvent): void {
    if (this.cellAt(event) === null) return;
    this.over.setPointerCapture(event.pointerId);
    this.brush = [event.offsetX, event.offsetX];
  }

  private released(event: PointerEvent): void {
    const brush = this.brush;
    this.brush = null;
    this.overlay();
    if (brush === null) return;
    const [from, to] = [Math.min(...brush), Math.max(...brush)];
    if (to - from < 5) {
      const cell = this.cellAt(event);
      if (cell) this.heard.pick(cell);
      return;
    }
    const at = (x: number) => Math.max(0, Math.min(Math.floor(((x - this.left) / this.width) * this.columns), this.columns - 1));
    this.heard.zoom(this.data!.int("first")[at(from)], this.data!.int("end")[at(to)] - 1);
  }
}

/** Names without what all begin and end with, up to a sign between words: `gpu-node-09.cluster` among others is `09`. */
export function telling(names: readonly string[]): string[] {
  if (names.length < 2) return [...names];
  const first = names[0];
  let front = 0;
  while (front < first.length && names.every((name) => name[front] === first[front])) front++;
  let back = 0;
  while (back < first.length - front && names.every((name) => name.length - back > front && name[name.length - 1 - back] === first[first.length - 1 - back])) back++;
  while (front > 0 && !"-._/ ".includes(first[front - 1])) front--;
  while (back > 0 && !"-._/ ".includes(first[first.length - back])) back--;
  return names.map((name) => name.slice(front, name.length - back));
}

/** `text` with its middle left out where it is wider than `room`: names differ at their ends. */
function elided(context: CanvasRenderingContext2D, text: string, room: number): string {
  if (context.measureText(text).width <= room) return text;
  let kept = text.length - 1;
  const made = () => `${text.slice(0, Math.ceil(kept / 2))}…${text.slice(text.length - Math.floor(kept / 2))}`;
  while (kept > 2 && context.measureText(made()).width > room) kept--;
  return made();
}
