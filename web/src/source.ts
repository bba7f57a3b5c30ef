/** Where answers come from: the server, or the file that the page is in. */

import type { components } from "./api";

export type Schemas = components["schemas"];
type Numbers = Float32Array | Int32Array | Uint8Array;

/** An answer with arrays: facts, and numbers by name. */
export interface Packed<Head> {
  head: Head;
  shape: Record<string, number[]>;
  float: (name: string) => Float32Array;
  int: (name: string) => Int32Array;
  byte: (name: string) => Uint8Array;
}

export interface Grown {
  run: number;
  tables: string[];
  last_step: number | null;
  live: boolean;
}

export interface Source {
  /** Whether there is a server behind it, which may have more to say later. */
  readonly served: boolean;
  json<T>(path: string): Promise<T>;
  packed<Head>(path: string): Promise<Packed<Head>>;
  /** Asks for something to be done. */
  post<T>(path: string): Promise<T>;
  /** Calls `heard` for each table that grew, and `lost` with whether the server answers. */
  listen(heard: (grown: Grown) => void, lost: (gone: boolean) => void): void;
  /** The address of the JSON twin of an answer; "" where there is none. */
  twin(path: string): string;
}

/** The words of the server on why it does not answer. */
export class Refused extends Error {}

interface Kept {
  tag: string;
  body: ArrayBuffer;
}

export class Server implements Source {
  readonly served = true;
  private readonly token = new URLSearchParams(location.search).get("token") ?? "";
  private readonly kept = new Map<string, Kept>();

  async json<T>(path: string): Promise<T> {
    return JSON.parse(new TextDecoder().decode(await this.get(path))) as T;
  }

  async packed<Head>(path: string): Promise<Packed<Head>> {
    return unpack<Head>(await this.get(path));
  }

  async post<T>(path: string): Promise<T> {
    const response = await fetch(path, { method: "POST", headers: this.headers() });
    if (!response.ok) throw new Refused(await said(response));
    return (await response.json()) as T;
  }

  twin(path: string): string {
    return `${path}${path.includes("?") ? "&" : "?"}token=${encodeURIComponent(this.token)}`;
  }

  async listen(heard: (grown: Grown) => void, lost: (gone: boolean) => void): Promise<void> {
    for (let pause = 1; ; pause = Math.min(pause * 2, 30)) {
      try {
        const response = await fetch("api/events", { headers: this.headers(), cache: "no-store" });
        if (!response.ok || response.body === null) throw new Refused(await said(response));
        lost(false);
        pause = 1;
        await told(response.body.getReader(), heard);
      } catch {
        lost(true);
      }
      await new Promise((done) => setTimeout(done, pause * 1000));
    }
  }

  private headers(): Record<string, string> {
    return { authorization: `Bearer ${this.token}` };
  }

  private async get(path: string): Promise<ArrayBuffer> {
    const known = this.kept.get(path);
    const headers = { ...this.headers(), ...(known ? { "if-none-match": known.tag } : {}) };
    let response: Response;
    try {
      response = await fetch(path, { headers, cache: "no-store" });
    } catch {
      throw new Refused("The server does not answer: was `trueline view` ended, or the tunnel closed?");
    }
    if (response.status === 304 && known) return known.body;
    if (!response.ok) throw new Refused(await said(response));
    const body = await response.arrayBuffer();
    this.kept.delete(path);
    this.kept.set(path, { tag: response.headers.get("etag") ?? "", body });
    this.forget();
    return body;
  }

  /** Keeps the answers that were used last, 32 MiB at most, so that hours of a live Run do not fill the memory. */
  private forget(): void {
    let bytes = 0;
    for (const [path, { body }] of [...this.kept].reverse()) {
      bytes += body.byteLength;
      if (bytes > 32 * 2 ** 20) this.kept.delete(path);
    }
  }
}

/** Of a page that holds its answers: a gzipped JSON object of paths, each with text or base64. */
export class Enclosed implements Source {
  readonly served = false;
  private constructor(private readonly answers: Record<string, { json?: unknown; base64?: string }>) {}

  static async from(base64: string): Promise<Enclosed> {
    const stream = new Blob([bytesOf(base64)]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Enclosed(JSON.parse(await new Response(stream).text()));
  }

  async json<T>(path: string): Promise<T> {
    const found = this.find(path).json;
    return (path.includes("/comparison/rows") ? filtered(found as Rows, new URL(path, "file:///").searchParams) : found) as T;
  }

  async packed<Head>(path: string): Promise<Packed<Head>> {
    return unpack<Head>(bytesOf(this.find(path).base64 ?? "").buffer as ArrayBuffer);
  }

  async post<T>(): Promise<T> {
    throw new Refused("This file has no job behind it. Use the command.");
  }

  twin(): string {
    return "";
  }

  listen(): void {}

  /** Of answers about several steps that of the nearest one. */
  private nearest(prefix: string, step: number): { json?: unknown; base64?: string } | undefined {
    const steps = Object.keys(this.answers).filter((key) => key.startsWith(prefix)).map((key) => Number(key.slice(prefix.length)));
    if (!steps.length) return undefined;
    return this.answers[`${prefix}${steps.reduce((best, each) => (Math.abs(each - step) < Math.abs(best - step) ? each : best))}`];
  }

  /** The answer to `path`, or the one that has all steps where only a part of them was asked for. */
  private find(path: string): { json?: unknown; base64?: string } {
    const url = new URL(path, "file:///");
    const asked = url.searchParams;
    const step = Number(asked.get("step"));
    for (const key of ["first", "last", "columns", "pinned", "lines", "step", "rows", ...FILTERS]) asked.delete(key);
    const key = decodeURIComponent(`${url.pathname.slice(1)}?${asked}`.replace(/\?$/, ""));
    const found = this.answers[key] ?? this.nearest(`${key}?step=`, step);
    if (found === undefined) throw new Refused("This file does not hold that. `trueline view` on the Run shows it.");
    return found;
  }
}

interface Rows {
  offset: number;
  total: number;
  rows: Schemas["RowView"][];
}

const FILTERS = ["judgement", "search", "offset", "limit"];

/** The page of rows that the server would answer with. */
function filtered(all: Rows, asked: URLSearchParams): Rows {
  const judgements = (asked.get("judgement") ?? "").split(",").filter(Boolean);
  const search = (asked.get("search") ?? "").toLowerCase();
  const step = asked.get("step");
  const kept = all.rows.filter((row) => (!judgements.length || judgements.includes(row.judgement)) && (step === null || row.step === Number(step))
    && (row.site.toLowerCase().includes(search) || row.api.toLowerCase().includes(search)));
  const offset = Number(asked.get("offset") ?? 0);
  return { offset, total: kept.length, rows: kept.slice(offset, offset + Number(asked.get("limit") ?? 200)) };
}

async function told(reader: ReadableStreamDefaultReader<Uint8Array>, heard: (grown: Grown) => void): Promise<void> {
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Refused("The server ended.");
    text += decoder.decode(value, { stream: true });
    const events = text.split("\n\n");
    text = events.pop() ?? "";
    for (const event of events) if (event.startsWith("data: ")) heard(JSON.parse(event.slice(6)) as Grown);
  }
}

async function said(response: Response): Promise<string> {
  const text = await response.text();
  try {
    const { error, detail } = JSON.parse(text) as { error?: string; detail?: unknown };
    return error ?? `The server refused: ${JSON.stringify(detail)}`;
  } catch {
    return text || `The server answered ${response.status}.`;
  }
}

function bytesOf(base64: string): Uint8Array<ArrayBuffer> {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at);
  return bytes;
}

interface Listed {
  name: string;
  dtype: "float32" | "int32" | "uint8";
  shape: number[];
}

const KINDS = { float32: Float32Array, int32: Int32Array, uint8: Uint8Array };

/** The parts of an answer with arrays, which are views of `body`: nothing is copied. */
function unpack<Head>(body: ArrayBuffer): Packed<Head> {
  const length = new DataView(body).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(body, 4, length))) as Head & { arrays: Listed[] };
  const arrays: Record<string, Numbers> = {};
  const shape: Record<string, number[]> = {};
  let at = 4 + length;
  for (const each of head.arrays) {
    const count = each.shape.reduce((product, size) => product * size, 1);
    const made = new KINDS[each.dtype](body, at, count);
    arrays[each.name] = made;
    shape[each.name] = each.shape;
    at += Math.ceil(made.byteLength / 8) * 8;
  }
  return {
    head,
    shape,
    float: (name) => arrays[name] as Float32Array,
    int: (name) => arrays[name] as Int32Array,
    byte: (name) => arrays[name] as Uint8Array,
  };
}

/** `path` with what is asked for; what is "" or null is left out. */
export function query(path: string, asked: Record<string, string | number | null>): string {
  const kept = Object.entries(asked).filter(([, value]) => value !== "" && value !== null);
  return kept.length ? `${path}?${new URLSearchParams(kept.map(([key, value]) => [key, String(value)]))}` : path;
}
