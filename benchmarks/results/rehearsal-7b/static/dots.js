"use strict";
// Dots: one per episode of a group. Colour: score; ring: replayed; cross: not played.

arpo.dots = (() => {
  const { h } = arpo.dom;
  const { number, signed } = arpo.words;
  const { link } = arpo.app;
  const { heat } = arpo.charts;
  const KINDS = { solved: "solved", failed: "not solved", replayed: "replayed success" };

  const known = (value) => value !== null && value !== undefined;

  function origin(dot) {
    if (dot.phase === "seed") return "from the seeds of replay";
    const age = dot.age === 1 ? "1 batch" : `${number(dot.age)} batches`;
    return `from batch ${number(dot.origin_batch)}, ${age} old`;
  }

  function describe(dot) {
    if (dot.kind === "error") return `${dot.episode}: not played: ${dot.error || "unknown reason"}`;
    return [
      `${dot.episode}: ${KINDS[dot.kind] || dot.kind}`,
      `score ${number(dot.score)}`,
      `reward ${number(dot.reward)}`,
      known(dot.advantage) && `advantage ${signed(dot.advantage)}`,
      dot.stop && dot.stop.replaceAll("_", " "),
      dot.malformed && "malformed answer",
      dot.kind === "replayed" && `${origin(dot)}, instead of ${dot.replaced}`,
    ]
      .filter(Boolean)
      .join(", ");
  }

  function face(dot) {
    const sign = dot.kind === "error" ? "×" : dot.kind === "replayed" ? "↺" : dot.malformed ? "!" : "";
    return heat(h("i", { class: `dot-face ${dot.kind}`, "aria-hidden": "true" }, sign), dot.score ?? 0);
  }

  // The dot with its advantage below; it opens the episode.
  function dotLink(context, dot) {
    const label = describe(dot);
    const below = h(
      "span",
      { class: "advantage", "aria-hidden": "true" },
      known(dot.advantage) ? signed(dot.advantage, 1) : "",
    );
    const shared = { class: "dot-link", title: label, "aria-label": label };
    if (dot.kind === "error") return h("span", { ...shared, role: "img" }, face(dot), below);
    return h("a", { ...shared, href: link(["s", context.source, "episode", dot.episode]) }, face(dot), below);
  }

  function legend() {
    const key = (dot, text) => h("span", { class: "key" }, face(dot), text);
    return h(
      "p",
      { class: "legend", "aria-hidden": "true" },
      key({ kind: "solved", score: 1 }, "solved"),
      key({ kind: "failed", score: 0.4 }, "partial score"),
      key({ kind: "failed", score: 0 }, "not solved"),
      key({ kind: "replayed", score: 1 }, "replayed success"),
      key({ kind: "failed", score: 0, malformed: true }, "malformed answer"),
      key({ kind: "error" }, "not played"),
      h("span", { class: "key" }, "below each dot: advantage"),
    );
  }

  return { face, dotLink, legend, origin };
})();

// Title of a view with links to its neighbours.
arpo.heading = (title, previous, next, noun) => {
  const { h } = arpo.dom;
  const step = (address, sign, name) =>
    address
      ? h(
          "a",
          { class: "step", href: address, "aria-label": `${name} ${noun}`, title: `${name} ${noun}` },
          sign,
        )
      : h("span", { class: "step off", "aria-hidden": "true" }, sign);
  return h(
    "div",
    { class: "heading" },
    step(previous, "←", "Previous"),
    h("h1", {}, title),
    step(next, "→", "Next"),
  );
};
