/** The frame: which Run and screen are shown, what is live, and the keys that work everywhere. */

import { change, link, numberOf, state, type State } from "./address";
import { h, perFrame, typing } from "./dom";
import { layOutWhatComes } from "./draw/layout";
import type { Context, Screen } from "./screen";
import { comparison } from "./screens/comparison";
import { incident } from "./screens/incident";
import { overview } from "./screens/overview";
import { runs } from "./screens/runs";
import { settings } from "./screens/settings";
import { step } from "./screens/step";
import { trend } from "./screens/trend";
import { Enclosed, type Grown, Server, type Schemas, type Source } from "./source";
import "./page.css";

const SCREENS: Record<string, { title: string; make: (context: Context) => Screen }> = {
  runs: { title: "Runs", make: runs },
  overview: { title: "Overview", make: overview },
  incident: { title: "Incident", make: incident },
  trend: { title: "Ranks × steps", make: trend },
  step: { title: "Step", make: step },
  compare: { title: "Compare", make: comparison },
  settings: { title: "Settings", make: settings },
};
const KEYS: [string, string][] = [
  ["j, k", "next, previous line"],
  ["Enter", "open the line"],
  ["/", "search"],
  ["1 – 6", "screen"],
  ["[ ]", "previous, next Run"],
  ["?", "keys"],
];

class Frame {
  private readonly nav = h("ul", null);
  private readonly runs = h("select", { "aria-label": "Run" });
  private readonly live = h("p", { class: "live", role: "status" });
  private readonly main = h("main", { id: "main", tabindex: "-1" });
  private readonly foot = h("footer", null);
  private readonly help = h("dialog", { class: "keys", "aria-label": "Keys" });
  private readonly entries: Schemas["RunEntry"][] = [];
  private shown: Screen | null = null;
  private key = "";
  private showing = false;
  private stale = false;
  private lost = false;
  private version = "";
  private told = "";

  constructor(private readonly source: Source) {}

  async start(): Promise<void> {
    await this.list();
    this.runs.addEventListener("change", () => change({ ...fresh(), run: this.runs.value, screen: state().screen === "trend" ? "trend" : "" }));
    const root = document.getElementById("page")!;
    root.replaceChildren(
      h("a", { class: "skip", href: "#main", onclick: (event: Event) => { event.preventDefault(); this.main.focus(); } }, "Skip to the content"),
      h("header", { class: "top" }, h("p", { class: "brand" }, "Trueline"), this.runs, h("nav", { "aria-label": "Screens" }, this.nav), this.live),
      this.main, this.foot, this.help,
    );
    addEventListener("hashchange", perFrame(() => void this.show()));
    addEventListener("keydown", (event) => this.press(event));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => void this.rebuild());
    document.addEventListener("visibilitychange", () => { if (!document.hidden && this.stale) void this.show(); });
    await this.show();
    this.source.listen((grown) => this.heard(grown), (lost) => { this.lost = lost; this.tell(); });
  }

  private get run(): Schemas["RunEntry"] {
    return this.entries[numberOf(state(), "run", 0) ?? 0] ?? this.entries[0];
  }

  private async rebuild(): Promise<void> {
    this.key = "";
    await this.show();
  }

  private async show(): Promise<void> {
    if (this.showing) {
      this.stale = true;
      return;
    }
    this.showing = true;
    do {
      this.stale = false;
      await this.showOnce(state());
    } while (this.stale && !document.hidden);
    this.showing = false;
  }

  private async showOnce(now: State): Promise<void> {
    const name = now.screen in SCREENS ? now.screen : this.first(now);
    const key = `${name} ${this.run.id}`;
    if (key !== this.key) {
      this.shown?.close?.();
      this.shown = SCREENS[name].make(this.context());
      this.key = key;
      this.main.replaceChildren(this.shown.element);
      scrollTo(0, 0);
    }
    this.runs.value = String(this.run.id);
    this.runs.hidden = this.entries.length < 2 || name === "runs";
    document.title = `${SCREENS[name].title}${name === "runs" ? "" : ` · ${this.run.name}`} · Trueline`;
    this.tellScreens(name);
    try {
      await this.shown!.update(now);
      this.main.querySelector(":scope > .refused")?.remove();
    } catch (error) {
      this.main.querySelector(":scope > .refused")?.remove();
      this.main.prepend(h("p", { class: "refused", role: "alert" }, error instanceof Error ? error.message : String(error)));
    }
    this.tell();
  }

  private context(): Context {
    const run = this.run;
    return { source: this.source, run, runs: this.entries, api: (path) => `api/runs/${run.id}/${path}` };
  }

  /** The screen where the address names none: of several Runs all of them, until one is chosen. */
  private first(now: State): string {
    if (this.entries.filter((each) => !each.is_ref).length > 1 && now.run === undefined) return "runs";
    return this.run.screens.find((each) => each === "overview") ?? this.run.screens[0];
  }

  private offered(): [string, string][] {
    return Object.entries(SCREENS)
      .filter(([name]) => (name === "runs" ? this.entries.length > 1 : (this.run.screens as string[]).includes(name)))
      .map(([name, { title }]) => [name, title]);
  }

  private tellScreens(current: string): void {
    const told = JSON.stringify([current, state().run, this.offered(), this.shown?.twins()]);
    if (told === this.told) return;
    this.told = told;
    this.nav.replaceChildren(
      ...this.offered().map(([name, title]) =>
        h("li", null, h("a", { href: link(this.leadingTo(name)), "aria-current": (name === current || (name === "overview" && current === "incident")) && "page" }, title))),
    );
    const twins = (this.shown?.twins() ?? []).map((path) => this.source.twin(path)).filter(Boolean);
    this.foot.replaceChildren(
      h("p", null, `Trueline ${this.version}. `, this.source.served ? "Served from this machine; nothing is sent anywhere. " : "This file holds all it shows; it loads nothing and sends nothing. ",
        ...twins.flatMap((path) => [h("a", { href: path }, "JSON"), " "]),
        h("button", { type: "button", class: "plain", onclick: () => this.showKeys() }, "Keys (?)")),
    );
  }

  /** Asks which Runs there are, and offers them. */
  private async list(): Promise<void> {
    const { runs, version } = await this.source.json<Schemas["Runs"]>("api/runs");
    this.entries.splice(0, this.entries.length, ...runs); // screens hold the list
    this.version = version;
    this.runs.replaceChildren(...runs.map((run) => h("option", { value: run.id }, run.is_ref ? `${run.name} (reference)` : run.name)));
  }

  private heard(grown: Grown): void {
    if (grown.run >= this.entries.length) {
      void this.list().then(() => this.show());
      return;
    }
    if (grown.tables.includes("records")) {
      const entry = this.entries[grown.run];
      if (entry && !entry.screens.includes("step")) this.entries[grown.run] = { ...entry, screens: [...entry.screens, "step"] };
    }
    if (grown.run !== this.run.id && this.key !== `runs ${this.run.id}`) return;
    if (document.hidden) this.stale = true; // what nobody sees is not asked for
    else void this.show();
  }

  /** Says whether what is shown still grows. */
  private tell(): void {
    this.live.classList.toggle("lost", this.lost);
    this.live.textContent = this.lost ? "No connection to the server; what is shown may be old." : "";
  }

  private showKeys(): void {
    const keys = [...KEYS, ...(this.shown?.keys ?? [])];
    this.help.replaceChildren(h("h2", null, "Keys"), h("dl", null, ...keys.map(([key, does]) => h("div", null, h("dt", null, h("kbd", null, key)), h("dd", null, does)))), h("form", { method: "dialog" }, h("button", { type: "submit" }, "Close")));
    this.help.showModal();
  }

  private press(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey || this.help.open) return;
    if (typing(event.target)) {
      if (event.key === "Escape") (event.target as HTMLElement).blur();
      return;
    }
    if (event.key === "Enter" && event.target instanceof HTMLElement && event.target.closest("a, button, summary")) return;
    if (this.shown?.key?.(event.key)) event.preventDefault();
    else if (event.key === "/") {
      const search = this.main.querySelector<HTMLInputElement>("input[type=search]");
      if (search) { event.preventDefault(); search.focus(); search.select(); }
    } else if (event.key === "?") this.showKeys();
    else if (event.key === "[" || event.key === "]") {
      const next = this.run.id + (event.key === "]" ? 1 : -1);
      if (this.entries[next]) change({ ...fresh(), run: String(next), screen: state().screen === "trend" ? "trend" : "" });
    } else if (/^[1-9]$/.test(event.key)) {
      const to = this.offered()[Number(event.key) - 1];
      if (to) change(this.leadingTo(to[0]));
    }
  }

  private leadingTo(screen: string): State {
    return screen === "runs" ? { ...fresh(), screen } : { ...fresh(), run: String(this.run.id), screen: screen === "overview" ? "" : screen };
  }
}

/** All keys of the state that are there now, to be left out, but names that are being matched. */
function fresh(): State {
  return Object.fromEntries(Object.keys(state()).filter((key) => !["mine", "theirs", "map"].includes(key)).map((key) => [key, ""]));
}

async function begin(): Promise<void> {
  const enclosed = document.getElementById("answers");
  const source = enclosed ? await Enclosed.from(enclosed.textContent!.trim()) : new Server();
  await new Frame(source).start();
}

if (typeof document === "undefined") layOutWhatComes(); // this script is that of its worker, too
else begin().catch((error: unknown) => {
  document.getElementById("page")!.replaceChildren(h("p", { class: "boot", role: "alert" }, error instanceof Error ? error.message : String(error)));
});

