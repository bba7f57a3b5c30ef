/** Where the nodes of a graph go: layers by longest path, orders by barycentres, in a worker. Linear in what is drawn. */

export interface Wanted {
  nodes: number;
  /** From and to, one after the other; nodes are in the order of execution, in which edges point forwards. */
  edges: number[];
}

export interface Layout {
  /** Centres of the nodes, in pixels. */
  x: number[];
  y: number[];
  width: number;
  height: number;
  /** Of each edge the points that it goes through, x and y one after the other. */
  routes: number[][];
}

export const WIDTH = 176;
export const HEIGHT = 38;
const GAP = 22;
const LAYER = 74;
const LANE = 16;
const SWEEPS = 4;
const STRAIGHTENINGS = 12;
/** Points that long edges may have beside nodes; beyond them they are drawn straight. */
const MAX_BENDS = 6000;
const DEADLINE_MS = 5000;

export function layout({ nodes, edges }: Wanted): Layout {
  const layers = layersOf(nodes, edges);
  const above: number[][] = Array.from({ length: nodes }, () => []);
  const below: number[][] = Array.from({ length: nodes }, () => []);
  const layerOf = [...layers];
  const bends: number[][] = [];
  let spare = MAX_BENDS;
  for (let at = 0; at < edges.length; at += 2) {
    const [from, to] = [edges[at], edges[at + 1]];
    const [low, high] = [Math.min(layers[from], layers[to]), Math.max(layers[from], layers[to])];
    const own: number[] = [];
    let before = layers[from] <= layers[to] ? from : to;
    const last = before === from ? to : from;
    if (high - low - 1 <= spare) {
      spare -= Math.max(high - low - 1, 0);
      for (let layer = low + 1; layer < high; layer++) {
        const bend = layerOf.push(layer) - 1;
        above.push([]);
        below.push([]);
        join(before, bend);
        own.push(bend);
        before = bend;
      }
    }
    join(before, last);
    bends.push(last === to ? own : own.reverse());
  }
  function join(upper: number, lower: number): void {
    below[upper].push(lower);
    above[lower].push(upper);
  }
  const rows: number[][] = Array.from({ length: Math.max(...layerOf, 0) + 1 }, () => []);
  layerOf.forEach((layer, node) => rows[layer].push(node));
  const place = ordered(rows, above, below, layerOf.length);
  const x = straightened(rows, above, below, place, nodes);
  const left = Math.min(...x.map((centre, node) => centre - half(node, nodes)), 0);
  for (let node = 0; node < x.length; node++) x[node] += GAP - left;
  const y = layerOf.map((layer) => layer * LAYER + HEIGHT / 2 + GAP);
  const routes = bends.map((own, edge) => [edges[2 * edge], ...own, edges[2 * edge + 1]].flatMap((node) => [x[node], y[node]]));
  const right = Math.max(...x.map((centre, node) => centre + half(node, nodes)), WIDTH);
  return { x: x.slice(0, nodes), y: y.slice(0, nodes), width: right + GAP, height: rows.length * LAYER + GAP, routes };
}

/** The layer of each node: below all that give it values; what takes none stands just above what it gives to. */
function layersOf(nodes: number, edges: number[]): number[] {
  const takes: number[][] = Array.from({ length: nodes }, () => []);
  const gives: number[][] = Array.from({ length: nodes }, () => []);
  for (let at = 0; at < edges.length; at += 2) {
    if (edges[at] >= edges[at + 1]) continue; // of a module that is called again: it leads back
    takes[edges[at + 1]].push(edges[at]);
    gives[edges[at]].push(edges[at + 1]);
  }
  const layers = new Array<number>(nodes).fill(0);
  for (let node = 0; node < nodes; node++) {
    if (takes[node].length) layers[node] = 1 + Math.max(...takes[node].map((each) => layers[each]));
    else if (!gives[node].length && node) layers[node] = layers[node - 1];
  }
  for (let node = nodes - 1; node >= 0; node--)
    if (!takes[node].length && gives[node].length) layers[node] = Math.max(0, Math.min(...gives[node].map((each) => layers[each])) - 1);
  return layers;
}

const half = (node: number, nodes: number): number => (node < nodes ? WIDTH : LANE) / 2;

/** Of each node its place in its row, after sweeps that put it at the mean place of its neighbours above or below. */
function ordered(rows: number[][], above: number[][], below: number[][], count: number): number[] {
  const place = new Array<number>(count).fill(0);
  const number = (row: number[]) => row.forEach((node, at) => { place[node] = at; });
  rows.forEach(number);
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const near = sweep % 2 ? below : above;
    for (const row of sweep % 2 ? [...rows].reverse() : rows) {
      const mean = new Map(row.map((node) => [node, near[node].length ? near[node].reduce((sum, each) => sum + place[each], 0) / near[node].length : place[node]]));
      row.sort((a, b) => mean.get(a)! - mean.get(b)! || place[a] - place[b]);
      number(row);
    }
  }
  return place;
}

/** Centres along a row: as near to the mean of a node's neighbours as those beside it allow. */
function straightened(rows: number[][], above: number[][], below: number[][], place: number[], nodes: number): number[] {
  const x = place.map((at) => at * (WIDTH + GAP));
  const apart = (a: number, b: number) => half(a, nodes) + half(b, nodes) + GAP;
  for (let turn = 0; turn < STRAIGHTENINGS; turn++) {
    for (const row of turn % 2 ? [...rows].reverse() : rows) {
      const want = row.map((node) => {
        const near = turn < STRAIGHTENINGS - 2 ? (turn % 2 ? below[node] : above[node]) : [...above[node], ...below[node]];
        return near.length ? near.reduce((sum, each) => sum + x[each], 0) / near.length : x[node];
      });
      const right = [...want];
      const left = [...want];
      for (let at = 1; at < row.length; at++) right[at] = Math.max(want[at], right[at - 1] + apart(row[at - 1], row[at]));
      for (let at = row.length - 2; at >= 0; at--) left[at] = Math.min(want[at], left[at + 1] - apart(row[at], row[at + 1]));
      row.forEach((node, at) => { x[node] = (right[at] + left[at]) / 2; });
    }
  }
  return x;
}

/** Of the worker: answers each graph that it is sent with its layout. */
export function layOutWhatComes(): void {
  addEventListener("message", ({ data }: MessageEvent<Wanted & { id: number }>) => postMessage({ id: data.id, made: layout(data) }));
}

let worker: Worker | null = null;
let sent = 0;
const known = new Map<string, Layout>();

/** The layout of a graph; graphs of equal structure, as layers of one model are, share one. Rejects after 5 s. */
export async function laidOut(wanted: Wanted, script: string): Promise<Layout> {
  const key = `${wanted.nodes} ${wanted.edges.join()}`;
  const before = known.get(key);
  if (before) return before;
  const made = await new Promise<Layout>((done, failed) => {
    worker ??= new Worker(script);
    const asked = worker;
    const id = ++sent;
    const deadline = setTimeout(() => {
      asked.terminate();
      worker = null;
      failed(new Error("The graph is too large to be laid out; its calls are listed."));
    }, DEADLINE_MS);
    asked.addEventListener("message", function heard({ data }: MessageEvent<{ id: number; made: Layout }>) {
      if (data.id !== id) return;
      clearTimeout(deadline);
      asked.removeEventListener("message", heard);
      done(data.made);
    });
    asked.postMessage({ ...wanted, id });
  });
  if (known.size > 100) known.clear();
  known.set(key, made);
  return made;
}
