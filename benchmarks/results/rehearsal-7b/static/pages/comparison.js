"use strict";
// Page "Comparison": the runs of `arpo compare`. compare.html is this page in one file.

arpo.comparison = (() => {
  const { h, svg, table, select, filters } = arpo.dom;
  const { signed } = arpo.words;
  const COLOURS = 7; // c7 is grey, for the base model
  const WIDTH = 420,
    ROW = 24,
    LEFT = 130,
    RIGHT = 16;

  const colour = (method) => (method ? (method - 1) % COLOURS : COLOURS);

  async function render(context) {
    const against = context.query.against;
    const page = await arpo.api.get(["comparison", context.parts[0]], { against });
    const baseline = (value) => context.setQuery(context, { against: value });
    return [
      h("h1", {}, page.title),
      h("p", { class: "dim" }, page.subtitle),
      page.warning && h("p", { class: "warn" }, page.warning),
      !arpo.api.exported &&
        filters(
          "Comparison",
          select("against", "Baseline", page.baselines, against || "", baseline),
        ),
      page.sections.map((section) => [
        h("h2", { class: "section" }, section.title),
        h("div", { class: "charts large" }, charts(section, page.methods)),
        section.table && rows(section.table, page.methods),
        section.note && h("p", { class: "dim lead" }, section.note),
        section.text && h("pre", {}, section.text),
        section.definitions &&
          h(
            "dl",
            { class: "lead" },
            section.definitions.map(([term, text]) => [h("dt", {}, term), h("dd", {}, text)]),
          ),
      ]),
    ];
  }

  function charts({ curves = [], intervals = [] }, methods) {
    return [
      intervals.map((one) => intervalChart(one, methods)),
      curves.map(({ title, percent, series }) =>
        arpo.charts.lineChart({
          title,
          inPercent: percent,
          fit: true,
          unit: "episode",
          series: series.map(({ method, points }) => ({
            label: methods[method],
            colour: colour(method),
            dashed: method > COLOURS,
            points,
          })),
        }),
      ),
    ];
  }

  function rows({ heads, rows: found }, methods) {
    const cell = ([value, detail, share]) =>
      h(
        "td",
        { class: "n" },
        share !== null && arpo.charts.heat(h("i", { class: "level", "aria-hidden": "true" }), share),
        value,
        detail && h("small", {}, detail),
      );
    const row = ({ method, cells }) =>
      h(
        "tr",
        {},
        h(
          "th",
          { scope: "row" },
          h("span", { class: `c${colour(method)}` }, h("i", { class: "swatch" })),
          methods[method],
        ),
        cells.map(cell),
      );
    return table([["Method"], ...heads.map((head) => [head, "n"])], found.map(row), { kind: "narrow" });
  }

  // A dot on its interval for each method, in percentage points.
  function intervalChart({ title, rows: found }, methods) {
    const ends = [0, ...found.flatMap(({ mean, interval }) => [mean, ...(interval || [])])].map((end) => 100 * end);
    const low = Math.min(...ends),
      high = Math.max(...ends);
    const x = (value) => LEFT + ((100 * value - low) / (high - low || 1)) * (WIDTH - LEFT - RIGHT);
    const height = ROW * (found.length + 1);
    const axis = arpo.charts.ticks(low, high, 5).map((tick) => [
      svg("line", { class: tick ? "grid" : "zero", x1: x(tick / 100), x2: x(tick / 100), y1: 0, y2: height - ROW }),
      svg("text", { x: x(tick / 100), y: height - 8, "text-anchor": "middle" }, tick ? signed(tick, 0) : "0"),
    ]);
    const lines = found.map(({ method, mean, interval }, index) => {
      const y = ROW * (index + 0.5);
      const text = `${methods[method]}: ${signed(100 * mean, 1)} points`;
      const ends = interval && { x1: x(interval[0]), x2: x(interval[1]), y1: y, y2: y };
      return svg(
        "g",
        { class: `c${colour(method)}` },
        svg("title", {}, text),
        svg("text", { x: LEFT - 10, y: y + 3.5, "text-anchor": "end" }, shortened(methods[method])),
        ends && svg("line", { class: "interval", ...ends }),
        svg("circle", { cx: x(mean), cy: y, r: 4 }),
      );
    });
    const label = `${title}: ${found.map(({ method, mean }) => `${methods[method]} ${signed(100 * mean, 1)}`).join(", ")}`;
    return h(
      "figure",
      { class: "chart" },
      h("figcaption", {}, title),
      svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": label }, axis, lines),
      h("p", { class: "note" }, "Dot: mean difference. Line: 95% confidence interval over seeds and tasks."),
    );
  }

  const shortened = (name) => (name.length > 18 ? `${name.slice(0, 9)}…${name.slice(-8)}` : name);

  arpo.app.pages.comparison = { title: () => "Comparison", render };
})();
