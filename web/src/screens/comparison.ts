/** A Run against its reference: what differs first, then every value in the order of execution with the rounding floor. */

import { change, numberOf, state, type State } from "../address";
import { h, keepingOpen, prose } from "../dom";
import { along } from "../draw/along";
import { growth } from "../draw/growth";
import { judgement, verdictMark } from "../marks";
import type { Context, Screen } from "../screen";
import { query, type Schemas } from "../source";
import { Table } from "../table";
import { counted, number } from "../words";
import { Matching } from "./matching";

const HEAD = () => h("div", { class: "row value heads", "aria-hidden": "true" }, h("span", { class: "judged" }, "judgement"), h("span", { class: "name" }, "value"), h("span", { class: "bar-head" }, "over rounding"), h("span", { class: "right" }, "times"), h("span", { class: "right quiet" }, "difference"), h("span", { class: "right quiet" }, "explained"));

export function comparison(context: Context): Screen {
  const head = h("section", { id: "verdict" });
  const which = h("div", { class: "choices", role: "group", "aria-label": "Judgements" });
  const search = h("input", { type: "search", placeholder: "part of a name", "aria-label": "Search values" });
  const said = h("p", { class: "small quiet", role: "status" });
  const first = h("button", { type: "button", onclick: () => toFirst() }, "First difference");
  const detail = h("aside", { class: "detail", "aria-label": "The selected value" });
  search.addEventListener("input", () => change({ find: search.value, row: "" }, true));
  const grows = h("div", null);
  const files = h("span", null);
  const one = h("button", { type: "button", onclick: () => change({ step: "", row: "" }) });
  const matching = new Matching(context);
  let view: Schemas["ComparisonView"] | null = null;
  let asked = "";
  const table = new Table<Schemas["RowView"]>({
    fetch: async (offset, limit) => {
      const found = await context.source.json<Schemas["RowsView"]>(context.api(path(state(), offset, limit)));
      said.textContent = `${found.total === view?.num_rows ? counted(found.total, "value") : `${found.total.toLocaleString("en-US")} of ${counted(view?.num_rows ?? 0, "value")}`} in the order of execution.${view?.left_out ? ` This file has no room for ${counted(view.left_out, "value")} more, which differ least; --csv has them.` : ""}`;
      return { total: found.total, rows: found.rows };
    },
    row: (each) => row(each, view?.largest_times ?? null),
    pick: (each) => { if (each) detail.replaceChildren(...described(each), ...(context.source.served ? [matching.buttons(each)] : [])); },
    failed: (error) => { said.textContent = error instanceof Error ? error.message : String(error); },
  });
  const rows = h("section", null, h("h2", null, "Values in the order of execution"), h("div", { class: "filter" }, which, h("label", null, "with ", search), one, first, files), said, h("div", { class: "split" }, h("div", null, HEAD(), table.element), detail));
  const element = h("div", { class: "compare" }, head, grows, matching.element, rows);

  function path(now: State, offset: number, limit: number): string {
    return query("comparison/rows", { offset, limit, ...filters(now) });
  }

  function filters(now: State): Record<string, string | number | null> {
    return { judgement: now.judged ?? "", search: now.find ?? "", step: numberOf(now, "step", null) };
  }

  async function update(now: State): Promise<void> {
    view = await context.source.json<Schemas["ComparisonView"]>(context.api("comparison"));
    const known = view;
    keepingOpen(head, () => head.replaceChildren(...verdict(known)));
    matching.element.hidden = !context.source.served;
    if (context.source.served) matching.update(now, view);
    rows.hidden = view.story === null;
    if (view.story === null) return grows.replaceChildren();
    const step = numberOf(now, "step", null);
    grows.replaceChildren(...(view.along ? [along(view.along, (at) => void toRow(at))] : []), growth(view.growth, step, (each) => change({ step: each === step ? "" : String(each), row: "" })));
    one.hidden = step === null;
    one.textContent = `Step ${step} alone ×`;
    if (context.source.served) files.replaceChildren(...["csv", "xlsx"].flatMap((kind) => [h("a", { href: context.source.twin(context.api(query(`comparison/rows.${kind}`, filters(now)))), download: "" }, kind.toUpperCase()), " "]));
    const chosen = new Set((now.judged ?? "").split(",").filter(Boolean));
    which.replaceChildren(...view.counts.filter(([, , count]) => Number(count) > 0).map(([name, words, count]) => choice(String(name), `${words} ${Number(count).toLocaleString("en-US")}`, chosen)));
    first.hidden = view.first_at === null || view.first_at === undefined;
    if (document.activeElement !== search) search.value = now.find ?? "";
    const wanted = `${path(now, 0, 0)} ${view.num_rows} ${view.renames.join()}`;
    if (wanted !== asked) {
      asked = wanted;
      table.selected = -1;
      detail.replaceChildren(h("p", { class: "quiet" }, "Select a value: click it, or press j."));
      await table.reset();
      if (!now.judged && !now.find && !now.step) await toFirst();
    }
  }

  function choice(name: string, text: string, chosen: Set<string>): HTMLElement {
    return h("button", { type: "button", class: "choice", "aria-pressed": String(chosen.has(name)), onclick: () => {
      if (!chosen.delete(name)) chosen.add(name);
      change({ judged: [...chosen].join(","), row: "" });
    } }, judgement(name, text));
  }

  async function toFirst(): Promise<void> {
    const at = view?.first_at;
    if (at !== null && at !== undefined) await toRow(at);
  }

  async function toRow(at: number): Promise<void> {
    if (state().judged || state().find || state().step) {
      change({ judged: "", find: "", step: "" });
      await new Promise((done) => setTimeout(done, 300));
    }
    table.select(at, true);
    setTimeout(() => table.select(at, true), 300); // its page may have had to be fetched first
  }

  return {
    element, update, close: () => table.close(),
    key: (pressed) => { if (pressed === "n") { void toFirst(); return true; } return table.key(pressed); },
    keys: [["n", "first difference"], ["PgUp, PgDn", "a screen up or down"]],
    twins: () => [context.api("comparison"), context.api("comparison/rows")],
  };
}

function verdict(view: Schemas["ComparisonView"]): Node[] {
  const sides = h("span", { class: "sides" }, h("code", null, view.run), " against ", h("code", null, view.ref));
  if (view.story === null || view.story === undefined)
    return [h("p", { class: "status unknown" }, verdictMark(null), sides), h("h1", null, view.failed ? "Cannot be compared" : "Comparing…"), h("p", { class: "what" }, view.failed)];
  const { story } = view;
  const code = new Set(["first", "code", "in REF"]);
  return [
    h("p", { class: `status ${story.status}` }, verdictMark(story.status), sides),
    h("h1", { class: story.title.length > 120 ? "long" : "" }, story.title),
    story.title === story.headline ? document.createTextNode("") : h("p", { class: "what" }, story.headline),
    story.judged ? h("p", { class: "quiet" }, `Judged: ${story.judged}.`) : document.createTextNode(""),
    story.facts.length ? h("dl", { class: "pairs facts" }, ...story.facts.map(([label, text]) => h("div", null, h("dt", null, String(label)), h("dd", null, code.has(String(label)) ? h("code", null, String(text)) : String(text))))) : document.createTextNode(""),
    story.next.length ? h("div", { class: "next" }, h("h3", null, "Next"), h("ul", null, ...story.next.map((text) => h("li", null, prose(text.startsWith("trueline ") ? `\`${text}\`` : text))))) : document.createTextNode(""),
    h("p", { class: "quiet" }, [story.counts, ...story.steps].join(" ")),
    story.findings.length ? h("details", null, h("summary", null, counted(story.findings.length, "further finding")), h("ul", { class: "notes" }, ...story.findings.map((each) => h("li", null, h("b", null, `${each.severity} ${each.code}`), ` ${each.claim}`)))) : document.createTextNode(""),
    story.missing.length || story.one_sided.length || story.notes.length ? h("details", null, h("summary", null, "Without a twin, and notes"), h("ul", { class: "notes" }, ...[...story.missing, ...story.one_sided, ...story.notes].map((text) => h("li", null, text)))) : document.createTextNode(""),
  ];
}

function row(each: Schemas["RowView"], largest: number | null): HTMLElement {
  return h("div", { class: `row value ${each.judgement}`, title: each.site },
    judgement(each.judgement, each.said), h("span", { class: "name" }, each.site),
    bar(each, largest), h("span", { class: "right" }, each.times === null || each.times === undefined ? "" : `${number(each.times, 3)} ×`),
    h("span", { class: "right quiet" }, each.measured === null || each.measured === undefined ? "" : number(each.measured, 3)),
    h("span", { class: "right quiet" }, each.expected === null || each.expected === undefined ? "" : number(each.expected, 3)));
}

/** How far a difference is beyond what rounding explains, on a logarithmic scale; the line is that floor. */
function bar(each: Schemas["RowView"], largest: number | null): HTMLElement {
  const top = Math.max(Math.log10(largest ?? 10), 1);
  const at = (times: number) => Math.max(0, Math.min(1, (Math.log10(times) + 1) / (top + 1))) * 100;
  const floor = h("i", { class: "floor" });
  floor.style.left = `${at(1)}%`;
  const filled = h("i", { class: `j-${each.judgement}` });
  filled.style.width = each.times ? `${at(each.times)}%` : "0";
  return h("span", { class: "bar", title: "difference over what rounding explains" }, filled, floor);
}

function described(each: Schemas["RowView"]): Node[] {
  const pairs = [["Function", each.api], ["REF calls it", each.also_in], ["Shape", `${each.dtype} ${each.shape}${each.ref_dtype && each.ref_dtype !== each.dtype ? `, in REF ${each.ref_dtype}` : ""}`], ["Difference", each.measured === null || each.measured === undefined ? "not measured" : number(each.measured)], ["Rounding explains", each.expected === null || each.expected === undefined ? "–" : number(each.expected)], ["Times that", number(each.times)], ["Measured on", each.how], ["Code", each.where], ["Note", each.note]];
  return [h("h2", null, judgement(each.judgement, each.said)), h("p", null, h("code", null, each.site)), h("dl", { class: "pairs" }, ...pairs.filter(([, text]) => text).map(([name, text]) => h("div", null, h("dt", null, name), h("dd", null, text))))];
}
