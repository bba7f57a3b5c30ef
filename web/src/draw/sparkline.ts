/** The number that an incident is about: the accused in the colour of its severity over the band of the others. */

import { s } from "../dom";
import type { Schemas } from "../source";

const WIDTH = 160;
const HEIGHT = 34;

export function sparkline(data: Schemas["Sparkline"], said: string): SVGSVGElement {
  const known = [...data.accused, ...data.lowest, ...data.highest].filter((value): value is number => value !== null);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const x = (at: number) => (data.first.length < 2 ? WIDTH / 2 : (at / (data.first.length - 1)) * WIDTH);
  const y = (value: number) => (!(high > low) ? HEIGHT / 2 : HEIGHT - 2 - ((value - low) / (high - low)) * (HEIGHT - 4));
  const points = (values: (number | null)[]) => values.flatMap((value, at) => (value === null ? [] : [`${x(at).toFixed(1)},${y(value).toFixed(1)}`]));
  const band = [...points(data.lowest), ...points(data.highest).reverse()];
  return s("svg", { class: "sparkline", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", "aria-label": said },
    band.length ? s("polygon", { class: "others", points: band.join(" ") }) : null,
    s("polyline", { class: data.accused.some((value) => value !== null) ? "median" : "alone", points: points(data.median).join(" ") }),
    s("polyline", { class: "accused", points: points(data.accused).join(" ") }),
    ...data.not_finite.map((at) => s("rect", { class: "nan", x: x(at) - 1, y: 0, width: 2, height: HEIGHT })),
  );
}
