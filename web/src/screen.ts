/** What every screen is, and what it may ask of the page. */

import type { State } from "./address";
import type { Schemas, Source } from "./source";

export interface Context {
  source: Source;
  run: Schemas["RunEntry"];
  /** All Runs of the page. */
  runs: Schemas["RunEntry"][];
  /** Path of an answer about the Run that is shown. */
  api: (path: string) => string;
}

export interface Screen {
  element: HTMLElement;
  /** Shows what the URL says, and whatever is new; called again and again. */
  update: (state: State) => Promise<void>;
  /** Takes a key that nothing else wanted; false where it has no use for it. */
  key?: (key: string) => boolean;
  close?: () => void;
  /** The keys of this screen, and what each does. */
  keys: [string, string][];
  /** Paths of the answers that it shows, for the link to their JSON. */
  twins: () => string[];
}
