/** The largest difference of each step, in times of what rounding explains, on a logarithmic scale. */

import { h, s } from "../dom";
import type { Schemas } from "../source";
import { number } from "../words";

const HEIGHT = 120;
const LEFT = 66;
const BELOW = 18;

/** A mark for each step over the line up to which rounding explains all; a click chooses the step. */
export function growth(steps: Schemas["Growth"][], chosen: number | null, pick: (step: number) => void): HTMLElement {
  const width = Math.max(280, Math.min(innerWidth - 64, 1280));
  const known = steps.filter((each) => each.times !== null && each.times > 0);
  if (known.length < 2) return h("div", null);
  const logs = known.map((each) => Math.log10(each.times!));
  const [low, high] = [Math.min(0, ...logs), Math.max(1, ...logs)];
  const [first, last] = [steps[0].step, steps[steps.length - 1].step];
  const x = (step: number) => LEFT + 6 + ((step - first) / Math.max(last - first, 1)) * (width - LEFT - 12);
  const y = (log: number) => 6 + (1 - (log - low) / (high - low)) * (HEIGHT - BELOW - 12);
  const label = (log: number) => s("text", { x: LEFT - 6, y: y(log) + 4, "text-anchor": "end" }, `${number(10 ** log, 2)} ×`);
  return h("figure", { class: "growth chart" }, h("figcaption", null, "Largest difference at each step, in times of what rounding explains (the line). Click a step to list its values alone."),
    s("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `Differences over ${known.length} steps` },
      s("line", { class: "floor", x1: LEFT, x2: width, y1: y(0), y2: y(0) }), label(0), high > 0.5 ? label(high) : null,
      s("polyline", { class: "line", points: known.map((each, at) => `${x(each.step)},${y(logs[at])}`).join(" ") }),
      ...known.map((each, at) => s("circle", { class: `${each.beyond ? "beyond" : ""}${each.step === chosen ? " chosen" : ""}`, cx: x(each.step), cy: y(logs[at]), r: each.step === chosen ? 5.5 : 3.5, onclick: () => pick(each.step) },
        s("title", null, `step ${each.step}: ${number(each.times, 3)} times, ${each.beyond.toLocaleString("en-US")} beyond rounding${each.loss_rel === null ? "" : `, loss apart by ${number(100 * each.loss_rel, 2)} %`}`))),
      s("text", { x: x(first), y: HEIGHT - 3 }, `step ${first}`), s("text", { x: x(last), y: HEIGHT - 3, "text-anchor": "end" }, String(last))));
}
