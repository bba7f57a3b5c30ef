/** A list of any length: rows are fetched by the page and made only where they are seen. */

import { elementScroll, observeElementOffset, observeElementRect, Virtualizer } from "@tanstack/virtual-core";
import { h, perFrame, s } from "./dom";

export const ROW = 26;
const ARCS = 34;
const PAGE = 200;
/** Browsers draw elements of up to about 16 million pixels; beyond, rows would fall on each other. */
const MAX_ROWS = 600_000;

export class Table<Row> {
  readonly element = h("div", { class: "rows", tabindex: "0", role: "grid" });
  private readonly space = h("div", { class: "space", role: "rowgroup" });
  private readonly pages = new Map<number, Row[]>();
  private readonly asked = new Set<number>();
  /** What is drawn, by row: most of it stays as it is when the selection moves. */
  private drawn = new Map<number, { row: Row | null; element: HTMLElement }>();
  private readonly draw = perFrame(() => this.render());
  private virtual: Virtualizer<HTMLDivElement, Element> | null = null;
  private unmount: (() => void) | null = null;
  private total = 0;
  private age = 0;
  selected = -1;
  /** Rows that the selected one takes from (-1) or gives to (1); an arc leads to each. */
  private links = new Map<number, number>();
  private readonly arcs = s("svg", { class: "arcs", width: ARCS, "aria-hidden": "true" });

  constructor(private readonly way: {
    fetch: (offset: number, limit: number) => Promise<{ total: number; rows: Row[] }>;
    row: (row: Row, at: number) => HTMLElement;
    pick: (row: Row | null, at: number) => void;
    failed: (error: unknown) => void;
  }) {
    this.element.append(this.space);
    this.element.addEventListener("click", (event) => {
      const at = (event.target as Element).closest<HTMLElement>("[data-at]")?.dataset.at;
      if (at !== undefined) this.select(Number(at));
    });
  }

  close(): void {
    this.unmount?.();
  }

  /** Forgets what was fetched and starts at the top, or stays where it is. */
  async reset(keep = false): Promise<void> {
    this.age += 1;
    this.pages.clear();
    this.asked.clear();
    this.drawn.clear();
    await this.load(keep ? Math.floor((this.virtual?.scrollOffset ?? 0) / ROW / PAGE) : 0);
    if (!keep) this.element.scrollTop = 0;
  }

  get length(): number {
    return this.total;
  }

  /** Selects a row and brings it into view. */
  select(at: number, centre = false): void {
    if (this.total === 0) return;
    this.selected = Math.max(0, Math.min(at, this.total - 1));
    this.virtual?.scrollToIndex(this.selected, { align: centre ? "center" : "auto" });
    this.draw();
    this.way.pick(this.rowAt(this.selected), this.selected);
  }

  /** Draws arcs from the selected row to these. */
  link(links: Map<number, number>): void {
    this.links = links;
    this.draw();
  }

  rowAt(at: number): Row | null {
    return this.pages.get(Math.floor(at / PAGE))?.[at % PAGE] ?? null;
  }

  /** The row that `is` true of, among those that were fetched; -1 where there is none. */
  find(is: (row: Row) => boolean): number {
    for (const [page, rows] of this.pages) {
      const at = rows.findIndex(is);
      if (at >= 0) return page * PAGE + at;
    }
    return -1;
  }

  /** j, k, page and end keys; false for any other. */
  key(key: string): boolean {
    const seen = Math.max(Math.floor(this.element.clientHeight / ROW) - 1, 1);
    const to: Record<string, number> = { j: this.selected + 1, k: this.selected - 1, PageDown: this.selected + seen, PageUp: this.selected - seen, Home: 0, End: this.total - 1 };
    if (!(key in to)) return false;
    this.select(to[key]);
    return true;
  }

  private async load(page: number): Promise<void> {
    if (this.asked.has(page)) return;
    this.asked.add(page);
    const age = this.age;
    try {
      const { total, rows } = await this.way.fetch(page * PAGE, PAGE);
      if (age !== this.age) return;
      this.pages.set(page, rows);
      if (total !== this.total || this.virtual === null) this.sized(total);
      this.draw();
    } catch (error) {
      this.asked.delete(page);
      this.way.failed(error);
    }
  }

  private sized(total: number): void {
    this.total = total;
    const options = {
      count: Math.min(total, MAX_ROWS),
      getScrollElement: () => this.element,
      estimateSize: () => ROW,
      overscan: 12,
      scrollToFn: elementScroll,
      observeElementRect,
      observeElementOffset,
      onChange: () => this.draw(),
    };
    if (this.virtual === null) {
      this.virtual = new Virtualizer<HTMLDivElement, Element>(options);
      this.unmount = this.virtual._didMount();
    } else this.virtual.setOptions(options);
    this.virtual._willUpdate();
    this.virtual.measure();
    this.space.style.height = `${options.count * ROW}px`;
    this.element.setAttribute("aria-rowcount", String(total));
  }

  private render(): void {
    if (this.virtual === null) return;
    const before = this.drawn;
    this.drawn = new Map();
    for (const { index, start } of this.virtual.getVirtualItems()) {
      const row = this.rowAt(index);
      if (row === null) void this.load(Math.floor(index / PAGE));
      const known = before.get(index);
      const element = known && known.row === row ? known.element : this.made(row, index, start);
      const selected = String(index === this.selected);
      if (element.getAttribute("aria-selected") !== selected) element.setAttribute("aria-selected", selected);
      const way = this.links.get(index);
      element.classList.toggle("takes", way === -1);
      element.classList.toggle("gives", way === 1);
      this.drawn.set(index, { row, element });
    }
    for (const [index, { element }] of before) if (this.drawn.get(index)?.element !== element) element.remove();
    const fresh = [...this.drawn].filter(([index, { element }]) => before.get(index)?.element !== element);
    if (before.size === 0) this.space.replaceChildren();
    this.space.append(...fresh.map(([, { element }]) => element));
    this.drawArcs();
  }

  /** In a strip at the left, as high as what is seen: what lies above or below it ends at its edge. */
  private drawArcs(): void {
    const top = this.virtual?.scrollOffset ?? 0;
    const height = this.element.clientHeight;
    const y = (at: number) => Math.max(-ROW, Math.min((at + 0.5) * ROW - top, height + ROW));
    const from = y(this.selected);
    this.arcs.setAttribute("height", String(height));
    this.arcs.style.transform = `translateY(${top}px)`;
    this.arcs.replaceChildren(...[...this.links].map(([at, way]) => s("path", { class: way < 0 ? "takes" : "gives", d: `M${ARCS} ${from}C4 ${from} 4 ${y(at)} ${ARCS} ${y(at)}` })));
    if (this.links.size && this.arcs.parentElement !== this.space) this.space.append(this.arcs);
  }

  private made(row: Row | null, index: number, start: number): HTMLElement {
    const element = row === null ? h("div", { class: "row waiting" }, "…") : this.way.row(row, index);
    element.style.transform = `translateY(${start}px)`;
    element.dataset.at = String(index);
    element.setAttribute("role", "row");
    element.setAttribute("aria-rowindex", String(index + 1));
    return element;
  }
}
