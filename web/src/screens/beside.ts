/** The same number of another Run below, on the same scales. */

import { h } from "../dom";
import { Heat, type HeatData } from "../draw/heat";
import { ends, Lines, type Look, type SeriesData } from "../draw/lines";
import type { Context } from "../screen";
import { query, type Schemas } from "../source";

export class Beside {
  private readonly title = h("h2", null);
  private readonly said = h("p", { class: "small quiet" });
  private readonly lines: Lines;
  private readonly heat: Heat;
  readonly element: HTMLElement;

  constructor(private readonly context: Context, heard: { point: (step: number | null) => void; zoom: (first: number, last: number) => void }) {
    this.lines = new Lines(heard, { height: 260, named: false });
    this.heat = new Heat({ point: (cell) => heard.point(cell ? this.data!.int("first")[cell.column] : null), pick: () => {}, zoom: heard.zoom });
    this.element = h("section", null, this.title, this.said, this.heat.element, this.lines.element);
  }

  private data: HeatData | null = null;

  /** What `asked` is of Run `number`; the cells of the Run above, where it has some, get the scale that holds both. */
  async fetch(number: number, asked: Record<string, string | number | null>, above: HeatData | null): Promise<SeriesData | null> {
    const run = this.context.runs.find((each) => each.id === number);
    this.element.hidden = run === undefined;
    if (run === undefined) return null;
    this.title.textContent = run.name;
    const api = (path: string) => query(`api/runs/${number}/${path}`, asked);
    try {
      const series = await this.context.source.packed<Schemas["Series"]>(api("series"));
      this.said.textContent = "On the scales of the Run above.";
      this.heat.element.hidden = above === null;
      if (above === null) return series;
      const cells = (this.data = await this.context.source.packed<Schemas["Heat"]>(api("heat")));
      for (const [end, choose] of [["low", Math.min], ["smallest", Math.min], ["high", Math.max], ["largest", Math.max]] as const) {
        const both = [above.head[end], cells.head[end]].filter((each): each is number => each !== null && each !== undefined);
        if (both.length) above.head[end] = cells.head[end] = choose(...both);
      }
      this.heat.show(cells, []);
      return series;
    } catch (error) {
      this.said.textContent = error instanceof Error ? error.message : String(error);
      return null;
    }
  }

  show(series: SeriesData, above: SeriesData, look: Look): void {
    this.lines.show(series, [], ends(above), look);
  }

  mark(step: number | null): void {
    this.heat.mark(step, null);
    this.lines.mark(step);
  }

  close(): void {
    this.heat.close();
    this.lines.close();
  }
}
