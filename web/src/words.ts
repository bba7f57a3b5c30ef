/** Numbers as the report words them. */

/** `value` with `digits` significant digits; NaN and infinities by name, nothing as a dash. */
export function number(value: number | null | undefined, digits = 4): string {
  if (value === null || value === undefined) return "–";
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "−inf";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e-3 && size < 1e6) {
    const whole = size >= 1 ? Math.floor(Math.log10(size)) + 1 : 0;
    const text = whole >= digits ? Math.round(value).toLocaleString("en-US") : String(Number(value.toPrecision(digits)));
    return text.replace("-", "−");
  }
  const [mantissa, exponent] = value.toExponential(Math.max(digits - 2, 0)).split("e");
  return `${mantissa.includes(".") ? mantissa.replace(/\.?0+$/, "") : mantissa}e${Number(exponent)}`.replaceAll("-", "−");
}

/** `1 step`, `2 steps`. */
export function counted(count: number, noun: string): string {
  return `${count.toLocaleString("en-US")} ${noun}${count === 1 ? "" : "s"}`;
}

/** How many times chance would have to be tried, of natural logarithms of odds: `150`, `2.4 million`, `10⁷⁵`. */
export function oneIn(logOdds: number): string {
  const tens = logOdds / Math.LN10;
  if (tens < 6) return Math.round(10 ** tens).toLocaleString("en-US");
  if (tens < 9) return `${Number((10 ** (tens - 6)).toPrecision(2))} million`;
  return `10${[...String(Math.floor(tens))].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(digit)]).join("")}`;
}
