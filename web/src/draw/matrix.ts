/** The cosines between the gradients of all workers at a step, as a square of cells; of few ranks with their numbers. */

import { h } from "../dom";
import type { Packed, Schemas } from "../source";
import { number } from "../words";
import { dark, ramp } from "./colours";

const LARGEST = 420;
const CELL = 44;
const NUMBERED = 12;
const MARGIN = 34;

export class Matrix {
  private readonly canvas = h("canvas", { class: "square" });
  private readonly title = h("h2", null);
  private readonly said = h("p", { class: "readout", role: "status" });
  private readonly note = h("p", { class: "small quiet" });
  readonly element = h("section", { class: "matrix" }, this.title, this.note, this.canvas, this.said);
  private data: Packed<Schemas["Cosines"]> | null = null;
  private side = 0;

  constructor() {
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
  }

  none(why: string): void {
    this.title.textContent = "Cosines between ranks";
    this.note.textContent = why;
    this.canvas.hidden = true;
  }

  show(data: Packed<Schemas["Cosines"]>, flagged: readonly number[]): void {
    if (data.head.absent) return this.none(data.head.absent);
    this.data = data;
    const { ranks, step, exact } = data.head;
    const cosine = data.float("cosine");
    const size = ranks.length;
    let end = 0;
    cosine.forEach((value, at) => { if (Math.floor(at / size) !== at % size && Number.isFinite(value)) end = Math.max(end, Math.abs(value)); });
    end ||= 1;
    const named = flagged.filter((rank) => ranks.includes(rank));
    this.title.textContent = `Cosines between ranks at step ${step}`;
    this.note.textContent = `Purple is below 0, green above, both ends at ±${number(end, 3)}.${exact ? " Exact." : " From sketches."}${named.length ? ` Named by a finding: ${named.map((rank) => `r${rank}`).join(", ")}.` : ""} Click a step above for that of another.`;
    this.draw(cosine, ranks, end, new Set(named));
  }

  private draw(cosine: Float32Array, ranks: number[], end: number, named: Set<number>): void {
    const size = ranks.length;
    this.side = Math.min(LARGEST, size * CELL, Math.max(innerWidth - 100, 160));
    const [ratio, whole] = [devicePixelRatio, this.side + MARGIN];
    this.canvas.hidden = false;
    this.canvas.width = this.canvas.height = whole * ratio;
    this.canvas.style.width = this.canvas.style.height = `${whole}px`;
    const context = this.canvas.getContext("2d")!;
    const style = getComputedStyle(this.canvas);
    context.scale(ratio, ratio);
    context.font = `11px ${style.fontFamily}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const colours = ramp(true);
    const cell = this.side / size;
    const every = Math.max(1, Math.ceil(26 / cell));
    for (let row = 0; row < size; row++) {
      context.fillStyle = style.getPropertyValue(named.has(ranks[row]) ? "--error" : "--quiet");
      if (row % every === 0) {
        context.fillText(`r${ranks[row]}`, MARGIN / 2, MARGIN + (row + 0.5) * cell);
        context.fillText(`r${ranks[row]}`, MARGIN + (row + 0.5) * cell, MARGIN / 2);
      }
      for (let column = 0; column < size; column++) {
        const value = cosine[row * size + column];
        if (row === column || !Number.isFinite(value)) continue;
        const at = Math.max(0, Math.min(255, Math.round(((value / end + 1) / 2) * 255)));
        context.fillStyle = `rgb(${colours[at] & 255}, ${(colours[at] >> 8) & 255}, ${(colours[at] >> 16) & 255})`;
        context.fillRect(MARGIN + column * cell, MARGIN + row * cell, Math.ceil(cell) - (cell > 8 ? 1 : 0), Math.ceil(cell) - (cell > 8 ? 1 : 0));
        if (size > NUMBERED) continue;
        context.fillStyle = Math.abs(value / end) > 0.45 === dark() ? "#14171a" : "#ffffff";
        if (Math.abs(value / end) <= 0.45) context.fillStyle = dark() ? "#ffffff" : "#14171a";
        context.fillText(value.toFixed(2).replace("-", "−"), MARGIN + (column + 0.5) * cell, MARGIN + (row + 0.5) * cell);
      }
    }
  }

  private point(event: PointerEvent): void {
    if (this.data === null) return;
    const { ranks } = this.data.head;
    const at = (offset: number) => Math.floor(((offset - MARGIN) / this.side) * ranks.length);
    const [row, column] = [at(event.offsetY), at(event.offsetX)];
    if (row < 0 || column < 0 || row === column || row >= ranks.length || column >= ranks.length) {
      this.said.textContent = "";
      return;
    }
    const place = row * ranks.length + column;
    const error = this.data.float("error")[place];
    this.said.textContent = `r${ranks[row]} and r${ranks[column]}: ${number(this.data.float("cosine")[place], 3)}${error ? `, ±${number(error, 2)}` : ""}`;
  }
}
