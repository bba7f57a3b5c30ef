/** The graph of the Step screen: which module is opened, what is folded, and the path of a fault to the loss. */

import { change, state, type State } from "../address";
import { h } from "../dom";
import { GraphDrawing } from "../draw/graph";
import type { Context } from "../screen";
import { query, type Schemas } from "../source";
import { counted } from "../words";

const WHOLE = "/";

export class OpenedModule {
  private readonly crumbs = h("p", { class: "crumb" });
  private readonly said = h("p", { class: "small quiet", role: "status" });
  private readonly micro = h("select", { "aria-label": "Micro-batch", onchange: () => change({ micro: this.micro.value, call: "" }) });
  private readonly faults = h("span", { class: "choices" });
  private readonly micros = h("label", null, "micro-batch ", this.micro);
  private readonly fold = h("label", null, h("input", { type: "checkbox", onchange: (event: Event) => change({ unfold: (event.target as HTMLInputElement).checked ? "1" : "", begin: "" }) }), "unfold equal modules");
  private readonly drawing = new GraphDrawing({
    pick: (node) => change({ call: node.place < 0 ? "" : String(node.place) }, true),
    open: (node) => change(node.repeats > 1 ? { unfold: "1", begin: "" } : { in: node.name, call: "", begin: "" }),
  });
  private readonly zooms = h("span", { class: "choices", role: "group", "aria-label": "Size of the graph" }, ...([["−", "Smaller", 0.8], ["fit", "As large as it fits", 0], ["+", "Larger", 1.25]] as const).map(([text, label, times]) => h("button", { type: "button", class: "choice", "aria-label": label, onclick: () => this.drawing.zoom(times) }, text)));
  private asked = "";
  private graph: Schemas["Graph"] | null = null;

  readonly element = h("div", null, this.crumbs, h("p", { class: "filter" }, this.micros, this.fold, this.faults, this.zooms), this.said, this.drawing.element);

  constructor(private readonly context: Context) {
    this.micros.hidden = this.fold.hidden = true; // until it is known what there is
  }

  /** What boxes are coloured by. */
  get statistic(): string {
    return this.graph?.statistic ?? "";
  }

  path(now: State, step: string, rank: string): string {
    const opened: Record<string, string> = now.in === undefined ? {} : { module: now.in === WHOLE ? "" : now.in };
    const kept = query("graph", { step, rank, micro: now.micro ?? "", statistic: now.by ?? "", search: now.find ?? "", unfolded: now.unfold ? "true" : "", begin: now.begin ?? "", fault: now.fault ?? "" });
    return this.context.api("module" in opened ? `${kept}&${new URLSearchParams(opened)}` : kept);
  }

  async update(now: State, step: string, rank: string): Promise<void> {
    const path = this.path(now, step, rank);
    if (path !== this.asked) {
      this.asked = path;
      const graph = await this.context.source.json<Schemas["Graph"]>(path);
      if (path !== this.asked) return;
      this.graph = graph;
      this.tell(graph, now);
      this.drawing.selected = graph.nodes.findIndex((node) => String(node.place) === now.call);
      await this.drawing.show(graph);
    } else this.drawing.choose(now.call ? Number(now.call) : null);
  }

  key(pressed: string): boolean {
    if (pressed === "j" || pressed === "k") this.drawing.move(pressed === "j" ? 1 : -1);
    else if (pressed === "Enter") return this.drawing.open();
    else if (pressed === "u" && this.graph?.module) change({ in: this.graph.around.at(-2) ?? WHOLE, call: "", begin: "" });
    else if (pressed === "+" || pressed === "-") this.drawing.zoom(pressed === "+" ? 1.25 : 0.8);
    else if (pressed === "n") change({ fault: state().fault ? "" : "not-finite", begin: "" });
    else return false;
    return true;
  }

  private tell(graph: Schemas["Graph"], now: State): void {
    const steps: [string, string][] = [["whole step", WHOLE], ...graph.around.map((name): [string, string] => [name, name])];
    this.crumbs.replaceChildren(...steps.flatMap(([text, to], at) => {
      const here = to === (graph.module || WHOLE);
      return [at ? " › " : "", here ? h("b", null, text) : h("button", { type: "button", class: "plain", onclick: () => change({ in: to, call: "", begin: "" }) }, text)];
    }));
    this.micros.hidden = graph.micros.length < 2;
    this.micro.replaceChildren(...graph.micros.map((each) => h("option", { value: each }, String(each))));
    this.micro.value = String(graph.micro);
    const box = this.fold.querySelector("input")!;
    box.checked = Boolean(now.unfold);
    this.fold.hidden = !graph.folded && !now.unfold;
    const wanted: [string, string][] = [["not-finite", "Path of NaN and infinities"], ...(this.context.run.ref ? [["difference", "Path of the first difference"] as [string, string]] : [])];
    this.faults.replaceChildren(...wanted.map(([name, text]) => h("button", { type: "button", class: "choice", "aria-pressed": String(now.fault === name), onclick: () => change({ fault: now.fault === name ? "" : name, begin: "" }) }, text)));
    const hubs = graph.nodes.filter((node) => node.num_taking).length;
    const turn = (begin: number, text: string) => h("button", { type: "button", class: "plain", onclick: () => change({ begin: String(Math.max(begin, 0)) }) }, text);
    this.said.replaceChildren(
      [graph.fault_path?.said ?? "", `${counted(graph.nodes.length, "node")} of the forward pass in the order of execution.`,
        graph.folded ? `${counted(graph.folded, "equal module")} folded.` : "",
        hubs ? `${counted(hubs, "node")} with a number in a circle give${hubs === 1 ? "s" : ""} to so many that circles take the place of lines.` : ""].filter(Boolean).join(" "),
      ...(graph.before ? [" ", turn(graph.before - graph.nodes.length, `${counted(graph.before, "node")} before`)] : []),
      ...(graph.after ? [" ", turn(graph.before + graph.nodes.length, `${counted(graph.after, "node")} after`)] : []));
  }
}
