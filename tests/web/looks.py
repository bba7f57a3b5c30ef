"""How a page looks in a browser: whether its text can be read, and where its elements are."""

from __future__ import annotations

from tests.web.browser import BrowserPage

CONTRAST = """(() => {
  const channel = (part) => (part /= 255) <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const ground = (element) => {
    for (let up = element; up; up = up.parentElement) {
      const colour = parse(getComputedStyle(up).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const style = getComputedStyle(element);
    if (!walker.currentNode.data.trim() || !element.checkVisibility() || parseFloat(style.fontSize) === 0) continue;
    if (element.closest("script, style, noscript")) continue;
    seen += 1;
    const [a, b] = [luminance(parse(element.closest("svg") ? style.fill : style.color)), luminance(ground(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push([walker.currentNode.data.trim().slice(0, 40), ratio]);
  }
  return { seen, poor };
})()"""


def middle_of(page: BrowserPage, selector: str, *, across: float = 0.5, down: float = 0.5) -> tuple[float, float]:
    """The point at those fractions of an element's box, after it was scrolled into view."""
    left, top, width, height = page.evaluate(
        f"""(() => {{
          const element = document.querySelector({selector!r});
          element.scrollIntoView({{ block: "center", behavior: "instant" }});
          const box = element.getBoundingClientRect();
          return [box.left, box.top, box.width, box.height];
        }})()"""
    )
    return left + width * across, top + height * down
