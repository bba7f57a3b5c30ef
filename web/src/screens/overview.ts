/** Several Runs, a line each: the verdict, and how each was watched. */

import { change, link, numberOf, state, type State } from "../address";
import { h } from "../dom";
import { verdictMark } from "../marks";
import type { Context, Screen } from "../screen";
import type { Schemas } from "../source";

const WORDS: Record<string, string> = { out: "fault found", suspect: "probable fault", clear: "no fault found", unknown: "cannot tell" };
const ORDER = ["out", "suspect", "unknown", "clear"];

export function overview(context: Context): Screen {
  const title = h("h1", null);
  const list = h("ol", { class: "runs" });
  const element = h("div", { class: "overview" }, title, list);

  async function update(now: State): Promise<void> {
    const found = await Promise.all(context.runs.map((run) => context.source.json<Schemas["Triage"]>(`api/runs/${run.id}/triage`)));
    title.textContent = headline(found);
    list.replaceChildren(...found.map((data, at) => line(data, context.runs[at].id)));
    list.children[numberOf(now, "line", -1)!]?.classList.add("selected");
  }

  function key(pressed: string): boolean {
    const at = numberOf(state(), "line", -1)!;
    if (pressed === "j" || pressed === "k") {
      const next = Math.max(0, Math.min(at + (pressed === "j" ? 1 : -1), context.runs.length - 1));
      change({ line: String(next) }, true);
      list.children[next]?.scrollIntoView({ block: "nearest" });
    } else if (pressed === "Enter") change({ line: "", screen: "", run: String(context.runs[Math.max(at, 0)].id) });
    else return false;
    return true;
  }

  return { element, update, key, keys: [], twins: () => context.runs.map((run) => `api/runs/${run.id}/triage`) };
}

/** How many Runs have which verdict, the gravest first. */
function headline(found: Schemas["Triage"][]): string {
  const parts = ORDER.map((status) => [WORDS[status], found.filter((each) => (each.status ?? "unknown") === status)] as const)
    .filter(([, runs]) => runs.length)
    .map(([words, runs]) => `${words}: ${runs.length > 4 ? `${runs.length} Runs` : runs.map((each) => each.name).join(", ")}`);
  const text = parts.join("; ");
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}

function line(data: Schemas["Triage"], run: number): HTMLElement {
  const to = (screen: string) => link({ run: String(run), screen });
  return h("li", null,
    h("p", { class: `status ${data.status ?? "unknown"}` }, verdictMark(data.status), h("a", { href: to("") }, data.name), data.live ? h("span", { class: "quiet pulse" }, "live") : null),
    h("div", null, h("p", null, h("a", { href: to("") }, data.headline)), data.what ? h("p", { class: "quiet" }, data.what) : null,
      h("p", { class: "small quiet" }, data.facts.map(([name, text]) => `${name}: ${text}`).join(" · "), " ", h("a", { href: to("trend") }, "Ranks × steps"))));
}
