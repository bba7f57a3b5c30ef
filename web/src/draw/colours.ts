/** Colours of cells and lines; all of them are told apart without red and green, and by lightness. */

type Rgb = [number, number, number];

const LIGHT: Rgb[] = [[239, 243, 248], [176, 199, 226], [104, 148, 199], [44, 96, 160], [13, 43, 92]];
const DARK: Rgb[] = [[26, 33, 43], [33, 66, 107], [52, 108, 166], [110, 165, 221], [206, 229, 255]];
const APART_LIGHT: Rgb[] = [[64, 28, 92], [153, 112, 171], [242, 241, 239], [90, 158, 100], [10, 68, 27]];
const APART_DARK: Rgb[] = [[226, 190, 242], [140, 96, 160], [32, 35, 39], [70, 140, 82], [178, 232, 182]];

/** NaN, +inf and −inf: hues that no scale has. */
export const NOT_FINITE = { nan: [222, 82, 18] as Rgb, pos: [240, 190, 0] as Rgb, neg: [0, 165, 185] as Rgb };

export const dark = (): boolean => matchMedia("(prefers-color-scheme: dark)").matches;

/** 256 colours from the low to the high end, as 0xAABBGGRR. */
export function ramp(apart: boolean): Uint32Array {
  const stops = apart ? (dark() ? APART_DARK : APART_LIGHT) : dark() ? DARK : LIGHT;
  const colours = new Uint32Array(256);
  for (let at = 0; at < 256; at++) {
    const place = (at / 255) * (stops.length - 1);
    const stop = Math.min(Math.floor(place), stops.length - 2);
    const part = place - stop;
    colours[at] = pixel(stops[stop].map((low, channel) => low + (stops[stop + 1][channel] - low) * part) as Rgb);
  }
  return colours;
}

export function pixel([red, green, blue]: Rgb): number {
  return ((255 << 24) | (Math.round(blue) << 16) | (Math.round(green) << 8) | Math.round(red)) >>> 0;
}

export function css([red, green, blue]: Rgb): string {
  return `rgb(${red}, ${green}, ${blue})`;
}

/** Where a value lies on a scale, 0 to 255. */
export interface Scale {
  at: (value: number) => number;
  log: boolean;
  low: number;
  high: number;
}

/** The scale from `low` to `high`: logarithmic where all is positive and spans more than `SPAN` times. */
export function scaleOf(low: number | null, high: number | null, smallest: number | null, apart: boolean): Scale {
  if (low === null || high === null) return { at: () => 128, log: false, low: 0, high: 0 };
  if (apart) {
    const end = Math.max(Math.abs(low), Math.abs(high)) || 1;
    return { at: (value) => clamp(((value / end + 1) / 2) * 255), log: false, low: -end, high: end };
  }
  if (low === high) return { at: () => 128, log: false, low, high };
  const log = smallest !== null && smallest > 0 && high / low > SPAN;
  const [from, to] = log ? [Math.log(low), Math.log(high)] : [low, high];
  return { at: (value) => clamp((((log ? Math.log(value) : value) - from) / (to - from)) * 255), log, low, high };
}

const SPAN = 30;
const clamp = (at: number): number => Math.max(0, Math.min(255, Math.round(at)));

const JUDGED: Record<string, string> = { beyond: "var(--error)", propagated: "var(--warning)", within: "var(--clear)", equal: "var(--clear)", "not-comparable": "var(--quiet)" };

/** The colour of a call by a statistic, within the scale of the step, or by how it compares with the reference. */
export function valueColour(notFinite: number, statistic: string, value: number | null, scale: unknown[] | null, judged: string): string {
  if (statistic === "judgement") return JUDGED[judged] ?? "var(--sunk)";
  if (notFinite) return css(NOT_FINITE.nan);
  if (statistic === "not_finite") return "var(--sunk)";
  if (value === null || scale === null) return "transparent";
  const [low, high] = scale as [number, number];
  const positive = low > 0 ? low : high * 1e-9;
  const colour = ramp(false)[scaleOf(positive, high, positive, false).at(Math.max(value, positive))];
  return `rgb(${colour & 255}, ${(colour >> 8) & 255}, ${(colour >> 16) & 255})`;
}

/** A colour of the style sheet. */
export function ink(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
