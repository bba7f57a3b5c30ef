/** A module opened as a graph: a box for each call or module in it, lines for the values between them. */

import { h, s } from "../dom";
import type { Schemas } from "../source";
import { counted, number } from "../words";
import { valueColour } from "./colours";
import { HEIGHT, laidOut, type Layout, WIDTH } from "./layout";

type Graph = Schemas["Graph"];
type Node = Schemas["Node"];
const LETTERS = 25;
const MIN_SCALE = 0.75;
/** By which a press makes it larger or smaller. */
const STEP = 1.25;
/** Of more edges no shapes are written: they would cover each other. */
const MOST_SHAPES = 120;
/** This script, which a worker runs as well; there is no document in it. */
const SCRIPT = typeof document === "undefined" ? "" : ((document.currentScript as HTMLScriptElement | null)?.src ?? "");

export class GraphDrawing {
  readonly element = h("div", { class: "graph", tabindex: "0", role: "group", "aria-label": "Graph" });
  private shown: Graph | null = null;
  private boxes: SVGGElement[] = [];
  private drawing: SVGSVGElement | null = null;
  private size = { width: 0, height: 0 };
  private fitting = 1;
  /** Times as large as it fits. */
  private zoomed = 1;
  selected = -1;

  constructor(private readonly heard: { pick: (node: Node) => void; open: (node: Node) => void }) {
    this.element.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // a wheel alone scrolls
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? STEP : 1 / STEP);
    }, { passive: false });
    this.element.addEventListener("pointerdown", (event) => this.pan(event));
  }

  /** Makes it larger by `times`; 0 makes it as large as it fits. */
  zoom(times: number): void {
    this.zoomed = times ? Math.max(0.2, Math.min(this.zoomed * times, 4)) : 1;
    this.resize();
  }

  private resize(): void {
    const scale = this.fitting * this.zoomed;
    this.drawing?.setAttribute("width", String(this.size.width * scale));
    this.drawing?.setAttribute("height", String(this.size.height * scale));
  }

  /** Moves what is seen with the pointer, where it takes hold beside boxes. */
  private pan(event: PointerEvent): void {
    if ((event.target as Element).closest(".node") || event.button !== 0) return;
    const { element } = this;
    const from = { left: element.scrollLeft + event.clientX, top: element.scrollTop + event.clientY };
    const move = (moved: PointerEvent) => element.scrollTo(from.left - moved.clientX, from.top - moved.clientY);
    const end = () => { removeEventListener("pointermove", move); removeEventListener("pointerup", end); };
    addEventListener("pointermove", move);
    addEventListener("pointerup", end);
  }

  async show(graph: Graph): Promise<void> {
    this.shown = graph;
    const edges = graph.edges.flatMap((each) => [each.source, each.target]);
    let made: Layout;
    try {
      made = await laidOut({ nodes: graph.nodes.length, edges }, SCRIPT);
    } catch (error) {
      if (this.shown === graph) this.list(graph, error instanceof Error ? error.message : String(error));
      return;
    }
    if (this.shown !== graph) return;
    this.boxes = graph.nodes.map((node, at) => this.box(graph, node, at, made.x[at], made.y[at]));
    this.fitting = Math.max(MIN_SCALE, Math.min(1, this.element.clientWidth / made.width));
    this.size = { width: made.width, height: made.height };
    const lines = graph.edges.map((edge, at) => line(edge, made.routes[at]));
    const shapes = graph.edges.length > MOST_SHAPES ? [] : graph.edges.map((edge, at) => shape(edge, made.routes[at]));
    this.drawing = s("svg", { viewBox: `0 0 ${made.width} ${made.height}`, role: "presentation" }, ...lines, ...shapes, ...this.boxes);
    this.resize();
    this.element.replaceChildren(this.drawing);
    const first = graph.nodes.findIndex((node) => node.on_path || node.not_finite > 0 || node.found > 0);
    this.mark(false);
    this.see(this.selected >= 0 ? this.selected : Math.max(first, 0));
  }

  /** Selects the node of the call at a place of the outline, without telling. */
  choose(place: number | null): void {
    this.selected = place === null ? -1 : (this.shown?.nodes.findIndex((node) => node.place === place) ?? -1);
    this.mark(false);
  }

  move(by: number): void {
    if (this.shown === null || !this.boxes.length) return;
    this.pick(Math.max(0, Math.min(this.selected + by, this.boxes.length - 1)));
  }

  /** Opens the selected node; false where it cannot be opened. */
  open(): boolean {
    const node = this.shown?.nodes[this.selected];
    if (!node || node.kind !== "module") return false;
    this.heard.open(node);
    return true;
  }

  private pick(at: number): void {
    this.selected = at;
    this.mark(true);
    this.heard.pick(this.shown!.nodes[at]);
  }

  private mark(see: boolean): void {
    this.boxes.forEach((box, at) => box.classList.toggle("selected", at === this.selected));
    if (see) this.see(this.selected);
  }

  private see(at: number): void {
    this.boxes[at]?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  private list(graph: Graph, why: string): void {
    this.boxes = [];
    this.element.replaceChildren(h("p", { class: "nothing" }, why), h("ol", { class: "notes" }, ...graph.nodes.map((node) => h("li", null, h("button", { type: "button", class: "plain", onclick: () => (node.kind === "module" ? this.heard.open(node) : this.heard.pick(node)) }, node.name)))));
  }

  private box(graph: Graph, node: Node, at: number, x: number, y: number): SVGGElement {
    const end = node.kind === "input" || node.kind === "output";
    const [name, what] = words(graph, node);
    const band = s("rect", { class: "band", width: 7, height: HEIGHT, rx: 2 });
    band.style.fill = end ? "transparent" : valueColour(node.not_finite, graph.statistic, node.value ?? null, graph.scale ?? null, node.judgement);
    const classes = [node.kind, node.on_path && "on-path", node.found && "found", node.repeats > 1 && "folded", node.judgement && `j-${node.judgement}`].filter(Boolean).join(" ");
    return s("g", { class: `node ${classes}`, transform: `translate(${x - WIDTH / 2} ${y - HEIGHT / 2})`, "data-at": at, onclick: () => this.pick(at), ondblclick: () => this.open() },
      s("title", null, title(graph, node)),
      node.repeats > 1 ? s("rect", { class: "behind", x: 5, y: 5, width: WIDTH, height: HEIGHT, rx: 4 }) : null,
      s("rect", { class: "box", width: WIDTH, height: HEIGHT, rx: end ? HEIGHT / 2 : 4 }), band,
      s("text", { x: 14, y: what ? 16 : 23 }, cut(name)), what ? s("text", { x: 14, y: 30, class: "small" }, cut(what)) : null,
      ...[...node.hubs, ...(node.num_taking ? [at] : [])].slice(0, 6).map((hub, place) => mark(hub, WIDTH - 10 - place * 18, hub === at)));
  }
}

/** A circle with the number of a node that gives to so many that its lines are not drawn. */
function mark(hub: number, x: number, own: boolean): SVGGElement {
  return s("g", { class: own ? "hub own" : "hub", transform: `translate(${x} 0)` }, s("circle", { r: 8 }), s("text", { y: 3.5, "text-anchor": "middle" }, hub));
}

function line(edge: Schemas["Edge"], route: number[]): SVGPathElement {
  let d = "";
  const last = route.length - 2;
  const down = route[1] <= route[last + 1] ? 1 : -1;
  for (let at = 0; at < route.length; at += 2) {
    const x = route[at];
    const y = route[at + 1] + (at === 0 ? (down * HEIGHT) / 2 : at === last ? (-down * HEIGHT) / 2 : 0);
    if (at === 0) {
      d = `M${x} ${y}`;
      continue;
    }
    const [x0, y0] = [route[at - 2], route[at - 1] + (at === 2 ? (down * HEIGHT) / 2 : 0)];
    const middle = (y0 + y) / 2;
    d += `C${x0} ${middle} ${x} ${middle} ${x} ${y}`;
  }
  return s("path", { class: edge.on_path ? "edge on-path" : "edge", d }, s("title", null, `${counted(edge.values, "value")}${edge.shape ? `: ${edge.shape}` : ""}`));
}

/** The shape of what an edge carries, beside its beginning. */
function shape(edge: Schemas["Edge"], route: number[]): SVGTextElement | null {
  if (!edge.shape) return null;
  const down = route[1] <= route[route.length - 1] ? 1 : -1;
  return s("text", { class: "small shape", x: route[0] + 4, y: route[1] + down * (HEIGHT / 2 + 13) }, edge.shape);
}

function words(graph: Graph, node: Node): [string, string] {
  const [first, last] = [tail(graph, node.name), tail(graph, node.last_name)];
  const shown = graph.statistic === "judgement" ? node.judgement : graph.statistic === "not_finite" ? (node.not_finite ? `${node.not_finite.toLocaleString("en-US")} not finite` : "") : number(node.value, 3);
  if (node.kind === "input" || node.kind === "output") return [`${node.kind} ${node.name}`, ""];
  const kind = node.api.slice(node.api.lastIndexOf(".") + 1);
  if (node.repeats > 1) return [`${first} – ${last}`, `${node.repeats} equal${shown && shown !== "–" ? `, up to ${shown}` : ""}`];
  return [first, [kind === first ? "" : kind, shown === "–" ? "" : shown].filter(Boolean).join(", ")];
}

function tail(graph: Graph, name: string): string {
  return graph.module && name.startsWith(`${graph.module}.`) ? name.slice(graph.module.length + 1) : name;
}

const cut = (text: string): string => (text.length > LETTERS ? `${text.slice(0, 11)}…${text.slice(11 - LETTERS + 1)}` : text);

function title(graph: Graph, node: Node): string {
  const hubs = node.hubs.map((hub) => graph.nodes[hub]?.name ?? "").filter(Boolean);
  return [node.repeats > 1 ? `${node.name} to ${node.last_name}: ${node.repeats} equal` : node.name, node.api, node.num_calls > 1 ? counted(node.num_calls, "call") : "", hubs.length ? `takes from ${hubs.join(", ")}` : "", node.num_taking ? `gives to ${node.num_taking}` : ""].filter(Boolean).join("\n");
}
