/** Every value of a step in the order of execution: how far it is beyond what rounding explains, on a logarithmic scale. */

import { h, s } from "../dom";
import type { Schemas } from "../source";
import { number } from "../words";

const HEIGHT = 150;
const LEFT = 66;
const BELOW = 20;
const CEILING = 12;
const PHASES: Record<string, string> = { fwd: "forward", bwd: "backward", param: "parameters", grad: "gradients", opt: "optimizer", comm: "collectives", save: "saved" };

/** A dot for each column; equal values lie on the ground. A click lists the value among the others. */
export function along(data: Schemas["Along"], pick: (at: number) => void): HTMLElement {
  const width = Math.max(280, Math.min(innerWidth - 64, 1280));
  const log = (times: number | null | undefined) => (times ? Math.max(-3, Math.min(CEILING, Math.log10(times))) : null);
  const logs = data.columns.map((each) => log(each.times)).filter((each) => each !== null);
  const [low, high] = [Math.min(-1, ...logs), Math.max(1, ...logs)];
  const x = (at: number) => LEFT + 6 + ((at + 0.5) / data.columns.length) * (width - LEFT - 12);
  const y = (value: number) => 8 + (1 - (value - low) / (high - low)) * (HEIGHT - BELOW - 16);
  const height = (each: Schemas["AlongColumn"]) => each.judgement === "equal" ? low : log(each.times) ?? (each.judgement === "not-comparable" ? low : high);
  const begins = data.columns.map((each, at) => (at === 0 || data.columns[at - 1].phase !== each.phase ? at : -1)).filter((at) => at >= 0);
  const label = (value: number) => s("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, `${number(10 ** value, 2)} ×`);
  const place = `step ${data.step}${data.rank === null || data.rank === undefined ? ", ranks merged" : `, rank ${data.rank}`}`;
  return h("figure", { class: "growth chart" },
    h("figcaption", null, `Every value of ${place} in the order of execution: its difference in times of what rounding, and differences of what it was made from, explain (the line). Equal values lie on the ground; of hollow ones the times are not known. Click a dot to find its value.`),
    s("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `${data.num_values} values of ${place}` },
      s("line", { class: "floor", x1: LEFT, x2: width, y1: y(0), y2: y(0) }), label(0), high > 0.5 ? label(high) : null,
      ...begins.flatMap((at, index) => [
        at ? s("line", { class: "phase", x1: x(at - 0.5), x2: x(at - 0.5), y1: 0, y2: HEIGHT - BELOW }) : null,
        x(begins[index + 1] ?? data.columns.length) - x(at) > 60 ? s("text", { x: x(at - 0.5) + 3, y: HEIGHT - 4 }, PHASES[data.columns[at].phase] ?? data.columns[at].phase) : null,
      ]),
      data.first === null || data.first === undefined ? null : s("line", { class: "first", x1: x(data.first), x2: x(data.first), y1: 0, y2: HEIGHT - BELOW }),
      ...data.columns.map((each, at) => s("circle", { class: `j-${each.judgement}${each.judgement !== "equal" && (each.times === null || each.times === undefined) ? " unknown" : ""}`, cx: x(at), cy: y(height(each)), r: each.judgement === "beyond" ? 3.5 : 2.5, onclick: () => pick(each.at) },
        s("title", null, `${each.site}: ${each.judgement.replace("-", " ")}${each.times === null || each.times === undefined ? "" : `, ${number(each.times, 3)} times`}`)))));
}
