/** The state of the page, all of it in the URL behind `#`, so that a link shows what its sender saw. */

export type State = Readonly<Record<string, string>>;

/** What the URL says now. */
export function state(): State {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

/** The URL for `next`; what is "" is left out. */
export function link(next: State): string {
  const kept = Object.entries(next).filter(([, value]) => value !== "");
  return `#${new URLSearchParams(kept)}`;
}

/** Changes some of the state; `replace` leaves no step in the history, as for a cursor that moves. */
export function change(changes: State, replace = false): void {
  const url = link({ ...state(), ...changes });
  if (url === location.hash) return;
  if (replace) {
    history.replaceState(null, "", url);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else location.hash = url;
}

/** A number of the state, or `otherwise`. */
export function numberOf(from: State, key: string, otherwise: number | null): number | null {
  const text = from[key];
  return text !== undefined && /^-?\d{1,12}$/.test(text) ? Number(text) : otherwise;
}

/** The numbers of a list in the state. */
export function numbersOf(from: State, key: string): number[] {
  return (from[key] ?? "").split(",").filter((text) => /^\d{1,9}$/.test(text)).map(Number);
}
