/** The verdict beside the curve that it is about, what few trainings do, the incidents, what was asked of the Run. */

import { change, link, state, type State } from "../address";
import { command, copyButton, h, keepingOpen, prose } from "../dom";
import { Lines, type SeriesData, seriesAt } from "../draw/lines";
import { sparkline } from "../draw/sparkline";
import { severity, verdictMark } from "../marks";
import type { Context, Screen } from "../screen";
import { query, type Schemas } from "../source";
import { counted } from "../words";

type Incident = Schemas["IncidentLine"];
type Overview = Schemas["Overview"];
type Picture = Schemas["Picture"];
type Question = Schemas["Question"];
const STATES: Record<string, string> = { judged: "fine", partly: "fine as far as it was looked at", open: "not looked at", "not-applicable": "does not apply" };
const SIGNS: Record<string, string> = { faulty: "■", judged: "✓", partly: "◐", open: "–", "not-applicable": "–" };

/** Fewer incidents are seen at a glance. */
const FEW = 3;

export function overview(context: Context): Screen {
  const element = h("div", { class: "overview" });
  const head = h("section", { id: "verdict" });
  const confirm = h("div", null);
  const lines = new Lines({ point: () => {}, zoom: (first, last) => change({ screen: "trend", signal: picture?.signal ?? "", first: String(first), last: String(last) }) }, { height: 230, named: true });
  let picture: Picture | null = null;
  const filter = h("p", { class: "filter" });
  const list = h("ol", { class: "incidents" });
  const incidents = h("section", { id: "incidents" }, h("h2", null, "Incidents"), filter, list);
  const rest = h("div", null);
  const search = h("input", { type: "search", placeholder: "rank, check, words", "aria-label": "Search incidents" });
  const which = h("select", { "aria-label": "Which incidents" },
    h("option", { value: "" }, "all"), h("option", { value: "ongoing" }, "still so at the last look"), h("option", { value: "ended" }, "over"), h("option", { value: "muted" }, "muted"));
  filter.append(h("label", null, "Show ", which), h("label", null, "with ", search));
  which.addEventListener("change", () => change({ show: which.value, line: "" }));
  search.addEventListener("input", () => change({ find: search.value, line: "" }, true));
  element.append(head, confirm, incidents, rest);
  let shown: Incident[] = [];
  let drawn = "";

  const open = (incident: Incident) => change({ screen: "incident", n: String(incident.number) });

  async function update(now: State): Promise<void> {
    const data = await context.source.json<Overview>(context.api("overview"));
    which.value = now.show ?? "";
    if (document.activeElement !== search) search.value = now.find ?? "";
    const key = JSON.stringify([data, now]);
    if (key === drawn) return;
    drawn = key;
    const series = data.picture ? await seriesAt(context, seriesOf(data.picture)) : null;
    picture = data.picture ?? null;
    head.replaceChildren(...verdict(data, lines, series));
    confirm.replaceChildren(...[toConfirm(data)].filter((each) => each !== null));
    const onset = data.picture?.onset;
    if (series) lines.show(series, onset === null || onset === undefined ? [] : [{ step: onset, name: `since ${onset}` }]);
    const muted = new Set((now.mute ?? "").split(",").filter(Boolean));
    shown = data.incidents.filter((each) => wanted(each, now, muted));
    incidents.hidden = data.incidents.length === 0 && data.status !== null;
    filter.hidden = data.incidents.length < FEW && !now.show && !now.find;
    list.replaceChildren(...shown.map((each, at) => line(each, at === Number(now.line ?? -1), muted.has(each.key), () => open(each))));
    const hidden = data.incidents.length - shown.length;
    if (hidden) list.append(h("li", { class: "nothing" }, `${counted(hidden, "incident")} hidden by the filter or muted.`));
    if (!data.incidents.length) list.append(h("li", { class: "nothing" }, data.status === null ? "Nothing is judged yet." : ""));
    keepingOpen(rest, () => rest.replaceChildren(...below(data).filter((each) => each !== null)));
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

  return { element, update, key, close: () => lines.close(), keys: [["m", "mute the incident, or unmute it"]], twins: () => [context.api("overview")] };
}

function seriesOf(drawn: Picture): string {
  return query("series", { signal: drawn.signal, first: drawn.first ?? null, last: drawn.last ?? null, columns: 400, pinned: drawn.ranks.join(","), lines: 64 });
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

function verdict(data: Overview, lines: Lines, series: SeriesData | null): Node[] {
  const known = data.last_step !== null && data.last_step !== undefined;
  const at = known ? `step ${data.last_step!.toLocaleString("en-US")}` : data.live ? "no steps yet" : "no steps";
  const progress = data.judging ? `judging ${known ? `up to step ${data.last_step}` : "the Run"}…`
    : data.judged_to !== null && data.judged_to !== undefined && data.judged_to !== data.last_step ? `judged up to step ${data.judged_to}` : "";
  const status = data.status ?? "unknown";
  const refused = (text: string) => (text ? h("p", { class: "refused" }, text) : null);
  return [h("div", { class: data.picture ? "verdict" : "" },
    h("div", null,
      h("p", { class: "quiet small", role: "status" }, h("b", null, data.name), " · ", data.live ? h("span", { class: "pulse" }, "live") : null, data.live ? ` · ${at}` : `${at}, ended`, progress ? ` · ${progress}` : ""),
      h("h1", { class: `headline ${status}` }, verdictMark(data.status), h("span", null, data.headline)),
      refused(data.gone), refused(data.failed && `Judging failed: ${data.failed}`),
      data.what ? h("p", { class: "what" }, prose(data.what)) : null,
      data.next.length ? h("div", { class: "next" }, h("h3", null, "Next"), h("ul", null, ...data.next.map((text) => h("li", null, prose(text))))) : null,
      h("p", { class: "facts small quiet" }, h("code", null, data.path), ...data.facts.map(([name, text]) => ` · ${name}: ${text}`))),
    data.picture && series ? picture(data.picture, series, lines) : null)];
}

function picture(drawn: Picture, series: SeriesData, lines: Lines): HTMLElement {
  const to = drawn.incident === null || drawn.incident === undefined ? link({ ...state(), screen: "trend", signal: drawn.signal }) : link({ ...state(), screen: "incident", n: String(drawn.incident) });
  const band = series.head.num_ranks > 1 ? " of all ranks: the band reaches from the lowest to the highest, dashed is the median" : "";
  return h("figure", { class: "chart" }, h("figcaption", null, h("a", { href: to }, series.head.title), h("span", { class: "quiet" }, band)), lines.element);
}

function line(incident: Incident, selected: boolean, muted: boolean, open: () => void): HTMLElement {
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

/** How far each question was answered, a sign first; the checks behind each are a click away. */
function asked(data: Overview): HTMLElement {
  const words = (question: Question) => (question.faulty ? "a fault was found" : STATES[question.state]);
  const sign = (question: Question) => (question.faulty ? "faulty" : question.state);
  const order = ["faulty", "open", "partly", "judged", "not-applicable"];
  const sorted = [...data.questions].sort((a, b) => order.indexOf(sign(a)) - order.indexOf(sign(b)));
  return h("ul", { class: "questions" }, ...sorted.map((question) => h("li", { class: sign(question) },
    h("span", { class: "sign", "aria-hidden": "true" }, SIGNS[sign(question)]),
    question.checks.length
      ? h("details", null, h("summary", null, `${question.words}: ${words(question)}`), h("p", { class: "small quiet" }, question.checks.join(", ")))
      : h("span", null, `${question.words}: ${words(question)}`))));
}

function below(data: Overview): (Node | null)[] {
  const section = (title: string, id: string, ...content: (Node | null)[]) => h("section", { id }, h("h2", null, title), ...content);
  const notices = (listed: Schemas["Notice"][]) => h("dl", { class: "pairs" }, ...listed.map((notice) => h("div", null, h("dt", null, notice.code), h("dd", null, prose(notice.claim)))));
  const count = data.training.reduce((sum, area) => sum + area.lines.length, 0);
  return [
    data.status === null ? null : section("What was judged", "judged", data.questions.length ? asked(data) : h("p", { class: "nothing" }, "Nothing could be judged."),
      data.unchecked.length ? h("details", null, h("summary", null, `${counted(data.unchecked.reduce((sum, each) => sum + each.checks.length, 0), "check")} did not run`), h("dl", { class: "pairs" }, ...data.unchecked.map((each) => h("div", null, h("dt", null, each.checks.join(", ")), h("dd", null, prose(each.why)))))) : null),
    data.training.length ? section("What the training did", "training", h("details", null, h("summary", null, counted(count, "fact")),
      ...data.training.flatMap((area) => [h("h3", null, area.heading), h("ul", { class: "notes" }, ...area.lines.map((text) => h("li", null, text)))]), data.untold ? h("p", { class: "quiet" }, data.untold) : null)) : null,
    data.notices.length ? section(data.status === null ? "Found while it ran" : "Worth knowing", "notices", notices(data.notices)) : null,
    data.notes.length ? section("Notes", "notes", h("ul", { class: "notes" }, ...data.notes.map((text) => h("li", null, text)))) : null,
  ];
}

/** What few healthy trainings do, and the line that says that it is meant. */
function toConfirm(data: Overview): HTMLElement | null {
  if (!data.confirm.length) return null;
  return h("section", { id: "confirm" }, h("h2", null, "To confirm: few healthy trainings do this"),
    h("ul", { class: "confirm" }, ...data.confirm.map((notice, at) => h("li", null, h("p", null, prose(notice.claim)), h("p", { class: "small quiet" }, "Meant? ", command(data.confirm_commands[at]))))));
}
