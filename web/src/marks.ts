/** Signs of a verdict or a severity, told apart by shape as well as by colour. */

import { h, s } from "./dom";

export function verdictMark(status: string | null): SVGSVGElement {
  const shapes: Record<string, SVGElement> = {
    out: s("rect", { x: 1, y: 1, width: 10, height: 10 }),
    suspect: s("path", { d: "M6 .6 11.6 11H.4z" }),
    clear: s("path", { class: "stroke", d: "M1.5 6.5 4.8 10 10.8 2" }),
  };
  return s("svg", { width: 14, height: 14, viewBox: "0 0 12 12", "aria-hidden": "true" }, shapes[status ?? ""] ?? s("circle", { class: "stroke", cx: 6, cy: 6, r: 4.8 }));
}

export function severity(name: string): HTMLElement {
  const shapes: Record<string, SVGElement> = {
    error: s("rect", { x: 1, y: 1, width: 8, height: 8 }),
    warning: s("path", { d: "M5 0.5 9.7 9.2H.3z" }),
  };
  return h("span", { class: `severity ${name}` }, s("svg", { width: 10, height: 10, viewBox: "0 0 10 10", "aria-hidden": "true" }, shapes[name] ?? s("circle", { cx: 5, cy: 5, r: 3.2 })), name);
}

/** The sign of how a value compares with its twin. */
export function judgement(name: string, said: string): HTMLElement {
  const shapes: Record<string, SVGElement> = {
    beyond: s("rect", { x: 1, y: 1, width: 8, height: 8 }),
    propagated: s("path", { d: "M5 0.5 9.7 9.2H.3z" }),
    "not-comparable": s("path", { d: "M1 4.2h8v1.6H1z" }),
  };
  return h("span", { class: `judged j-${name}` }, s("svg", { width: 10, height: 10, viewBox: "0 0 10 10", "aria-hidden": "true" }, shapes[name] ?? s("circle", { cx: 5, cy: 5, r: 3.2 })), said);
}
