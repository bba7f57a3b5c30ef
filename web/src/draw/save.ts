/** Buttons that save a drawing as a picture, and its numbers as CSV. */

import { h } from "../dom";

export function saveButtons(name: string, canvas: () => HTMLCanvasElement, csv: () => string): HTMLElement {
  const button = (text: string, label: string, save: () => void) => h("button", { type: "button", class: "plain", "aria-label": label, onclick: save }, text);
  return h("span", { class: "saves" },
    button("PNG", `Save ${name} as a picture`, () => canvas().toBlob((blob) => { if (blob) save(blob, `${name}.png`); })), " ",
    button("CSV", `Save the numbers of ${name}`, () => save(new Blob([csv()], { type: "text/csv" }), `${name}.csv`)));
}

function save(blob: Blob, name: string): void {
  const address = URL.createObjectURL(blob);
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
