/** The verdict, a line for each incident, what was not judged, and what watching covers and costs. */

import { change, link, state, type State } from "../address";
import { copyButton, h, keepingOpen, prose } from "../dom";
import { sparkline } from "../draw/sparkline";
import { severity, verdictMark } from "../marks";
import type { Context, Screen } from "../screen";
import type { Schemas } from "../source";
import { counted } from "../words";

type Incident = Schemas["IncidentLine"];
const WORDS: Record<string, string> = { out: "Fault found", suspect: "Probable fault", clear: "No fault found", unknown: "Cannot tell" };
const STATES: Record<string, string> = { judged: "judged", partly: "judged in part", open: "not judged", "not-applicable": "does not apply" };

export function triage(context: Context): Screen {
  const element = h("div", { class: "triage" });
  const head = h("section", { id: "verdict" });
  const filter = h("p", { class: "filter" });
  const list = h("ol", { class: "incidents" });
  const rest = h("div", null);
  const search = h("input", { type: "search", placeholder: "rank, check, words", "aria-label": "Search incidents" });
  const which = h("select", { "aria-label": "Which incidents" },
    h("option", { value: "" }, "all"), h("option", { value: "ongoing" }, "still so at the last look"), h("option", { value: "ended" }, "over"), h("option", { value: "muted" }, "muted"));
  filter.append(h("label", null, "Show ", which), h("label", null, "with ", search));
  which.addEventListener("change", () => change({ show: which.value, line: "" }));
  search.addEventListener("input", () => change({ find: search.value, line: "" }, true));
  element.append(head, h("section", { id: "incidents" }, h("h2", null, "Incidents"), filter, list), rest);
  let shown: Incident[] = [];
  let drawn = "";

  const open = (incident: Incident) => change({ screen: "incident", n: String(incident.number) });

  async function update(now: State): Promise<void> {
    const data = await context.source.json<Schemas["Triage"]>(context.api("triage"));
    which.value = now.show ?? "";
    if (document.activeElement !== search) search.value = now.find ?? "";
    const key = JSON.stringify([data, now]);
    if (key === drawn) return;
    drawn = key;
    head.replaceChildren(...verdict(data));
    const muted = new Set((now.mute ?? "").split(",").filter(Boolean));
    shown = data.incidents.filter((each) => wanted(each, now, muted));
    filter.hidden = data.incidents.length === 0;
    list.replaceChildren(...shown.map((each, at) => line(each, at === Number(now.line ?? -1), muted.has(each.key), () => open(each), muted)));
    const hidden = data.incidents.length - shown.length;
    if (hidden) list.append(h("li", { class: "nothing" }, `${counted(hidden, "incident")} hidden by the filter or muted.`));
    if (!data.incidents.length) list.append(h("li", { class: "nothing" }, data.status === null ? "Nothing is judged yet." : data.status === "unknown" ? "Nothing could be judged." : "None."));
    keepingOpen(rest, () => rest.replaceChildren(...below(data)));
  }

  function key(pressed: string): boolean {
    const at = Number(state().line ?? -1);
    if (pressed === "j" || pressed === "k") {
      const next = Math.max(0, Math.min(at + (pressed === "j" ? 1 : -1), shown.length - 1));
      if (shown.length) change({ line: String(next) }, true);
      list.children[next]?.scrollIntoView({ block: "nearest" });
      return true;
    }
    if (pressed === "Enter" && shown.length) {
      open(shown[Math.max(0, Math.min(at, shown.length - 1))]);
      return true;
    }
    if (pressed === "m" && shown[at]) {
      mute(shown[at].key);
      return true;
    }
    return false;
  }

  return { element, update, key, keys: [["m", "mute the incident, or unmute it"]], twins: () => [context.api("triage")] };
}

function wanted(incident: Incident, now: State, muted: Set<string>): boolean {
  const show = now.show ?? "";
  if (show === "muted" ? !muted.has(incident.key) : muted.has(incident.key)) return false;
  if (show === "ongoing" && !incident.lasts) return false;
  if (show === "ended" && incident.lasts) return false;
  const words = `${incident.title} ${incident.code} ${incident.where} ${incident.likely}`.toLowerCase();
  return words.includes((now.find ?? "").toLowerCase());
}

function mute(key: string): void {
  const muted = new Set((state().mute ?? "").split(",").filter(Boolean));
  if (!muted.delete(key)) muted.add(key);
  change({ mute: [...muted].join(",") });
}

function verdict(data: Schemas["Triage"]): Node[] {
  const progress = data.judging
    ? `Judging ${data.last_step === null || data.last_step === undefined ? "the Run" : `up to step ${data.last_step}`}…`
    : data.judged_to !== null && data.judged_to !== undefined && data.judged_to !== data.last_step ? `Judged up to step ${data.judged_to}.` : "";
  const at = data.last_step === null || data.last_step === undefined ? (data.live ? "no steps yet" : "no steps") : `step ${data.last_step.toLocaleString("en-US")}`;
  return [
    h("p", { class: `status ${data.status ?? "unknown"}` }, verdictMark(data.status), h("span", null, data.status ? WORDS[data.status] : data.failed ? "Cannot tell" : "Judging"),
      h("span", { class: "quiet" }, data.live ? h("span", { class: "pulse" }, "live") : null, data.live ? ` · ${at}` : ` ${at}, ended`), progress ? h("span", { class: "quiet", role: "status" }, progress) : null),
    h("h1", null, data.headline),
    data.gone ? h("p", { class: "refused" }, data.gone) : document.createTextNode(""),
    data.failed ? h("p", { class: "refused" }, `Judging failed: ${data.failed}`) : document.createTextNode(""),
    data.what ? h("p", { class: "what" }, data.what) : document.createTextNode(""),
    data.next.length ? h("div", { class: "next" }, h("h3", null, "Next"), h("ul", null, ...data.next.map((text) => h("li", null, prose(text))))) : document.createTextNode(""),
  ];
}

function line(incident: Incident, selected: boolean, muted: boolean, open: () => void, _: Set<string>): HTMLElement {
  const to = link({ ...state(), screen: "incident", n: String(incident.number) });
  return h("li", { class: `incident${selected ? " selected" : ""}`, onclick: (event: MouseEvent) => { if (!(event.target as Element).closest("a, button")) open(); } },
    h("div", { class: "who" }, severity(incident.severity), h("b", null, incident.where || "all ranks"), h("small", null, incident.until)),
    h("div", { class: "claim" }, h("a", { href: to }, incident.title), incident.likely ? h("p", { class: "quiet" }, incident.likely) : null,
      h("p", { class: "small quiet" }, h("code", null, incident.code), ` · ${counted(incident.num_findings, "finding")} · false alarms ${incident.false_alarms}`)),
    h("div", { class: "spark" }, incident.sparkline ? [sparkline(incident.sparkline, `${incident.signal} over steps: the accused against the others`), h("small", null, incident.signal.replaceAll("_", " "))] : h("small", null, "no number over steps")),
    h("div", { class: "does" },
      h("button", { type: "button", class: "plain", onclick: () => mute(incident.key) }, muted ? "unmute" : "mute"),
      copyButton(new URL(to, location.href).href, "Copy a link to this incident", "copy link")),
  );
}

function below(data: Schemas["Triage"]): Node[] {
  const open = data.questions.filter((each) => each.state === "open" || each.state === "partly");
  return [
    data.confirm.length ? h("section", { id: "confirm" }, h("h2", null, "To confirm"), h("dl", { class: "pairs" }, ...data.confirm.map((notice) => h("div", null, h("dt", null, notice.code), h("dd", null, notice.claim)))),
      h("p", { class: "quiet" }, "Meant? ", h("code", null, `trueline confirm ${data.path} ${data.confirm[0].code}`))) : document.createTextNode(""),
    data.status === null ? document.createTextNode("") : h("section", null, h("h2", null, "What was judged"),
      open.length ? h("p", null, `Not judged, or in part: ${open.map((each) => each.words).join("; ")}.`) : null,
      data.checked ? h("p", { class: "lead" }, data.checked) : null,
      data.questions.length ? h("details", null, h("summary", null, "Questions"), h("dl", { class: "pairs" }, ...data.questions.map((each) => h("div", null, h("dt", null, each.words), h("dd", { class: each.state }, STATES[each.state]))))) : null,
      data.unchecked.length ? h("details", null, h("summary", null, `${counted(data.unchecked.reduce((sum, each) => sum + each.checks.length, 0), "check")} did not run`), h("dl", { class: "pairs" }, ...data.unchecked.map((each) => h("div", null, h("dt", null, each.checks.join(", ")), h("dd", null, prose(each.why)))))) : null),
    data.training.length ? h("section", { id: "training" }, h("h2", null, "What the training did"), h("details", null, h("summary", null, `${counted(data.training.reduce((sum, area) => sum + area.lines.length, 0), "fact")}`),
      ...data.training.flatMap((area) => [h("h3", null, area.heading), h("ul", { class: "notes" }, ...area.lines.map((text) => h("li", null, text)))]), data.untold ? h("p", { class: "quiet" }, data.untold) : null)) : document.createTextNode(""),
    data.notices.length ? h("section", null, h("h2", null, data.status === null ? "Found while it ran" : "Worth knowing"), h("dl", { class: "pairs" }, ...data.notices.map((each) => h("div", null, h("dt", null, each.code), h("dd", null, each.claim))))) : document.createTextNode(""),
    h("section", null, h("h2", null, "Watched"), h("dl", { class: "pairs facts" }, h("div", null, h("dt", null, "Run"), h("dd", null, h("code", null, data.path))), ...data.facts.map(([name, text]) => h("div", null, h("dt", null, String(name)), h("dd", null, String(text)))))),
    data.notes.length ? h("section", null, h("h2", null, "Notes"), h("ul", { class: "notes" }, ...data.notes.map((text) => h("li", null, text)))) : document.createTextNode(""),
  ];
}
