/** A recorded step as an outline of its calls, in the order of execution, with what was recorded of the selected one. */

import { change, link, numberOf, state, type State } from "../address";
import { h } from "../dom";
import { valueColour } from "../draw/colours";
import type { Context, Screen } from "../screen";
import { query, type Schemas } from "../source";
import { Table } from "../table";
import { counted, number } from "../words";
import { OpenedModule } from "./opened";

type Calls = Schemas["Calls"];
const STATISTICS: [string, string][] = [["not_finite", "not finite"], ["largest", "largest magnitude"], ["rms", "root mean square"], ["zeros", "share of zeros"]];
const PHASES: Record<string, string> = { fwd: "forward", bwd: "backward", param: "parameters", grad: "gradients", opt: "optimizer", comm: "communication", save: "saved" };

const HEAD = () => h("div", { class: "row call heads", "aria-hidden": "true" }, h("i", { class: "swatch" }), h("span", { class: "phase" }, ""), h("span", { class: "name" }, "call"), h("span", { class: "shape" }, "output"), h("span", { class: "right" }, "statistic"), h("span", { class: "source" }, "line of code"));

export function step(context: Context): Screen {
  const pick = (label: string, key: string) => h("select", { "aria-label": label, onchange: (event: Event) => change({ [key]: (event.target as HTMLSelectElement).value, call: "", at: "", begin: "" }) });
  const steps = pick("Step", "step");
  const ranks = pick("Rank", "rank");
  const phases = pick("Phase", "phase");
  const colour = pick("Colour by", "by");
  const search = h("input", { type: "search", placeholder: "module, function", "aria-label": "Search calls" });
  const said = h("p", { class: "small quiet", role: "status" });
  const first = h("button", { type: "button", onclick: () => toFirst() }, "First not finite");
  const detail = h("aside", { class: "detail", "aria-label": "The selected call" });
  const looks: [string, string][] = [["", "list"], ["graph", "graph"]];
  const look = h("span", { class: "choices", role: "group", "aria-label": "Shown as" }, ...looks.map(([value, text]) => h("button", { type: "button", class: "choice", onclick: () => change({ view: value }) }, text)));
  const opened = new OpenedModule(context);
  colour.append(...[...STATISTICS, ...(context.run.ref ? [["judgement", "judgement"]] : [])].map(([value, text]) => h("option", { value }, text)));
  search.addEventListener("input", () => change({ find: search.value, call: "", at: "", begin: "" }, true));
  let head: Calls | null = null;
  /** Whoever comes to one call sees all others, too. */
  const coming = state().call || state().at ? "none" : "equal";
  let asked = "";
  let details = "";

  const table = new Table<Schemas["Call"]>({
    fetch: async (offset, limit) => {
      const now = state();
      const found = await context.source.json<Calls>(context.api(path(now, offset, limit)));
      if (offset === 0 || head === null) head = found;
      return { total: found.total, rows: found.calls };
    },
    row: (call) => row(call, head!, () => fold(call.name)),
    pick: (call) => { if (call) change({ call: String(call.place) }, true); },
    failed: (error) => { said.textContent = error instanceof Error ? error.message : String(error); },
  });
  const list = h("div", null, HEAD(), table.element);
  const phase = h("label", null, "phase ", phases);
  const element = h("div", { class: "step" },
    h("h1", null, "Step"),
    h("p", { class: "filter" }, look, h("label", null, "Step ", steps), h("label", null, "rank ", ranks), phase, h("label", null, "colour by ", colour), h("label", null, "with ", search), first),
    said, h("div", { class: "split" }, h("div", null, list, opened.element), detail));

  function path(now: State, offset: number, limit: number): string {
    return query("calls", { step: steps.value, rank: ranks.value, offset, limit, search: now.find ?? "", phase: now.phase ?? "", statistic: now.by ?? "", at: now.at ?? "", closed: now.find ? "none" : (now.closed ?? coming) });
  }

  /** Folds the calls of a module away, or shows them. */
  function fold(name: string): void {
    const closed = new Set(head?.closed ?? []);
    if (!closed.delete(name)) closed.add(name);
    change({ closed: [...closed].join(",") || "none" }, true);
  }

  /** Which row the call at a place has: of what was fetched, or as the server says; -1 where it is folded away. */
  async function rowOf(place: number): Promise<number> {
    const at = table.find((call) => call.place === place);
    if (at >= 0) return at;
    const found = await context.source.json<Calls>(context.api(`${path(state(), 0, 1)}&index=${place}`));
    return found.found_at ?? -1;
  }

  async function select(place: number, centre = false): Promise<void> {
    const at = await rowOf(place);
    if (at >= 0) table.select(at, centre);
  }

  async function update(now: State): Promise<void> {
    const recorded = await context.source.json<Schemas["RecordedSteps"]>(context.api("steps"));
    fill(steps, recorded.steps, now.step);
    fill(ranks, recorded.ranks, now.rank);
    if (document.activeElement !== search) search.value = now.find ?? "";
    if (!recorded.steps.length) {
      said.textContent = "No step was recorded. `trueline plan RUN --set preset=mix --set steps=FIRST:END` records some while the job runs.";
      return;
    }
    const asGraph = now.view === "graph";
    list.hidden = said.hidden = phase.hidden = asGraph;
    opened.element.hidden = !asGraph;
    [...look.children].forEach((each, at) => each.setAttribute("aria-pressed", String(looks[at][0] === (now.view ?? ""))));
    if (asGraph) {
      first.hidden = true;
      await opened.update(now, steps.value, ranks.value);
      colour.value = opened.statistic;
      return showDetails(now);
    }
    const wanted = JSON.stringify([context.api(path(now, 0, 0)), steps.value, ranks.value]);
    if (wanted !== asked) {
      asked = wanted;
      head = null;
      table.selected = -1;
      await table.reset();
      tell(now);
      const chosen = numberOf(now, "call", null);
      if (chosen !== null && !now.find && !now.phase) await select(chosen, true);
      else if (now.at && head !== null) {
        const at = (head as Calls).found_at;
        if (at !== null && at !== undefined) table.select(at, true);
      }
    } else {
      const chosen = numberOf(now, "call", null);
      if (chosen !== null && !now.find && !now.phase && table.rowAt(table.selected)?.place !== chosen) await select(chosen);
    }
    await showDetails(now);
  }

  function tell(now: State): void {
    if (head === null) return;
    const known = head as Calls;
    phases.replaceChildren(h("option", { value: "" }, "all"), ...known.phases.map((name) => h("option", { value: name }, PHASES[name] ?? name)));
    phases.value = now.phase ?? "";
    colour.value = known.statistic;
    first.hidden = known.num_not_finite === 0;
    said.textContent = `${known.total === known.num_calls ? counted(known.num_calls, "call") : `${known.total.toLocaleString("en-US")} of ${counted(known.num_calls, "call")}`}. ${known.closed.length ? `Calls of ${counted(known.closed.length, "module")} are folded away. ` : ""}${known.num_not_finite ? `${counted(known.num_not_finite, "call")} with values that are not finite; masks of −inf are among them.` : "All values are finite."}`;
  }

  function toFirst(): void {
    const at = head?.first_not_finite;
    if (at !== null && at !== undefined) table.select(at, true);
    else change({ find: "", phase: "", closed: "none" });
  }

  async function showDetails(now: State): Promise<void> {
    const place = numberOf(now, "call", null);
    const key = `${steps.value} ${ranks.value} ${place}`;
    if (key === details) return;
    details = key;
    table.link(new Map());
    if (place === null) return detail.replaceChildren(h("p", { class: "quiet" }, "Select a call: click it, or press j."));
    const found = await context.source.json<Schemas["CallDetails"]>(context.api(query(`calls/${place}`, { step: steps.value, rank: ranks.value })));
    if (key !== details) return;
    const whole = !now.find && !now.phase;
    const linked = (calls: Schemas["Neighbour"][], way: number) => calls.map((each): [number, number] => [table.find((call) => call.place === each.place), way]).filter(([at]) => at >= 0);
    table.link(new Map(whole ? [...linked(found.takes, -1), ...linked(found.gives, 1)] : []));
    detail.replaceChildren(...described(found), ...neighbours(found, now), ...matched(context, found.call.name));
  }

  function key(pressed: string): boolean {
    if (pressed === "g") { change({ view: state().view === "graph" ? "" : "graph" }); return true; }
    if (state().view === "graph") return opened.key(pressed);
    if (pressed === "n") { toFirst(); return true; }
    const call = table.rowAt(table.selected);
    if ((pressed === "ArrowLeft" || pressed === "ArrowRight") && call?.opens) {
      if (head!.closed.includes(call.name) === (pressed === "ArrowRight")) fold(call.name);
      return true;
    }
    return table.key(pressed);
  }

  return {
    element, update, key, close: () => table.close(),
    keys: [["g", "list or graph"], ["n", "first call with values that are not finite; in the graph, their path to the loss"], ["u", "in the graph, the module around"], ["+ −", "in the graph, larger or smaller; so does the wheel with Ctrl, and dragging moves it"], ["← →", "fold the module away, or show its calls"], ["PgUp, PgDn", "a screen up or down"]],
    twins: () => [state().view === "graph" ? opened.path(state(), steps.value, ranks.value) : context.api(query("calls", { step: steps.value, rank: ranks.value }))],
  };
}

function fill(select: HTMLSelectElement, values: number[], wanted: string | undefined): void {
  if (select.options.length !== values.length) select.replaceChildren(...values.map((value) => h("option", { value }, String(value))));
  select.value = wanted !== undefined && values.includes(Number(wanted)) ? wanted : String(values[0] ?? "");
}

function row(call: Schemas["Call"], head: Calls, fold: () => void): HTMLElement {
  const closed = head.closed.includes(call.name);
  const sign = call.opens && !state().find ? h("button", { type: "button", class: "fold", "aria-expanded": String(!closed), "aria-label": `Calls in ${call.name}`, onclick: (event: Event) => { event.stopPropagation(); fold(); } }, closed ? "▸" : "▾") : null;
  const swatch = h("i", { class: "swatch", title: shownNumber(call, head.statistic) });
  swatch.style.background = valueColour(call.not_finite, head.statistic, numberOfCall(call, head.statistic), head.scale ?? null, call.judgement);
  const cut = call.name.lastIndexOf(".") + 1;
  // its modules are in the rows above, but where a search leaves these out
  const path = cut && state().find ? h("span", { class: "quiet" }, call.name.slice(0, cut)) : null;
  const name = h("span", { class: "name" }, sign, path, leaf(call.name, path === null ? 0 : cut) || call.api, call.call ? h("small", null, `#${call.call}`) : null);
  name.style.paddingLeft = `${Math.min(call.depth, 24) * 14}px`;
  return h("div", { class: `row call ${call.kind}`, title: `${call.name}\n${call.api}` }, swatch, h("span", { class: "phase" }, call.phase), name,
    h("span", { class: "shape quiet" }, call.shape ? `${call.dtype} ${call.shape}` : ""),
    h("span", { class: "right" }, shownNumber(call, head.statistic)),
    h("span", { class: "source quiet" }, shortly(call.source)));
}

/** The last part of a name, with the one before where it is a number alone: `h.0`. */
function leaf(name: string, from: number): string {
  return from ? name.slice(from) : (/[^.]*\.\d+$/.exec(name)?.[0] ?? name.slice(name.lastIndexOf(".") + 1));
}

function shownNumber(call: Schemas["Call"], statistic: Calls["statistic"]): string {
  if (statistic === "not_finite") return call.not_finite ? `${call.not_finite.toLocaleString("en-US")} not finite` : "";
  return statistic === "judgement" ? call.judgement : number(numberOfCall(call, statistic), 3);
}

function numberOfCall(call: Schemas["Call"], statistic: Calls["statistic"]): number | null {
  return statistic === "judgement" ? null : (call[statistic] ?? null);
}

/** The file without its folders. */
function shortly(source: string): string {
  return source.replace(/^.*[\\/]/, "");
}

/** What gave a call its values and what takes those it makes; its weights; and the same collective on other ranks. */
function neighbours(found: Schemas["CallDetails"], now: State): Node[] {
  const listed = (title: string, calls: Schemas["Neighbour"][], css: string) => calls.length ? [h("h3", null, title), h("ul", { class: `links ${css}` }, ...calls.map((each) => h("li", null, h("button", { type: "button", class: "plain", onclick: () => change({ call: String(each.place), find: "", phase: "" }) }, each.name))))] : [];
  const weights = found.call.kind === "module" && found.call.name ? [h("p", null, h("a", { href: link({ ...now, find: found.call.name, phase: "param", call: "" }) }, "Its parameters"), " · ", h("a", { href: link({ ...now, find: found.call.name, phase: "grad", call: "" }) }, "their gradients"))] : [];
  const others = found.ranks.length ? [h("p", null, "The same collective on ", ...found.ranks.slice(0, 16).flatMap((rank, at) => [at ? ", " : "", h("a", { href: link({ ...now, rank: String(rank), call: "", at: `${found.call.phase}/${found.call.name}#${found.call.call}` }) }, `rank ${rank}`)]))] : [];
  return [...listed("Takes from", found.takes, "takes"), ...listed("Gives to", found.gives, "gives"), ...weights, ...others];
}

/** Whether a call makes values that are not finite, passes them on or absorbs them; "" where all are finite. */
function overflow(found: Schemas["CallDetails"]): string {
  const bad = (slot: RegExp) => found.values.some((value) => slot.test(value.slot) && value.numbers.some(([name, count]) => /^(nan|pos_inf|neg_inf)$/.test(String(name)) && Number(count) > 0));
  const [takes, gives] = [bad(/^(in|kw)/), bad(/^out/)];
  return gives ? (takes ? "passes on what is not finite" : "makes values that are not finite of finite ones") : takes ? "takes values that are not finite and returns finite ones" : "";
}

/** Takes the name of a call to be matched by hand with one of the other Run, and leads to where names are matched. */
function matched(context: Context, name: string): Node[] {
  const compared = context.runs.find((each) => each.ref);
  if (!compared || !name || !(context.run.is_ref || context.run === compared)) return [];
  const [key, of] = context.run.is_ref ? ["theirs", "REF"] : ["mine", "RUN"];
  const now = state();
  const to = h("a", { href: "" }, "Match names");
  const lead = (more: State) => to.setAttribute("href", link({ run: String(compared.id), screen: "compare", mine: now.mine ?? "", theirs: now.theirs ?? "", map: now.map ?? "", ...more }));
  lead({});
  return [h("p", { class: "filter" }, h("button", { type: "button", onclick: () => { change({ [key]: name }, true); lead({ [key]: name }); } }, `Match this name of ${of}`), to)];
}

function described(found: Schemas["CallDetails"]): Node[] {
  const { call } = found;
  const names = ["numel", "nan", "pos_inf", "neg_inf", "zero", "min", "max", "mean", "rms"];
  return [
    h("h2", null, call.name || call.api),
    h("dl", { class: "pairs" }, ...[["Function", call.api], ["Phase", PHASES[call.phase] ?? call.phase], ["Module", found.module], ["Flags", found.flags], ["Overflow", overflow(found)], ["Micro-batch", String(call.micro)], ["Call", `${call.call}, place ${call.place}`]].filter(([, text]) => text).map(([name, text]) => h("div", null, h("dt", null, name), h("dd", null, text)))),
    found.arguments.length ? h("div", null, h("h3", null, "Arguments"), h("dl", { class: "pairs" }, ...found.arguments.map(([name, text]) => h("div", null, h("dt", null, String(name)), h("dd", null, h("code", null, String(text))))))) : document.createTextNode(""),
    h("div", { class: "scroll" }, h("table", null, h("thead", null, h("tr", null, ...["value", "", ...names.map((name) => name.replace("pos_inf", "+inf").replace("neg_inf", "−inf"))].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", null, ...found.values.map((value) => h("tr", { title: value.site }, h("th", { scope: "row" }, value.slot), h("td", { class: "quiet" }, `${value.dtype} ${value.shape}`, value.note ? h("small", null, ` ${value.note}`) : null),
        ...names.map((name) => {
          const text = value.numbers.find(([each]) => each === name)?.[1];
          return h("td", { class: "right" }, typeof text === "string" ? text : number(text as number | null));
        })))))),
    found.frames.length ? h("details", null, h("summary", null, `Called from ${found.frames[0]}`), h("ol", { class: "frames" }, ...found.frames.map((frame) => h("li", null, h("code", null, frame))))) : h("p", { class: "quiet" }, "No call stack was taken."),
  ];
}
