/** How sure a finding is, along the steps: how seldom chance alone would show as much. */

import { h, s } from "../dom";
import type { Schemas } from "../source";
import { oneIn } from "../words";

const HEIGHT = 110;
const LEFT = 96;
const BELOW = 18;

export function evidenceGrowth(data: Schemas["EvidenceGrowth"]): HTMLElement {
  const points = data.points as unknown as [number, number][];
  const width = Math.max(280, Math.min(innerWidth - 64, 1280));
  const [first, last] = [points[0][0], points[points.length - 1][0]];
  const most = Math.max(data.threshold, ...points.map(([, value]) => value));
  const [low, high] = [Math.min(0, ...points.map(([, value]) => value)), most * 1.05];
  const x = (step: number) => LEFT + 6 + ((step - first) / Math.max(last - first, 1)) * (width - LEFT - 12);
  const y = (value: number) => 6 + (1 - (value - low) / (high - low)) * (HEIGHT - BELOW - 12);
  const crossed = data.crossed ?? null;
  return h("figure", { class: "growth chart" },
    h("figcaption", null, h("b", null, "How sure"), h("span", { class: "quiet" }, ` of ${data.code}, step by step: at the end chance alone would show as much once in ${oneIn(points[points.length - 1][1])} trainings. The line is once in ${oneIn(data.threshold)}; above it, ${crossed === null ? "" : `from step ${crossed.toLocaleString("en-US")} on, `}it is a finding.`)),
    s("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `How sure it is, over steps ${first} to ${last}` },
      s("line", { class: "floor", x1: LEFT, x2: width, y1: y(data.threshold), y2: y(data.threshold) }),
      ...[data.threshold, most].filter((value, at, all) => at === 0 || y(all[at - 1]) - y(value) > 12).map((value) => s("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, `1 in ${oneIn(value)}`)),
      s("polyline", { class: "line", points: points.map(([step, value]) => `${x(step)},${y(value)}`).join(" ") }),
      crossed === null ? null : s("line", { class: "first", x1: x(crossed), x2: x(crossed), y1: 0, y2: HEIGHT - BELOW }),
      s("text", { x: LEFT + 6, y: HEIGHT - 4 }, `step ${first.toLocaleString("en-US")}`), s("text", { x: width, y: HEIGHT - 4, "text-anchor": "end" }, last.toLocaleString("en-US"))));
}
