"use strict";
// Line charts, stacked bars and sparklines in SVG.

arpo.charts = (() => {
  const { h, svg, replace, setCss } = arpo.dom;
  const { number, percent } = arpo.words;
  const SMALL = [420, 170],
    LARGE = [960, 420], // width and height
    LEFT = 44,
    RIGHT = 10,
    TOP = 10,
    BOTTOM = 22,
    DRAG = 12; // pixels

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

  function axes([width, height], xs, ys, x, y, format) {
    const lines = ticks(...ys, 4).map((value) => [
      svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
      svg("text", { x: LEFT - 6, y: y(value) + 3.5, "text-anchor": "end" }, format(value)),
    ]);
    const labels = ticks(...xs, 6)
      .filter(Number.isInteger)
      .map((value) => svg("text", { x: x(value), y: height - 6, "text-anchor": "middle" }, number(value)));
    return [lines, labels];
  }

  // Name and meaning of a metric; words between backticks are code.
  function explanation([name, text]) {
    const words = text.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part));
    return h("p", { class: "note" }, h("code", {}, name), " ", words);
  }

  const zooms = new Map(); // address and title → [first, last], so that a redraw keeps the chosen range

  // Mean over up to `span` neighbouring points.
  function smoothed(points, span) {
    const half = Math.floor(span / 2);
    return points.map(([step], index) => {
      const near = points.slice(Math.max(0, index - half), index + half + 1);
      return [step, near.reduce((sum, [, value]) => sum + value, 0) / near.length];
    });
  }

  // A field for the smoothing of all charts of a view.
  function smoothing(context) {
    const spans = [["", "none"], ...["3", "5", "9", "15"].map((span) => [span, `${span} batches`])];
    return arpo.dom.select("smooth", "Smoothing", spans, context.query.smooth || "", (smooth) =>
      context.setQuery(context, { smooth }),
    );
  }

  // Line chart with a cursor: mouse, or arrow keys when it has the focus. A click or Enter opens a point; dragging
  // chooses a range. series: [{ label, colour: 0…7, dashed, points: [[step, value, low, high], …] }], low and high
  // of a band are optional; open(series, step); notes: [[metric, meaning]]; fit: the axis has the range of the
  // values; smooth: points of the moving average.
  function lineChart(options) {
    const figure = h("figure", { class: "chart" });
    drawLines(figure, options);
    return figure;
  }

  function enlarge(options) {
    const close = () => dialog.close();
    const chart = lineChart({ ...options, large: true });
    const dialog = h("dialog", { class: "enlarged", "aria-label": options.title, onclose: () => dialog.remove() });
    dialog.append(chart, h("form", { method: "dialog" }, h("button", { onclick: close }, "Close")));
    document.body.append(dialog);
    dialog.showModal();
  }

  // Fields for the range of an enlarged chart.
  function rangeFields([first, last], [from, to], choose) {
    const field = (label, value, change) =>
      arpo.dom.input(`range-${label}`, label, value, change, { type: "number", min: first, max: last });
    return arpo.dom.filters(
      "Range",
      field("From", from, (value) => choose([Number(value), to])),
      field("To", to, (value) => choose([from, Number(value)])),
    );
  }

  function drawLines(figure, options) {
    const { title, note, notes = [], series, inPercent, fit, open, unit = "batch", smooth = 0, large } = options;
    const size = large ? LARGE : SMALL,
      [WIDTH, HEIGHT] = size;
    const place = `${location.hash.split("?")[0]} ${title}`;
    const zoom = zooms.get(place);
    const choose = (range) => {
      if (range && range[0] < range[1]) zooms.set(place, range);
      else zooms.delete(place);
      drawLines(figure, options);
    };
    const whole = series
      .map((one) => ({ ...one, points: one.points.filter(([, value]) => Number.isFinite(value)) }))
      .filter((one) => one.points.length);
    const inside = ([step]) => !zoom || (zoom[0] <= step && step <= zoom[1]);
    const averaged = (one) => (smooth > 1 ? smoothed(one.points, smooth) : null);
    const drawn = whole
      .map((one) => ({ ...one, points: one.points.filter(inside), smooth: averaged(one)?.filter(inside) }))
      .filter((one) => one.points.length);
    const caption = h(
      "figcaption",
      { title: note || null },
      h("span", {}, title),
      zoom && h("button", { type: "button", class: "quiet", onclick: () => choose(null) }, "Whole range"),
      !large &&
        whole.length > 0 &&
        h("button", { type: "button", class: "quiet", "aria-label": `Enlarge: ${title}`, onclick: () => enlarge(options) }, "⤢"),
    );
    if (!drawn.length) {
      figure.classList.add("empty");
      return replace(figure, caption, h("p", { class: "dim" }, whole.length ? "No values in this range" : "No values yet"));
    }
    figure.classList.remove("empty");
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
          class: one.smooth ? "raw" : null,
          points: one.points.map(([step, value]) => position(step, value)).join(" "),
        }),
        one.smooth &&
          svg("polyline", { points: one.smooth.map(([step, value]) => position(step, value)).join(" ") }),
        one.points.length < 60 && !one.smooth
          ? one.points.map(([step, value]) => svg("circle", { cx: x(step), cy: y(value), r: 2.2 }))
          : null,
      ),
    );
    const cursor = svg("g", { class: "cursor", visibility: "hidden" });
    const picture = svg(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" },
      axes(size, xs, ys, x, y, format),
      lines,
      cursor,
    );
    const readout = h("p", { class: "readout" });
    const byStep = drawn.map((one) => new Map(one.points));
    let at = steps.length - 1,
      nearest = drawn[0],
      pressed = null;

    const values = () =>
      drawn
        .map((one, index) => [one, byStep[index].get(steps[at])])
        .filter(([, value]) => value !== undefined);

    function show(visible) {
      const newest = drawn.map((one) => [one, one.points[one.points.length - 1][1]]);
      replace(
        readout,
        h("span", { class: "dim" }, visible ? `${unit} ${number(steps[at])}` : zoom ? "last in range" : "newest"),
        (visible ? values() : newest).map(([one, value]) =>
          h("span", { class: "key" }, h("i", { class: `swatch c${one.colour}` }), h("b", {}, format(value)), " ", one.label),
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
        onmousedown: (event) => {
          follow(event);
          pressed = { x: event.clientX, step: steps[at] };
          event.preventDefault(); // no selection of text
        },
        onclick: (event) => {
          follow(event);
          const dragged = pressed && Math.abs(event.clientX - pressed.x) > DRAG;
          if (dragged) choose([pressed.step, steps[at]].sort((a, b) => a - b));
          else if (open) {
            figure.closest("dialog")?.close();
            open(nearest, steps[at]);
          }
          pressed = null;
        },
      },
      picture,
    );
    show(false);
    const all = whole.flatMap((one) => one.points.map(([step]) => step));
    const ends = [all.reduce((a, b) => Math.min(a, b)), all.reduce((a, b) => Math.max(a, b))];
    return replace(
      figure,
      caption,
      plot,
      readout,
      large && ends[0] < ends[1] ? rangeFields(ends, zoom || ends, choose) : null,
      notes.map(explanation),
    );
  }

  // Columns of shares: columns [[step, [value of each label]], …]; colours: of the labels.
  function stackedChart({ title, note, labels, columns, colours }) {
    const [WIDTH, HEIGHT] = SMALL;
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
            class: `c${colours[index]}`,
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
          axes(SMALL, [xs[0], xs[1] - 1], [0, 1], (step) => x(step + 0.5), y, percent),
          bars,
        ),
      ),
      h(
        "p",
        { class: "readout" },
        labels.map((label, index) =>
          h(
            "span",
            { class: "key" },
            h("i", { class: `swatch c${colours[index]}` }),
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

  return { ticks, lineChart, stackedChart, smoothing, sparkline, heat };
})();
