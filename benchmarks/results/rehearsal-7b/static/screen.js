"use strict";
// A screenshot with the actions of the answer drawn on it.

arpo.screen = (() => {
  const { h, svg } = arpo.dom;
  const { percent, count } = arpo.words;
  const DIRECTIONS = { up: [0, -1], down: [0, 1], left: [-1, 0], right: [1, 0] };

  function ring(point, radius, kind = "") {
    const shape = { cx: point.x, cy: point.y, r: radius };
    return [svg("circle", { class: "halo", ...shape }), svg("circle", { class: `mark ${kind}`, ...shape })];
  }

  function dot(point, radius) {
    return svg("circle", { class: "dot", cx: point.x, cy: point.y, r: radius });
  }

  function arrow(start, end, unit) {
    const across = end.x - start.x,
      down = end.y - start.y,
      length = Math.hypot(across, down) || 1;
    const dx = (across / length) * unit,
      dy = (down / length) * unit;
    const path =
      `M ${start.x} ${start.y} L ${end.x} ${end.y} M ${end.x - dx - dy} ${end.y - dy + dx} ` +
      `L ${end.x} ${end.y} L ${end.x - dx + dy} ${end.y - dy - dx}`;
    return [svg("path", { class: "halo", d: path }), svg("path", { class: "mark", d: path })];
  }

  const isPoint = (point) => point && Number.isFinite(point.x) && Number.isFinite(point.y);

  function marks(action, width, height) {
    const unit = width / 60,
      { do: kind, point, start, end } = action;
    if (kind === "Drag")
      return isPoint(start) && isPoint(end) ? [ring(start, unit / 2), arrow(start, end, unit)] : [];
    if (kind === "Scroll") {
      const from = isPoint(point) ? point : { x: width / 2, y: height / 2 };
      const [across, down] = DIRECTIONS[action.direction] || [0, 0];
      return arrow(from, { x: from.x + 4 * unit * across, y: from.y + 4 * unit * down }, unit);
    }
    if (!isPoint(point)) return [];
    const shapes = {
      Click: () => [ring(point, unit), dot(point, unit / 4)],
      DoubleClick: () => [ring(point, unit), ring(point, unit / 2)],
      RightClick: () => [ring(point, unit), arrow(point, { x: point.x + 1.6 * unit, y: point.y }, unit)],
      MiddleClick: () => [ring(point, unit), arrow(point, { x: point.x, y: point.y + 1.6 * unit }, unit)],
      TripleClick: () => [ring(point, unit), ring(point, (2 * unit) / 3), ring(point, unit / 3)],
      MouseDown: () => [ring(point, unit), dot(point, unit / 2)],
      MouseUp: () => ring(point, unit),
      Hover: () => ring(point, unit, "dashed"),
      LongPress: () => [ring(point, unit), dot(point, unit / 2)],
    };
    return Object.hasOwn(shapes, kind) ? shapes[kind]() : [];
  }

  function image(shot, { width = Infinity, alt = "", decoding = "async" } = {}) {
    const address = arpo.api.shotAddress(shot, shot?.width > width ? width : 0);
    if (!address) return h("div", { class: "gone" }, shot?.error || "This screenshot is not stored.");
    return h("img", {
      src: address,
      alt,
      loading: "lazy",
      decoding,
      class: shot.width < 480 ? "pixels" : null,
      width: shot.width,
      height: shot.height,
    });
  }

  // step: a step of an episode, or { shot } for the final screenshot; width: of the thumbnail.
  function screen({ shot, actions = [], labels = [] }, options = {}) {
    const [width, height] = shot?.width ? [shot.width, shot.height] : [4, 3];
    const drawn = shot?.width ? actions.map((action) => marks(action, width, height)) : [];
    const chips = labels.map((text) => h("span", { class: "chip" }, text));
    return h(
      "div",
      { class: "screen", css: { "aspect-ratio": `${width} / ${height}` } },
      image(shot, options),
      svg("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, drawn),
      options.chips !== false && chips.length > 0 && h("div", { class: "chips" }, chips),
    );
  }

  // Both screenshots beside each other, dimmed except for the areas that have changed.
  async function difference(source, before, now) {
    const nothing = { share: 0, areas: [] };
    const path = ["s", source, "changes", before.shot, now.shot];
    const found = before.shot === now.shot ? nothing : await arpo.api.get(path).catch(() => null);
    const text = !found
      ? "The changed areas are not known."
      : found.areas.length
        ? `${percent(found.share)} of the pixels changed, in ${count(found.areas.length, "area")}`
        : "no pixel has changed";
    const side = (shot, label) =>
      h(
        "figure",
        {},
        h("figcaption", { class: "dim" }, label),
        h(
          "div",
          { class: "screen", css: { "aspect-ratio": `${shot.width} / ${shot.height}` } },
          image(shot, { alt: `${label}: ${text}` }),
          svg("svg", { viewBox: `0 0 ${shot.width} ${shot.height}`, "aria-hidden": "true" }, found && changes(found.areas, shot)),
        ),
      );
    return h(
      "div",
      { class: "difference" },
      h("div", { class: "sides" }, side(before, "before"), side(now, "after")),
      h("p", { class: "dim" }, text),
    );
  }

  function changes(areas, { width, height }) {
    const frame = ([x, y, w, h]) => ({ x: x - 1, y: y - 1, width: w + 2, height: h + 2 });
    const hole = ([x, y, w, h]) => `M ${x} ${y} h ${w} v ${h} h ${-w} Z`;
    const shade = `M 0 0 H ${width} V ${height} H 0 Z ${areas.map(hole).join(" ")}`;
    return [
      svg("path", { class: "shade", d: shade, "fill-rule": "evenodd" }),
      areas.map((area) => [svg("rect", { class: "halo", ...frame(area) }), svg("rect", { class: "mark", ...frame(area) })]),
    ];
  }

  // Loads a screenshot before it is shown, so that arrow keys do not wait for it.
  function prefetch(shot) {
    const address = arpo.api.shotAddress(shot);
    if (address) new Image().src = address;
  }

  return { screen, difference, prefetch };
})();
