/** One incident: the claim, the accused rank among the others, the cause with evidence for and against, what settles it. */

import { change, link, state, type State } from "../address";
import { command, copyButton, h, keepingOpen, prose } from "../dom";
import { evidenceGrowth } from "../draw/evidence";
import { Lines, type SeriesData, seriesAt } from "../draw/lines";
import { severity } from "../marks";
import type { Context, Screen } from "../screen";
import { query, type Schemas } from "../source";
import { counted } from "../words";
import { differing } from "./settings";

type View = Schemas["IncidentView"];
type Ask = { answer: string; post: () => Promise<Schemas["Recording"]> };

export function incident(context: Context): Screen {
  const element = h("div", { class: "incident-screen" });
  const lines = new Lines({ point: () => {}, zoom: (first, last) => change({ screen: "trend", n: "", first: String(first), last: String(last), signal: shown?.signal ?? "" }) });
  let shown: View | null = null;
  let drawn = "";
  /** What the job answered when it was asked to record: it stays while the Run grows and the screen is filled anew. */
  const ask = { answer: "", post: () => context.source.post<Schemas["Recording"]>(context.api("record")) };

  async function update(now: State): Promise<void> {
    const data = await context.source.json<View>(context.api(`incidents/${now.n ?? "1"}`));
    shown = data;
    const series = data.signal ? await seriesAt(context, seriesOf(data)) : null;
    const key = JSON.stringify(data);
    if (key !== drawn) {
      drawn = key;
      keepingOpen(element, () => element.replaceChildren(...parts(data, series, lines, ask, context.source.served)));
    }
    if (series) lines.show(series, data.step_first === null || data.step_first === undefined ? [] : [{ step: data.step_first, name: `since ${data.step_first}` }]);
  }

  function key(pressed: string): boolean {
    const at = shown?.number ?? 1;
    if (pressed === "j" || pressed === "k") {
      const next = at + (pressed === "j" ? 1 : -1);
      if (shown && next >= 1 && next <= shown.total) change({ n: String(next) });
      return true;
    }
    if (pressed === "Escape") {
      change({ screen: "", n: "" });
      return true;
    }
    return false;
  }

  return {
    element, update, key, close: () => lines.close(),
    keys: [["j, k", "next, previous incident"], ["Esc", "back to all incidents"]],
    twins: () => [context.api(`incidents/${state().n ?? "1"}`)],
  };
}

function seriesOf(data: View): string {
  return query("series", { signal: data.signal, first: data.draw_first ?? null, last: data.draw_last ?? null, columns: 600, pinned: data.ranks.slice(0, 4).join(","), lines: 64 });
}

function parts(data: View, series: SeriesData | null, lines: Lines, ask: Ask, served: boolean): Node[] {
  return [
    h("p", { class: "crumb" }, h("a", { href: link({ ...state(), screen: "", n: "" }) }, "All incidents"), data.total > 1 ? ` · ${data.number} of ${data.total}` : ""),
    h("p", { class: "status" }, severity(data.severity), h("span", null, data.where)),
    h("h1", null, data.claim),
    series ? chart(data, series, lines) : h("p", { class: "nothing" }, "This is about no number over steps, so there is nothing to draw."),
    data.growth ? evidenceGrowth(data.growth) : document.createTextNode(""),
    h("section", null, h("h2", null, data.headline), evidence(data)),
    h("section", null, h("h2", null, "What settles it"),
      h("ol", { class: "settles" }, ...data.next.map((text) => h("li", null, prose(text)))),
      h("p", null, command(data.explain)),
      record(data, ask, served)),
    h("section", null, h("h2", null, counted(data.findings.length, "finding")), ...data.findings.map(finding), data.findings.some((each) => each.sites.length) ? h("p", { class: "small quiet" }, `Sites: ${data.site_form}`) : null),
    data.recorded.length ? h("section", null, h("h2", null, "Recorded"), h("ul", { class: "notes" }, ...data.recorded.map((each) => h("li", null, h("a", { href: link({ run: state().run ?? "", screen: "step", step: String(each.step), rank: String(each.rank), at: each.name }) }, h("code", null, each.site)))))) : document.createTextNode(""),
    data.readings.length ? h("section", null, h("h2", null, `At step ${data.step_first}`), h("div", { class: "scroll" }, h("table", null,
      h("thead", null, h("tr", null, ...["", "accused", data.readings.some((each) => each.others_median) ? "median of the others" : ""].map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", null, ...data.readings.map((each) => h("tr", null, h("th", { scope: "row" }, each.title), h("td", null, each.accused), h("td", null, each.others_median))))))) : document.createTextNode(""),
    data.samples.length ? h("section", null, h("h2", null, `Samples of step ${data.step_first}`), ...data.samples.map(samples)) : document.createTextNode(""),
    h("section", null, h("h2", null, "Ranks that are set otherwise"),
      ...data.settings.map((claim) => h("p", null, claim)),
      data.differing.length ? differing(data.differing) : data.settings.length ? null : h("p", { class: "quiet" }, "All ranks have the same settings, versions and flags."),
      data.num_differing > data.differing.length ? h("p", { class: "quiet" }, `${data.num_differing - data.differing.length} more differ.`) : null),
  ];
}

function chart(data: View, series: SeriesData, lines: Lines): HTMLElement {
  const { head } = series;
  const some = data.ranks.length > 0 && data.ranks.length < head.num_ranks;
  const accused = some ? "" : head.num_ranks > 1 ? " No finding tells one rank from the others." : " There is one rank.";
  const band = head.num_ranks > 1 ? " The band reaches from the lowest to the highest rank, its inner part holds the middle half, dashed is the median. Drag to zoom in." : " Drag to zoom in.";
  const apart: State = some ? { shown: "apart", rows: "worst" } : {}; // there a bad one of many cannot be missed
  return h("figure", { class: "chart" },
    h("figcaption", null, h("b", null, head.title), h("span", { class: "quiet" }, accused, band, head.hidden ? ` Hidden: ${head.hidden}.` : "")),
    lines.element,
    h("p", { class: "small" }, h("a", { href: link({ run: state().run ?? "", screen: "trend", signal: data.signal, pin: data.ranks.slice(0, 4).join(","), first: String(data.draw_first ?? ""), last: String(data.draw_last ?? ""), ...apart }) }, "All ranks and steps of it")));
}

function evidence(data: View): HTMLElement {
  const listed = (title: string, texts: string[], css: string) => texts.length ? h("div", { class: css }, h("h3", null, title), h("ul", null, ...texts.map((text) => h("li", null, prose(text))))) : null;
  return h("div", { class: "evidence" },
    listed("For", data.supports, "for"), listed("Against", data.contradicts, "against"), listed("Or", data.alternatives, "or"),
    listed("Excluded", data.excluded, "excluded"), listed("Nobody looked at", data.missing, "missing"),
    !data.contradicts.length ? h("div", { class: "against" }, h("h3", null, "Against"), h("p", { class: "quiet" }, "Nothing that was looked at.")) : null);
}

function record(data: View, ask: Ask, served: boolean): HTMLElement {
  const said = h("p", { class: "small quiet", role: "status" }, prose(ask.answer || data.record_refused));
  const button = h("button", { type: "button", disabled: data.record_refused !== "" || !served || ask.answer !== "" }, "Record the next 3 steps");
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const { first, end } = await ask.post();
      ask.answer = `Asked the job to record steps ${first} to ${end - 1}; what it recorded appears under Step.`;
      said.textContent = ask.answer;
    } catch (error) {
      said.textContent = error instanceof Error ? error.message : String(error);
      button.disabled = false;
    }
  });
  return h("div", { class: "record" }, h("p", null, button, data.record_refused ? null : h("span", null, " or ", command(data.record))), said,
    data.intended ? h("p", null, "Meant to differ? In the plan: ", h("code", null, data.intended), copyButton(data.intended, "Copy the line for the plan")) : null);
}

/** The samples of a rank: which they are, their losses, and who else has them. */
function samples(of: Schemas["SampleView"]): HTMLElement {
  return h("details", null, h("summary", null, `Rank ${of.rank}: ${counted(of.num, "sample")}${of.samples.some(([, , others]) => others) ? ", some of them on other ranks, too" : ""}`),
    h("ul", { class: "notes" }, ...of.samples.map(([digest, loss, others]) => h("li", null, h("code", null, String(digest)), loss ? ` loss ${loss}` : "", others ? ` also on ${others}` : ""))),
    of.num > of.samples.length ? h("p", { class: "small quiet" }, `${counted(of.num - of.samples.length, "sample")} more. Equal samples have equal digests; \`trueline info RUN --sql\` has all.`) : null);
}

function finding(row: Schemas["FindingRow"]): HTMLElement {
  const pair = (name: string, text: string, more = "") => text ? h("div", null, h("dt", null, name), h("dd", null, text, more ? h("small", null, ` ${more}`) : null)) : null;
  return h("article", { class: "finding" },
    h("h3", null, severity(row.severity), " ", h("code", null, row.code)),
    h("p", null, row.claim),
    h("dl", { class: "pairs" },
      pair("Measured", row.measured, [row.expected ? `expected ${row.expected}` : "", row.interval, row.unit].filter(Boolean).join(" · ")),
      pair("Ranks", row.ranks), pair("Steps", row.steps, row.alarm ? `beyond chance at ${row.alarm}` : ""), pair("False alarms", row.false_alarms)),
    row.evidence.length || row.sites.length ? h("details", null, h("summary", null, "Evidence"),
      row.sites.length ? h("ul", { class: "sites" }, ...row.sites.map((site) => h("li", null, h("code", null, site)))) : null,
      h("dl", { class: "pairs" }, ...row.evidence.map(([name, text]) => pair(String(name), String(text))))) : null);
}
