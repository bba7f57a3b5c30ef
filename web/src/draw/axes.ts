/** What drawings over steps have in common: their axes, letters and hues. */

import type uPlot from "uplot";
import { number } from "../words";
import { ink } from "./colours";

/** As wide as the heat map's labels are as a rule, so that steps lie below each other. */
const LEFT = 46;
const [BELOW, TITLE] = [20, 18];

/** Of lines that are told apart by their colour alone. */
export const HUES = ["--s0", "--s2", "--s3", "--s1"];

/** Steps, or what `title` says, from left to right, and numbers upwards. */
export function axes(title: string): uPlot.Axis[] {
  const shared = { stroke: ink("--quiet"), ticks: { show: false }, font: font() };
  return [
    { ...shared, grid: { show: false }, size: BELOW, label: title, labelSize: TITLE, labelGap: 0, labelFont: font(), values: (_, at) => at.map((each) => (Number.isInteger(each) ? each.toLocaleString("en-US") : "")) },
    { ...shared, grid: { stroke: ink("--grid"), width: 1 }, size: LEFT, values: (_, at) => at.map((each) => (each === null ? "" : number(each, 3))) },
  ];
}

export function font(ratio = 1): string {
  return `${11 * ratio}px ${getComputedStyle(document.body).fontFamily}`;
}
