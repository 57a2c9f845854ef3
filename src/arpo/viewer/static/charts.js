"use strict";
// Line charts, stacked bars and sparklines in SVG.

arpo.charts = (() => {
  const { h, svg, replace, setCss } = arpo.dom;
  const { number, percent } = arpo.words;
  const WIDTH = 420,
    HEIGHT = 170,
    LEFT = 44,
    RIGHT = 10,
    TOP = 10,
    BOTTOM = 22;

  // Round values from low to high, at most about `most` of them.
  function ticks(low, high, most) {
    const span = high - low || Math.abs(high) || 1;
    const rough = span / most;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough);
    const found = [];
    for (let tick = Math.ceil(low / step - 1e-9); tick <= high / step + 1e-9; tick += 1)
      found.push(tick * step);
    return found;
  }

  function scale(low, high, from, to) {
    const span = high - low || 1;
    return (value) => from + ((value - low) / span) * (to - from);
  }

  function range(values, inPercent) {
    let low = Infinity,
      high = -Infinity;
    for (const value of values) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
    if (inPercent) return [Math.min(0, low), Math.max(1, high)];
    if (low !== high) return [low, high];
    return low < 0 ? [2 * low, 0] : [0, 2 * low || 1];
  }

  function axes(xs, ys, x, y, format) {
    const lines = ticks(...ys, 4).map((value) => [
      svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
      svg("text", { x: LEFT - 6, y: y(value) + 3.5, "text-anchor": "end" }, format(value)),
    ]);
    const labels = ticks(...xs, 6)
      .filter(Number.isInteger)
      .map((value) => svg("text", { x: x(value), y: HEIGHT - 6, "text-anchor": "middle" }, number(value)));
    return [lines, labels];
  }

  // Name and meaning of a metric; words between backticks are code.
  function explanation([name, text]) {
    const words = text.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part));
    return h("p", { class: "note" }, h("code", {}, name), " ", words);
  }

  // Line chart with a cursor: mouse, or arrow keys when it has the focus. A click or Enter opens a point.
  // series: [{ label, colour: 0…7, dashed, points: [[step, value, low, high], …] }], low and high of a band are
  // optional; open(series, step); notes: [[metric, meaning]]; fit: the axis has the range of the values.
  function lineChart({ title, note, notes = [], series, inPercent, fit, open, unit = "batch" }) {
    const drawn = series
      .map((one) => ({ ...one, points: one.points.filter(([, value]) => Number.isFinite(value)) }))
      .filter((one) => one.points.length);
    const caption = h("figcaption", { title: note || null }, title);
    if (!drawn.length)
      return h("figure", { class: "chart empty" }, caption, h("p", { class: "dim" }, "No values yet"));
    const format = inPercent ? percent : number;
    const steps = [...new Set(drawn.flatMap((one) => one.points.map(([step]) => step)))].sort(
      (a, b) => a - b,
    );
    const xs = [steps[0], steps.length > 1 ? steps[steps.length - 1] : steps[0] + 1];
    const ys = range(
      drawn.flatMap((one) => one.points.flatMap(([, ...values]) => values)),
      inPercent && !fit,
    );
    const x = scale(...xs, LEFT, WIDTH - RIGHT),
      y = scale(...ys, HEIGHT - BOTTOM, TOP);
    const position = (step, value) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`;
    const band = ({ points }) =>
      points[0].length > 2 &&
      svg("polygon", {
        points: [
          ...points.map(([step, , , high]) => position(step, high)),
          ...points.map(([step, , low]) => position(step, low)).reverse(),
        ].join(" "),
      });
    const lines = drawn.map((one) =>
      svg(
        "g",
        { class: `c${one.colour}${one.dashed ? " dashed" : ""}` },
        band(one),
        svg("polyline", {
          points: one.points.map(([step, value]) => position(step, value)).join(" "),
        }),
        one.points.length < 60
          ? one.points.map(([step, value]) => svg("circle", { cx: x(step), cy: y(value), r: 2.2 }))
          : null,
      ),
    );
    const cursor = svg("g", { class: "cursor", visibility: "hidden" });
    const picture = svg(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" },
      axes(xs, ys, x, y, format),
      lines,
      cursor,
    );
    const readout = h("p", { class: "readout" });
    const byStep = drawn.map((one) => new Map(one.points));
    let at = steps.length - 1,
      nearest = drawn[0];

    const values = () =>
      drawn
        .map((one, index) => [one, byStep[index].get(steps[at])])
        .filter(([, value]) => value !== undefined);

    function show(visible) {
      const newest = drawn.map((one) => [one, one.points[one.points.length - 1][1]]);
      replace(
        readout,
        h("span", { class: "dim" }, visible ? `${unit} ${number(steps[at])}` : "newest"),
        (visible ? values() : newest).map(([one, value]) =>
          h("span", { class: `key c${one.colour}` }, h("b", {}, format(value)), " ", one.label),
        ),
      );
      replace(
        cursor,
        svg("line", { x1: x(steps[at]), x2: x(steps[at]), y1: TOP, y2: HEIGHT - BOTTOM }),
        values().map(([one, value]) =>
          svg("circle", { class: `c${one.colour}`, cx: x(steps[at]), cy: y(value), r: 4 }),
        ),
      );
      cursor.setAttribute("visibility", visible ? "visible" : "hidden");
      plot.setAttribute("aria-valuenow", steps[at]);
      plot.setAttribute(
        "aria-valuetext",
        `${unit} ${steps[at]}: ` +
          values()
            .map(([one, value]) => `${one.label} ${format(value)}`)
            .join(", "),
      );
    }

    function follow(event) {
      const box = picture.getBoundingClientRect();
      const step = ((event.clientX - box.left) / box.width) * WIDTH,
        height = ((event.clientY - box.top) / box.height) * HEIGHT;
      at = steps.reduce(
        (best, value, index) => (Math.abs(x(value) - step) < Math.abs(x(steps[best]) - step) ? index : best),
        0,
      );
      const found = values();
      if (found.length)
        nearest = found.reduce((best, pair) =>
          Math.abs(y(pair[1]) - height) < Math.abs(y(best[1]) - height) ? pair : best,
        )[0];
      show(true);
    }

    function press(event) {
      const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: steps.length - 1 };
      if (event.key in moves) {
        at = Math.max(0, Math.min(steps.length - 1, moves[event.key]));
        show(true);
      } else if (event.key === "Enter" && open) {
        const found = values();
        open(found.some(([one]) => one === nearest) ? nearest : found[0][0], steps[at]);
      } else return;
      event.preventDefault();
    }

    const plot = h(
      "div",
      {
        class: "plot",
        tabindex: 0,
        role: "slider",
        "aria-label": `${title}: choose ${unit === "episode" ? "an" : "a"} ${unit}`,
        "aria-valuemin": steps[0],
        "aria-valuemax": steps[steps.length - 1],
        onmousemove: follow,
        onmouseleave: () => show(false),
        onfocus: () => show(true),
        onblur: () => show(false),
        onkeydown: press,
        onclick: open
          ? (event) => {
              follow(event);
              open(nearest, steps[at]);
            }
          : null,
      },
      picture,
    );
    show(false);
    return h("figure", { class: "chart" }, caption, plot, readout, notes.map(explanation));
  }

  // Columns of shares: columns [[step, [value of each label]], …].
  function stackedChart({ title, note, labels, columns }) {
    const caption = h("figcaption", { title: note || null }, title);
    const shown = columns.filter(([, parts]) => parts.some((part) => part > 0));
    if (!shown.length)
      return h("figure", { class: "chart empty" }, caption, h("p", { class: "dim" }, "No values yet"));
    const xs = [shown[0][0], shown[shown.length - 1][0] + 1];
    const x = scale(...xs, LEFT, WIDTH - RIGHT),
      y = scale(0, 1, HEIGHT - BOTTOM, TOP);
    const bars = shown.map(([step, parts]) => {
      const total = parts.reduce((sum, part) => sum + part, 0);
      let sum = 0;
      return parts.map((part, index) => {
        const bottom = y(sum / total);
        sum += part;
        return svg(
          "rect",
          {
            class: `c${index}`,
            x: x(step),
            width: Math.max(0.5, x(step + 1) - x(step) - (shown.length > 80 ? 0 : 1)),
            y: y(sum / total),
            height: Math.max(0, bottom - y(sum / total)),
          },
          svg("title", {}, `batch ${step}: ${labels[index]} ${percent(part / total)}`),
        );
      });
    });
    const totals = labels.map((_, index) => shown.reduce((sum, [, parts]) => sum + parts[index], 0));
    const all = totals.reduce((sum, part) => sum + part, 0);
    const summary = labels.map((label, index) => `${label} ${percent(totals[index] / all)}`).join(", ");
    return h(
      "figure",
      { class: "chart" },
      caption,
      h(
        "div",
        { class: "plot" },
        svg(
          "svg",
          { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}: ${summary}` },
          axes([xs[0], xs[1] - 1], [0, 1], (step) => x(step + 0.5), y, percent),
          bars,
        ),
      ),
      h(
        "p",
        { class: "readout" },
        labels.map((label, index) =>
          h(
            "span",
            { class: `key c${index}` },
            h("i", { class: "swatch" }),
            `${label} `,
            h("b", {}, percent(totals[index] / all)),
          ),
        ),
      ),
    );
  }

  // A small line of success rates between 0 and 1.
  function sparkline(values, label) {
    const known = values.map((value, index) => [index, value]).filter(([, value]) => Number.isFinite(value));
    if (!known.length) return h("span", { class: "dim" }, "–");
    const x = scale(0, Math.max(1, values.length - 1), 3, 97),
      y = scale(0, 1, 21, 3);
    return svg(
      "svg",
      { class: "spark", viewBox: "0 0 100 24", role: "img", "aria-label": label },
      svg("line", { class: "grid", x1: 0, x2: 100, y1: 21, y2: 21 }),
      svg("polyline", {
        points: known.map(([index, value]) => `${x(index).toFixed(1)},${y(value).toFixed(1)}`).join(" "),
      }),
      known.length < 25
        ? known.map(([index, value]) => svg("circle", { cx: x(index), cy: y(value), r: 1.8 }))
        : null,
    );
  }

  // From red (0) over amber to green (1), readable in both colour schemes.
  function heat(element, share) {
    setCss(element, { "--share": String(Math.max(0, Math.min(1, share))) });
    return element;
  }

  return { ticks, lineChart, stackedChart, sparkline, heat };
})();
