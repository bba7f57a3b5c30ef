/** Names matched by hand: two are chosen, the rule that makes them one is kept, saved as a map, and compared with. */

import { change, state, type State } from "../address";
import { command, h } from "../dom";
import type { Context } from "../screen";
import type { Schemas } from "../source";

type Rule = [string, string];

export class Matching {
  private readonly mine = h("input", { "aria-label": "A name of RUN", placeholder: "name in RUN", oninput: () => change({ mine: this.mine.value }, true) });
  private readonly theirs = h("input", { "aria-label": "A name of REF", placeholder: "name in REF", oninput: () => change({ theirs: this.theirs.value }, true) });
  private readonly add = h("button", { type: "button", onclick: () => this.match() }, "Match");
  private readonly rules = h("ul", { class: "notes" });
  private readonly said = h("p", { class: "small quiet", role: "status" });
  private readonly does = h("p", { class: "filter" });
  readonly element = h("details", { class: "matching" }, h("summary", null, "Match names by hand"),
    h("p", { class: "filter" }, h("label", null, "In RUN ", this.mine), h("label", null, "is in REF ", this.theirs), this.add), this.said, this.rules, this.does);
  private view: Schemas["ComparisonView"] | null = null;

  constructor(private readonly context: Context) {}

  update(now: State, view: Schemas["ComparisonView"]): void {
    this.view = view;
    if (document.activeElement !== this.mine) this.mine.value = now.mine ?? "";
    if (document.activeElement !== this.theirs) this.theirs.value = now.theirs ?? "";
    const rules = rulesOf(now);
    const inForce = JSON.stringify(rules) === JSON.stringify(view.renames);
    if (now.mine || now.theirs || rules.length || view.renames.length || (view.story === null && view.failed)) this.element.open = true;
    this.rules.replaceChildren(...rules.map((rule, at) => h("li", null, h("code", null, rule[0]), " of REF is ", h("code", null, rule[1]), " ",
      h("button", { type: "button", class: "plain", onclick: () => keep(rules.filter((_, other) => other !== at)) }, "remove"))));
    this.does.replaceChildren(
      h("button", { type: "button", disabled: inForce, onclick: () => void this.compare(rules) }, "Compare with these"),
      ...(rules.length ? [h("button", { type: "button", onclick: () => save(rules) }, "Save map.json"), command(`trueline compare ${this.context.run.path} ${view.ref} --map map.json`)] : []));
    this.does.hidden = !rules.length && !view.renames.length;
  }

  /** Takes the names of a row that was clicked: both, or the one that it has. */
  buttons(row: Schemas["RowView"]): HTMLElement {
    const take = (key: "mine" | "theirs", name: string, text: string) => name ? h("button", { type: "button", onclick: () => change({ [key]: name }, true) }, text) : null;
    return h("p", { class: "filter" }, "Match by hand: ", take("mine", row.name, "this name of RUN"), take("theirs", row.ref_name, "this name of REF"));
  }

  private match(): void {
    const rule = ruleOf(this.theirs.value.trim(), this.mine.value.trim());
    if (typeof rule === "string") {
      this.said.textContent = rule;
      return;
    }
    this.said.textContent = "";
    const others = rulesOf(state()).filter(([old]) => old !== rule[0]);
    change({ map: written([...others, rule]), mine: "", theirs: "" });
  }

  private async compare(rules: Rule[]): Promise<void> {
    const asked = new URLSearchParams();
    for (const [old, made] of rules) {
      asked.append("old", old);
      asked.append("new", made);
    }
    try {
      await this.context.source.post(this.context.api(`renames?${asked}`));
      this.said.textContent = "Comparing again…";
    } catch (error) {
      this.said.textContent = error instanceof Error ? error.message : String(error);
    }
    if (this.view) this.update(state(), this.view);
  }
}

/** What makes `theirs` `mine`: their ends that are equal are left out, and numbers that are equal stand for any. */
function ruleOf(theirs: string, mine: string): Rule | string {
  if (!theirs || !mine) return "Choose a name of each: select a value and take its name, or type it.";
  const [old, made] = [theirs.split("."), mine.split(".")];
  while (old.length > 1 && made.length > 1 && old.at(-1) === made.at(-1)) {
    old.pop();
    made.pop();
  }
  while (old.length > 1 && made.length > 1 && old[0] === made[0]) {
    old.shift();
    made.shift();
  }
  if (old.join(".") === made.join(".")) return "These names are the same already.";
  const numbers = (parts: string[]) => parts.filter((part) => /^\d+$/.test(part)).join();
  const any = (parts: string[]) => (numbers(old) === numbers(made) ? parts.map((part) => (/^\d+$/.test(part) ? "*" : part)) : parts).join(".");
  return [any(old), any(made)];
}

function rulesOf(now: State): Rule[] {
  try {
    const read: unknown = JSON.parse(now.map || "[]");
    return Array.isArray(read) ? read.filter((each): each is Rule => Array.isArray(each) && each.length === 2 && each.every((part) => typeof part === "string")) : [];
  } catch {
    return [];
  }
}

const written = (rules: Rule[]): string => (rules.length ? JSON.stringify(rules) : "");
const keep = (rules: Rule[]): void => change({ map: written(rules) });

/** The map as the file that `trueline compare --map` takes. */
function save(rules: Rule[]): void {
  const url = URL.createObjectURL(new Blob([`${JSON.stringify({ rename: Object.fromEntries(rules) }, null, 2)}\n`], { type: "application/json" }));
  h("a", { href: url, download: "map.json" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
