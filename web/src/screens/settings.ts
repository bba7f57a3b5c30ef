/** How the job was set up: what differs between ranks first, then what all share. */

import { h, keepingOpen } from "../dom";
import type { Context, Screen } from "../screen";
import type { Schemas } from "../source";
import { counted } from "../words";

const OPEN = ["run", "model", "versions", "signals"];

export function settings(context: Context): Screen {
  const element = h("div", { class: "settings" });
  let drawn = "";

  async function update(): Promise<void> {
    const data = await context.source.json<Schemas["Settings"]>(context.api("settings"));
    const key = JSON.stringify(data);
    if (key === drawn) return;
    const first = drawn === "";
    drawn = key;
    const fill = () => element.replaceChildren(...parts(data));
    if (first) fill();
    else keepingOpen(element, fill);
  }

  return { element, update, keys: [], twins: () => [context.api("settings")] };
}

function parts(data: Schemas["Settings"]): Node[] {
  if (data.missing) return [h("h1", null, "Settings"), h("p", { class: "nothing" }, "No rank left a description of its environment.")];
  return [
    h("h1", null, "Settings"),
    h("section", null, h("h2", null, "Differs between ranks"),
      ...data.found.map((claim) => h("p", null, claim)),
      data.within.length ? h("p", { class: "lead" }, "Ranks of one Run should agree in these unless you chose otherwise.") : data.found.length ? null : h("p", { class: "nothing" }, "All ranks have the same settings, versions and flags."),
      differing(data.within),
      data.by_nature.length ? h("details", null, h("summary", null, `Different by nature: ${data.by_nature.map((each) => each.key).join(", ")}`), differing(data.by_nature)) : null),
    h("section", null, h("h2", null, "The same on all ranks"),
      ...data.common.map((section) => h("details", { open: OPEN.includes(section.name) }, h("summary", null, `${section.name}, ${counted(section.facts.length, "fact")}`),
        h("dl", { class: "pairs" }, ...section.facts.map(([name, value]) => h("div", null, h("dt", null, String(name)), h("dd", null, String(value)))))))),
  ];
}

/** Facts with who has which value. */
export function differing(facts: Schemas["Differing"][]): HTMLElement {
  return h("dl", { class: "pairs" }, ...facts.map((each) => h("div", null, h("dt", null, each.key), h("dd", null, ...each.values.map(([who, value]) => h("p", null, h("b", null, String(who || "all")), " ", String(value)))))));
}
