// What a person would see in the page, and what is wrong with it.
(() => {
  const problems = [];
  const say = (what, e) => problems.push(what + ": " + (e.outerHTML || e.textContent).slice(0, 200));
  const all = [...document.querySelectorAll("*")];

  // Nothing but what the page is made of.
  const known = new Set(("html head meta title style body header footer section h1 h2 h3 p span div dl dt dd small bdi table tbody tr th td br a ul li " +
    "svg g line text rect circle path").split(" "));
  for (const e of all) {
    if (!known.has(e.localName)) say("an element that the page does not have", e);
    for (const a of e.attributes) if (a.name.startsWith("on") || a.name === "src" || a.name === "style") say("attribute " + a.name, e);
  }
  if (getComputedStyle(document.querySelector("section")).borderTopLeftRadius !== "8px") problems.push("the page has no style");

  // Nothing is beyond the edge, but what can be scrolled to.
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) problems.push("the page is " + document.documentElement.scrollWidth + " wide in a window of " + width);
  for (const e of all) {
    const r = e.getBoundingClientRect();
    const scrolls = e.parentElement?.closest(".scroll") && !e.matches("tr.why div");
    const card = e.parentElement?.closest("section")?.getBoundingClientRect() ?? { left: 0, right: width };
    if (r.width > 0 && (r.left < card.left || r.right > card.right + 0.5) && !scrolls) say("beyond the edge, at " + r.left + " to " + r.right, e);
  }

  // Nothing lies over something else: numbers and times of the drawings, columns of the tables.
  const over = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 0.5 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3;
  for (const svg of document.querySelectorAll("svg")) {
    const box = svg.getBoundingClientRect(), texts = [...svg.querySelectorAll("text")].map((e) => [e, e.getBoundingClientRect()]);
    for (const [e, r] of texts) {
      if (r.left < box.left - 0.5 || r.right > box.right + 0.5 || r.top < box.top - 3 || r.bottom > box.bottom + 3) say("beyond the drawing", e);
      for (const [o, q] of texts) if (o !== e && over(r, q)) say("lies over " + o.textContent, e);
    }
    for (const e of svg.querySelectorAll("rect, circle, path")) {
      const r = e.getBoundingClientRect();
      if (r.left < box.left - 1 || r.right > box.right + 1 || r.bottom > box.bottom + 1) say("beyond the drawing", e);
    }
  }
  for (const row of document.querySelectorAll("tr")) {
    let last = -Infinity;
    for (const cell of row.children) {
      const range = document.createRange();
      range.selectNodeContents(cell);
      const r = range.getBoundingClientRect();
      if (r.width === 0) continue;
      if (r.left < last) say("lies over the column before", cell);
      last = r.right;
    }
  }

  // All text can be read: it is large enough, and stands out from what is behind it.
  const rgb = (c) => c.match(/[\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n; (n = walk.nextNode());) {
    const e = n.parentElement;
    if (!n.data.trim() || e.closest("title")) continue;
    const style = getComputedStyle(e), svg = e.closest("svg");
    const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
    const size = parseFloat(style.fontSize) * scale;
    if (size < 9.9) say("text of " + size.toFixed(1) + " pixels", e);
    const [a, b] = [light(rgb(svg ? style.fill : style.color)), light(behind(e))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < 4.5) say("contrast " + contrast.toFixed(1), e);
  }

  const texts = (selector) => [...document.querySelectorAll(selector)].map((e) => e.textContent);
  const trace = document.querySelector("path.trace");
  return {
    Problems: [...new Set(problems)].slice(0, 20),
    Stages: [...new Set(texts(".pill"))].sort(),
    Names: texts("td.name"),
    Text: document.body.innerText,
    Bars: document.querySelectorAll("svg text.label").length,
    Trace: trace ? trace.getAttribute("d").split("L").length : 0,
  };
})()
