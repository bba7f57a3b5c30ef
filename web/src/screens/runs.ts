/** Several Runs, a line each: the verdict, the loss, and how each was watched; and chosen ones over each other. */

import { change, link, numberOf, numbersOf, state, type State } from "../address";
import { h } from "../dom";
import { Overlaid, type Overlay } from "../draw/overlaid";
import { sparkline } from "../draw/sparkline";
import { verdictMark } from "../marks";
import type { Context, Screen } from "../screen";
import { query, type Schemas } from "../source";

type Overview = Schemas["Overview"];
interface Entry {
  run: Schemas["RunEntry"];
  data: Overview;
}

const WORDS: Record<string, string> = { out: "fault found", suspect: "probable fault", clear: "no fault found", unknown: "cannot tell" };
const ORDER = ["out", "suspect", "unknown", "clear"];
const SORTS: [string, string][] = [["", "newest first"], ["verdict", "gravest first"], ["name", "by name"]];
const SHOWS: [string, string][] = [["", "all"], ["live", "live"], ...ORDER.map((status): [string, string] => [status, WORDS[status]])];
const MOST_OVERLAID = 8;

export function runs(context: Context): Screen {
  const title = h("h1", null);
  const list = h("ol", { class: "runs" });
  const choose = (label: string, key: string, options: [string, string][]) => h("select", { "aria-label": label, onchange: (event: Event) => change({ [key]: (event.target as HTMLSelectElement).value, line: "" }) }, ...options.map(([value, text]) => h("option", { value }, text)));
  const sort = choose("Order", "sort", SORTS);
  const show = choose("Which Runs", "show", SHOWS);
  const signal = choose("What is drawn", "signal", []);
  const search = h("input", { type: "search", placeholder: "name, verdict", "aria-label": "Search Runs" });
  search.addEventListener("input", () => change({ find: search.value, line: "" }, true));
  const overlaid = new Overlaid();
  const over = h("section", null, h("p", { class: "filter" }, h("label", null, "Draw ", signal), h("button", { type: "button", onclick: () => change({ over: "" }) }, "None ×")), overlaid.element);
  const hint = h("p", { class: "small quiet" }, "Tick two to eight Runs to draw them over each other.");
  const element = h("div", { class: "runs-screen" }, title, h("p", { class: "filter" }, h("label", null, "Order ", sort), h("label", null, "show ", show), h("label", null, "with ", search)), over, list, hint);
  let lines: Entry[] = [];

  async function update(now: State): Promise<void> {
    const entries = await Promise.all(context.runs.map(async (run) => ({ run, data: await context.source.json<Overview>(`api/runs/${run.id}/overview`) })));
    title.textContent = headline(entries.map(({ data }) => data));
    sort.value = now.sort ?? "";
    show.value = now.show ?? "";
    if (document.activeElement !== search) search.value = now.find ?? "";
    lines = entries.filter((entry) => wanted(entry.data, now)).sort(before(now.sort ?? ""));
    const chosen = numbersOf(now, "over").slice(0, MOST_OVERLAID);
    list.replaceChildren(...lines.map((entry) => line(entry, chosen)));
    if (!lines.length) list.append(h("li", { class: "nothing" }, "No Run is like that."));
    list.children[numberOf(now, "line", -1)!]?.classList.add("selected");
    over.hidden = chosen.length < 2;
    hint.hidden = context.runs.length < 2;
    if (chosen.length >= 2) await draw(chosen, now);
  }

  /** The number that is chosen, of these Runs. */
  async function draw(chosen: number[], now: State): Promise<void> {
    const { signals } = await context.source.json<Schemas["Signals"]>(`api/runs/${chosen[0]}/signals`);
    const drawable = signals.filter((each) => each.of === "rank");
    if (signal.options.length !== drawable.length) signal.replaceChildren(...drawable.map((each) => h("option", { value: each.key }, each.title)));
    signal.value = drawable.some((each) => each.key === now.signal) ? now.signal : (drawable[0]?.key ?? "");
    const drawn = await Promise.all(chosen.map(async (id): Promise<Overlay | null> => {
      const run = context.runs.find((each) => each.id === id);
      if (!run) return null;
      try {
        const path = query(`api/runs/${id}/series`, { signal: signal.value, columns: 800, lines: 1 });
        return { name: run.name, series: await context.source.packed<Schemas["Series"]>(path) };
      } catch {
        return null; // a Run that does not have this number
      }
    }));
    overlaid.show(drawn.filter((each) => each !== null));
  }

  function line({ run, data }: Entry, chosen: number[]): HTMLElement {
    const to = (screen: string) => link({ run: String(run.id), screen });
    const box = h("input", { type: "checkbox", checked: chosen.includes(run.id), "aria-label": `Draw ${data.name} over others`, onchange: () => {
      const others = numbersOf(state(), "over").filter((each) => each !== run.id); // those of now: who ticks two at once means both
      change({ over: (box.checked ? [...others, run.id].slice(-MOST_OVERLAID) : others).join(",") });
    } });
    return h("li", null,
      h("div", null, h("p", { class: `status ${data.status ?? "unknown"}` }, context.runs.length > 1 ? box : null, verdictMark(data.status), h("a", { href: to("") }, data.name), data.live ? h("span", { class: "quiet pulse" }, "live") : null)),
      h("div", null, h("p", null, h("a", { href: to("") }, data.headline)), data.what ? h("p", { class: "quiet" }, data.what) : null,
        h("p", { class: "small quiet" }, data.facts.map(([name, text]) => `${name}: ${text}`).join(" · "))),
      h("div", { class: "spark" }, data.loss ? [h("a", { href: to("trend"), "aria-label": `Ranks × steps of ${data.name}` }, sparkline(data.loss, `The loss of ${data.name} over steps`)), h("small", null, "loss")] : h("small", null, "no loss seen")));
  }

  function key(pressed: string): boolean {
    const at = numberOf(state(), "line", -1)!;
    if (pressed === "j" || pressed === "k") {
      const next = Math.max(0, Math.min(at + (pressed === "j" ? 1 : -1), lines.length - 1));
      change({ line: String(next) }, true);
      list.children[next]?.scrollIntoView({ block: "nearest" });
    } else if (pressed === "Enter" && lines.length) change({ line: "", screen: "", run: String(lines[Math.max(at, 0)].run.id) });
    else return false;
    return true;
  }

  return { element, update, key, close: () => overlaid.close(), keys: [], twins: () => context.runs.map((run) => `api/runs/${run.id}/overview`) };
}

function wanted(data: Overview, now: State): boolean {
  const show = now.show ?? "";
  if (show === "live" ? !data.live : show !== "" && (data.status ?? "unknown") !== show) return false;
  return `${data.name} ${data.headline} ${data.what}`.toLowerCase().includes((now.find ?? "").toLowerCase());
}

function before(sort: string): (a: Entry, b: Entry) => number {
  const started = ({ data }: Entry) => String(data.facts.find(([name]) => name === "Started")?.[1] ?? "");
  const grave = ({ data }: Entry) => ORDER.indexOf(data.status ?? "unknown");
  if (sort === "name") return (a, b) => a.data.name.localeCompare(b.data.name, "en", { numeric: true });
  if (sort === "verdict") return (a, b) => grave(a) - grave(b) || started(b).localeCompare(started(a));
  return (a, b) => started(b).localeCompare(started(a));
}

/** How many Runs have which verdict, the gravest first. */
function headline(overviews: Overview[]): string {
  const parts = ORDER.map((status) => [WORDS[status], overviews.filter((each) => (each.status ?? "unknown") === status)] as const)
    .filter(([, some]) => some.length)
    .map(([words, some]) => `${words}: ${some.length > 4 ? `${some.length} Runs` : some.map((each) => each.name).join(", ")}`);
  const text = parts.join("; ");
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}
