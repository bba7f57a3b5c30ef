/** Elements from calls. Texts become text nodes, never markup: a name in a Run may be anything. */

type Child = Node | string | number | null | undefined | false | Child[];
type Props = Record<string, unknown>;

/** An HTML element; `class`, `on…` listeners, properties and attributes alike. */
export function h<K extends keyof HTMLElementTagNameMap>(tag: K, props?: Props | null, ...children: Child[]) {
  return filled(document.createElement(tag), props ?? {}, children) as HTMLElementTagNameMap[K];
}

/** An SVG element. */
export function s<K extends keyof SVGElementTagNameMap>(tag: K, props?: Props | null, ...children: Child[]) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  return filled(made, props ?? {}, children) as SVGElementTagNameMap[K];
}

function filled(element: Element, props: Props, children: Child[]): Element {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value as EventListener);
    else if (name === "value" || name === "checked") (element as unknown as Props)[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

function add(element: Element, children: Child[]): void {
  for (const child of children) {
    if (Array.isArray(child)) add(element, child);
    else if (child instanceof Node) element.append(child);
    else if (child !== null && child !== undefined && child !== false) element.append(String(child));
  }
}

/** `text` with what stands between backticks as code; commands of Trueline can be copied. */
export function prose(text: string): Node[] {
  const pieces = text.split("`");
  return pieces.map((piece, place) =>
    place % 2 && place < pieces.length - 1 ? (piece.startsWith("trueline ") ? command(piece) : h("code", null, piece))
      : document.createTextNode(place % 2 ? `\`${piece}` : piece),
  );
}

/** A command with a button that copies it. */
export function command(text: string): HTMLElement {
  return h("span", { class: "command" }, h("code", null, text), copyButton(text, "Copy the command"));
}

/** A button that puts `text` on the clipboard and says so. */
export function copyButton(text: string, label: string, shown = "copy"): HTMLButtonElement {
  const button = h("button", { type: "button", class: "copy", "aria-label": label }, shown);
  button.addEventListener("click", async (event) => {
    event.stopPropagation();
    button.textContent = (await copied(text)) ? "copied" : "select it";
    setTimeout(() => (button.textContent = shown), 1500);
  });
  return button;
}

async function copied(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", { class: "away" }, text);
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy"); // over plain http from another machine there is no clipboard API
    area.remove();
    return done;
  }
}

/** Runs `work`, which fills `root` anew, and opens what was open there before. */
export function keepingOpen(root: HTMLElement, work: () => void): void {
  const open = [...root.querySelectorAll("details")].map((each) => each.open);
  work();
  root.querySelectorAll("details").forEach((each, place) => { each.open = open[place] ?? false; });
}

/** Whether keys go into a field that takes text. */
export function typing(target: EventTarget | null): boolean {
  return target instanceof HTMLInputElement || target instanceof HTMLSelectElement || target instanceof HTMLTextAreaElement;
}

/** Runs `work` once in the next frame, however often it is asked for until then. */
export function perFrame(work: () => void): () => void {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      work();
    });
  };
}
