/** Ranks over steps: a heat map of all of them, lines of some, and the cosines between all at a step. */

import { change, numberOf, numbersOf, state, type State } from "../address";
import { h } from "../dom";
import { css, NOT_FINITE, ramp } from "../draw/colours";
import { type Cell, Heat, type HeatData } from "../draw/heat";
import { type Axis, columnOf, ends, hues, Lines, type Look, readoutAt, type SeriesData } from "../draw/lines";
import { Matrix } from "../draw/matrix";
import type { Context, Screen } from "../screen";
import { query, type Schemas } from "../source";
import { counted, number } from "../words";
import { Beside } from "./beside";

const CHOICES: Record<string, [string, string][]> = {
  shown: [["", "value"], ["apart", "distance from the ranks’ median"], ["relative", "difference from the other Run, relative"]],
  rows: [["", "by rank"], ["worst", "farthest first"], ["host", "by machine"]],
  along: [["", "step"], ["seconds", "time"], ["tokens", "tokens"]],
  smooth: [["", "as they are"], ["5", "mean of 5"], ["20", "mean of 20"], ["100", "mean of 100"]],
  log: [["", "linear"], ["1", "logarithmic"]],
};

export function trend(context: Context): Screen {
  const signal = h("select", { "aria-label": "What is drawn", onchange: () => change({ signal: signal.value }) });
  const chosen = Object.fromEntries(Object.entries(CHOICES).map(([key, options]) => [key, h("select", { "aria-label": key, onchange: (event: Event) => change({ [key]: (event.target as HTMLSelectElement).value }) }, ...options.map(([value, text]) => h("option", { value }, text)))]));
  const whole = h("button", { type: "button", onclick: () => change({ first: "", last: "" }) }, "All steps");
  const meaning = h("p", { class: "lead" });
  const readout = h("p", { class: "readout", role: "status" });
  const legend = h("div", { class: "legend" });
  const pins = h("p", { class: "pins" });
  const note = h("p", { class: "small quiet" });
  const found = h("input", { type: "search", placeholder: "rank", "aria-label": "Pin a rank", inputmode: "numeric", size: 8 });
  found.addEventListener("change", () => { if (/^\d+$/.test(found.value)) pin(Number(found.value), true); found.value = ""; });
  const others = context.runs.filter((each) => each.id !== context.run.id);
  const other = h("select", { "aria-label": "Beside", onchange: () => change({ beside: other.value, shown: "" }) }, h("option", { value: "" }, "no other Run"), ...others.map((each) => h("option", { value: each.id }, each.name)));
  const beside = new Beside(context, { point: (step) => pointed(step, null), zoom });
  const over = h("select", { "aria-label": "Over", onchange: () => change({ over: over.value }) }, h("option", { value: "" }, "steps"), h("option", { value: "rank" }, "ranks, at the step that was clicked"));
  const across = h("label", null, "over ", over);
  const as = h("label", null, "as ", chosen.shown);
  const lines = new Lines({ point: (step) => pointed(step, null), zoom }, { height: 260, named: false }); // the legend names them
  const heat = new Heat({ point: (cell) => pointed(cell ? heatData!.int("first")[cell.column] : null, cell), pick, zoom });
  const matrix = new Matrix();
  /** What is there only where a number of each rank is drawn. */
  const ranked = [legend, pins, matrix.element, as];
  const looks = h("p", { class: "filter" }, h("label", null, "Lines over ", chosen.along), h("label", null, "values ", chosen.smooth), h("label", null, "scale ", chosen.log), h("span", { class: "quiet small" }, "Drag over a drawing to zoom in; \"All steps\" or Esc leads back."));
  const plots = h("div", null, readout, heat.element, legend, pins, looks, lines.element, note, beside.element, matrix.element);
  const nothing = h("p", { class: "nothing" }, "This Run holds no numbers over steps.");
  const choices = h("p", { class: "filter" }, h("label", null, "Draw ", signal), across, as, context.source.served ? [h("label", null, "rows ", chosen.rows), h("label", null, "pin ", found)] : null, others.length ? h("label", null, "beside ", other) : null, whole);
  const element = h("div", { class: "trend" },
    h("h1", null, "Ranks × steps"),
    choices,
    meaning, nothing, plots);
  let facts: Schemas["Signals"] | null = null;
  let heatData: HeatData | null = null;
  let seriesData: SeriesData | null = null;
  let cursor: Cell | null = null;

  async function update(now: State): Promise<void> {
    facts = await context.source.json<Schemas["Signals"]>(context.api("signals"));
    const some = facts.signals.length > 0 && facts.num_steps > 0;
    nothing.hidden = some;
    plots.hidden = choices.hidden = !some;
    if (!some) return;
    if (signal.options.length !== facts.signals.length) signal.replaceChildren(...facts.signals.map((each) => h("option", { value: each.key, title: each.meaning }, each.title)));
    const drawn = facts.signals.find((each) => each.key === now.signal) ?? facts.signals[0];
    signal.value = drawn.key;
    for (const key of Object.keys(CHOICES)) chosen[key].value = now[key] ?? "";
    meaning.textContent = drawn.meaning + (facts.truncated ? ` ${counted(facts.truncated, "parameter group")} more cannot be chosen here.` : "");
    const span = { first: numberOf(now, "first", null), last: numberOf(now, "last", null) };
    whole.hidden = span.first === null && span.last === null;
    const columns = Math.max(16, Math.min(Math.floor(element.clientWidth || 800), 2048));
    const shown = now.shown ?? "";
    const asked = { signal: drawn.key, ...span, columns, shown, other: shown === "relative" ? (now.beside ?? "") : "" };
    const pinned = numbersOf(now, "pin");
    other.value = now.beside ?? "";
    const beyond = numberOf(now, "beside", null);
    chosen.shown.options[2].hidden = chosen.shown.options[2].disabled = beyond === null || !context.source.served;
    beside.element.hidden = true;
    ranked.forEach((each) => { each.hidden = drawn.of !== "rank"; });
    heat.element.hidden = drawn.of === "job";
    lines.element.hidden = looks.hidden = drawn.of === "group";
    across.hidden = drawn.of !== "group" || !context.source.served;
    if (drawn.of === "group") {
      over.value = now.over ?? "";
      const at = now.over === "rank" ? (numberOf(now, "step", null) ?? facts.step_last ?? 0) : "";
      heatData = await context.source.packed<Schemas["Heat"]>(context.api(query("heat", { ...asked, shown: "", step: at })));
      seriesData = null;
      heat.show(heatData, []);
      note.textContent = heatData.head.over === "rank" ? `A row each parameter group, in the order of the model, a column each rank, at step ${heatData.head.step}.` : `A row each parameter group, in the order of the model; of all ranks the ${heatData.head.worst === "low" ? "lowest" : "highest"} value is shown.${drawn.unit ? ` Unit: ${drawn.unit}.` : ""}`;
      legend.hidden = false;
      tellScale();
      return;
    }
    if (drawn.of === "job") {
      heatData = null;
      seriesData = await context.source.packed<Schemas["Series"]>(context.api(query("series", { ...asked, shown: "" })));
      const below = beyond === null ? null : await beside.fetch(beyond, { ...asked, shown: "" }, null);
      readout.textContent = "";
      note.textContent = seriesData.head.said;
      lines.show(seriesData, began(), below ? ends(below) : [], look(now));
      if (below) beside.show(below, seriesData, look(now));
      return;
    }
    const [cells, series] = await Promise.all([
      context.source.packed<Schemas["Heat"]>(context.api(query("heat", { ...asked, rows: now.rows ?? "" }))),
      context.source.packed<Schemas["Series"]>(context.api(query("series", { ...asked, pinned: pinned.join(","), lines: 100 }))),
    ]);
    heatData = cells;
    seriesData = series;
    const below = beyond === null || shown === "relative" ? null : await beside.fetch(beyond, asked, cells);
    heat.show(cells, pinned);
    lines.show(series, began(), below ? ends(below) : [], look(now));
    if (below) beside.show(below, series, look(now));
    tell(drawn, pinned);
    const step = numberOf(now, "step", null) ?? facts.step_last ?? 0;
    mark();
    matrix.show(await context.source.packed<Schemas["Cosines"]>(context.api(query("cosines", { step }))), facts.flagged);
  }

  /** Since when incidents are there. */
  function began(): { step: number; name: string }[] {
    return facts!.began.map((step) => ({ step, name: `since ${step}` }));
  }

  /** What the colours mean. */
  function tellScale(): void {
    const { head } = heatData!;
    const scale = heat.scale;
    const bar = h("canvas", { width: 256, height: 1, class: "bar" });
    const context2d = bar.getContext("2d")!;
    const image = context2d.createImageData(256, 1);
    new Uint32Array(image.data.buffer).set(ramp(head.worst === "far"));
    context2d.putImageData(image, 0, 0);
    const key = (colour: [number, number, number], text: string) => h("span", { class: "key" }, svgSwatch(css(colour)), text);
    legend.replaceChildren(
      h("span", { class: "key" }, `≤ ${number(scale.low, 3)}`, bar, `≥ ${number(scale.high, 3)}`, scale.log ? " (logarithmic)" : ""),
      key(NOT_FINITE.nan, "NaN"), key(NOT_FINITE.pos, "+inf"), key(NOT_FINITE.neg, "−inf"),
      h("span", { class: "quiet" }, [
        head.num_not_finite ? `${counted(head.num_not_finite, "cell")} not finite.` : "",
        head.steps_per_column > 1 ? `${head.steps_per_column} steps a column, of which the ${{ low: "lowest", high: "highest", far: "farthest" }[head.worst]} is shown.` : "",
        head.flagged.length ? "A mark at the left: named by a finding." : "",
      ].filter(Boolean).join(" ")));
  }

  function tell(drawn: Schemas["Signal"], pinned: number[]): void {
    tellScale();
    const colours = hues(seriesData!.head);
    pins.replaceChildren(...pinned.map((rank) => h("button", { type: "button", class: "pin", onclick: () => pin(rank, false), "aria-label": `Unpin rank ${rank}` }, lineSwatch(colours.get(rank) ?? "--line"), `rank ${rank} ×`)),
      ...[...colours].filter(([rank]) => !pinned.includes(rank)).slice(0, 8).map(([rank, hue]) => h("span", { class: "key" }, lineSwatch(hue), `rank ${rank}`)));
    const series = seriesData!.head;
    note.textContent = `${series.num_ranks === series.ranks.length ? `All ${counted(series.num_ranks, "rank")} are drawn` : `Drawn: ${series.ranks.length} ranks, those pinned, named by findings, or farthest from the others. Hidden: ${series.hidden}`}. The band reaches from the lowest to the highest of all ranks, its inner part holds the middle half, dashed is the median.${drawn.unit ? ` Unit: ${drawn.unit}.` : ""}`;
  }

  function pointed(step: number | null, cell: Cell | null): void {
    if (heatData === null) return sayOfJob(step);
    cursor = cell ?? (step === null ? null : { row: cursor?.row ?? 0, column: heat.columnOf(step) });
    heat.mark(step, cell?.row ?? null);
    if (cell !== null || step === null) lines.mark(step);
    beside.mark(step);
    say(step, cell);
  }

  function sayOfJob(step: number | null): void {
    if (step === null || seriesData === null) return;
    const at = columnOf(seriesData, step);
    if (at >= 0) readout.textContent = readoutAt(seriesData, at);
  }

  function say(step: number | null, cell: Cell | null): void {
    if (step === null || heatData === null) return;
    const column = heat.columnOf(step);
    if (column < 0) return;
    const [first, last] = [heatData.int("first")[column], heatData.int("end")[column] - 1];
    const steps = heatData.head.over === "rank" ? `rank ${first}` : first === last ? `step ${first}` : `steps ${first}–${last}`;
    if (cell !== null) readout.textContent = `${heatData.head.rows[cell.row]}, ${steps}: ${cellText(cell)}`;
    else if (seriesData) readout.textContent = readoutAt(seriesData, Math.min(column, seriesData.int("first").length - 1));
  }

  function cellText(cell: Cell): string {
    const flags = heat.flags(cell);
    const names = [flags & 2 ? "NaN" : "", flags & 4 ? "+inf" : "", flags & 8 ? "−inf" : ""].filter(Boolean);
    if (!(flags & 1)) return "not measured";
    const value = heat.value(cell);
    return [...names, Number.isNaN(value) ? "" : `${names.length ? "else " : ""}${number(value)}`].filter(Boolean).join(", ");
  }

  function mark(): void {
    const step = numberOf(state(), "step", null);
    if (step !== null && cursor === null) heat.mark(step, null);
  }

  function pick(cell: Cell): void {
    const rank = heatData!.head.ranks[cell.row];
    const pinned = numbersOf(state(), "pin");
    if (heatData!.head.over === "rank") return;
    change({ step: String(heatData!.int("first")[cell.column]), pin: rank < 0 || pinned.includes(rank) ? pinned.join(",") : [...pinned, rank].slice(-8).join(",") }, true);
  }

  function pin(rank: number, on: boolean): void {
    const others = numbersOf(state(), "pin").filter((each) => each !== rank);
    change({ pin: (on ? [...others, rank] : others).slice(-8).join(",") });
  }

  function zoom(first: number, last: number): void {
    if (heatData?.head.over === "rank") return;
    if (!context.source.served) {
      readout.textContent = "This file holds all steps at one size; `trueline view` zooms.";
      return;
    }
    change({ first: String(Math.min(first, last)), last: String(Math.max(first, last)) });
  }

  function key(pressed: string): boolean {
    if (heatData === null || !heat.columns) return false;
    const moves: Record<string, [number, number]> = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], k: [-1, 0], j: [1, 0] };
    if (pressed in moves) {
      const [down, right] = moves[pressed];
      const from = cursor ?? { row: -Math.min(down, 0), column: Math.max(heat.columnOf(numberOf(state(), "step", 0) ?? 0), 0) - right };
      const cell = { row: Math.max(0, Math.min(from.row + down, heat.rows - 1)), column: Math.max(0, Math.min(from.column + right, heat.columns - 1)) };
      pointed(heatData.int("first")[cell.column], cell);
      return true;
    }
    if (pressed === "Enter" && cursor) { pick(cursor); return true; }
    if (pressed === "z" && cursor) {
      const quarter = Math.ceil(heat.columns / 8);
      const first = heatData.int("first");
      zoom(first[Math.max(0, cursor.column - quarter)], first[Math.min(heat.columns - 1, cursor.column + quarter)]);
      return true;
    }
    if (pressed === "Escape") { change({ first: "", last: "" }); return true; }
    return false;
  }

  return {
    element, update, key,
    close: () => { heat.close(); lines.close(); beside.close(); },
    keys: [["← ↑ → ↓", "move the cursor"], ["Enter", "pin the rank, choose the step"], ["z", "zoom in around the cursor; dragging zooms too"], ["Esc", "all steps"]],
    twins: () => [context.api("signals")],
  };
}

function look(now: State): Look {
  return { smooth: numberOf(now, "smooth", 1)!, log: now.log === "1", along: (now.along || "step") as Axis };
}

function svgSwatch(colour: string): HTMLElement {
  const made = h("i", { class: "swatch" });
  made.style.background = colour;
  return made;
}

function lineSwatch(hue: string): HTMLElement {
  const made = h("i", { class: "swatch line" });
  made.style.background = `var(${hue})`;
  return made;
}
