"use strict";
// The tokens of an answer, coloured by one of their numbers.

arpo.tokens = (() => {
  const { h, table, select } = arpo.dom;
  const { number, percent } = arpo.words;
  // Share of the strongest colour, between 0 and 1.
  const MEASURES = {
    logprob: {
      title: "log-probability",
      share: (token) => Math.min(1, -token.logprob / 3),
      text: (token) => `log-probability ${number(token.logprob)} (${percent(Math.exp(token.logprob))})`,
      ends: ["likely", "unlikely"],
    },
    entropy: {
      title: "entropy",
      share: (token) => Math.min(1, token.entropy / 2),
      text: (token) => `entropy ${number(token.entropy)}`,
      ends: ["certain", "uncertain"],
    },
    ratio: {
      title: "ratio",
      share: (token) => Math.min(1, Math.abs(Math.log(token.ratio)) / 0.3),
      text: (token) => `ratio ${number(token.ratio, 4)}`,
      ends: ["1", "far from 1"],
    },
    clipped: {
      title: "clipped",
      share: (token) => (token.clipped ? 1 : 0),
      text: (token) => (token.clipped ? "clipped" : "not clipped"),
      ends: ["not clipped", "clipped"],
    },
  };
  const known = (token, name) => token[name] !== null && token[name] !== undefined;
  const visible = (token) => (token.text === null || token.text === undefined ? `⟨${token.id}⟩` : token.text);

  async function render(context, episode, step) {
    if (!step.has_tokens)
      return h("p", { class: "dim" }, "The tokens of this answer are not stored: the server returned text.");
    const path = ["s", context.source, "episodes", episode, "tokens", step.step];
    const answer = await arpo.api.get(path, { trained: context.query.trained });
    const stored = answer.stored || {};
    const wanted = Object.hasOwn(MEASURES, context.query.colour) ? context.query.colour : "logprob";
    const name = stored[wanted] ? wanted : "logprob";
    return h(
      "div",
      { class: "tokens" },
      h(
        "fieldset",
        { class: "switch" },
        h("legend", { class: "hidden" }, "Colour of the tokens"),
        Object.entries(MEASURES).map(([key, measure]) =>
          h(
            "label",
            { class: stored[key] ? null : "off", title: stored[key] ? null : answer.note },
            h("input", {
              type: "radio",
              name: "colour",
              value: key,
              checked: key === name,
              disabled: !stored[key],
              "data-key": `colour ${key}`,
              onchange: () => context.setQuery(context, { colour: key }),
            }),
            measure.title,
          ),
        ),
      ),
      answer.note ? h("p", { class: "dim" }, answer.note) : null,
      trained(context, answer.trained || []),
      h(
        "p",
        { class: "scale" },
        h("span", {}, MEASURES[name].ends[0]),
        h("i", { "aria-hidden": "true" }),
        h("span", {}, MEASURES[name].ends[1]),
      ),
      h(
        "p",
        { class: "text" },
        answer.tokens.map((token) => span(token, name)),
      ),
      name === "logprob" ? rarest(answer.tokens) : null,
      answer.tokens.some((token) => instead(token))
        ? null
        : h("p", { class: "dim small" }, "--rollout.alternatives 3 stores other likely tokens with each token."),
    );
  }

  // The update whose values are shown: replay trains an answer several times.
  function trained(context, updates) {
    const title = ({ batch, update, replayed }) =>
      `batch ${number(batch)}, update ${number(update)}${replayed ? ", replayed" : ""}`;
    const shown = updates.findIndex((one) => one.shown);
    if (updates.length < 2) return updates.map((one) => h("p", { class: "dim" }, `Trained in ${title(one)}.`));
    const options = updates.map((one, index) => [String(index), title(one)]);
    const choose = (value) => context.setQuery(context, { trained: value });
    return h("p", {}, select("trained-in", "Trained in", options, String(shown), choose));
  }

  function span(token, name) {
    const measure = MEASURES[name];
    const label = [
      known(token, name) ? measure.text(token) : `${measure.title} not stored`,
      `token ${token.id}`,
      `version ${number(token.version)}`,
      ...(instead(token) ? [`instead: ${instead(token)}`] : []),
    ].join(", ");
    return arpo.charts.heat(
      h("span", { class: "token", title: label }, visible(token)),
      known(token, name) ? measure.share(token) : 0,
    );
  }

  // Other likely tokens with their probabilities.
  function instead(token) {
    return (token.alternatives || [])
      .map((other) => `${JSON.stringify(visible(other))} ${percent(Math.exp(other.logprob))}`)
      .join(", ");
  }

  // The least likely tokens as a table, for readers who do not see colours.
  function rarest(tokens) {
    const rows = tokens
      .map((token, index) => ({ ...token, index }))
      .filter((token) => known(token, "logprob"))
      .sort((a, b) => a.logprob - b.logprob)
      .slice(0, 8);
    const others = rows.some(instead);
    const last = others ? ["Other likely tokens"] : ["Log-probability", "n"];
    const heads = [["Position", "n"], ["Token"], ["Probability", "n"], last];
    const row = (token) =>
      h(
        "tr",
        {},
        h("td", { class: "n" }, number(token.index + 1)),
        h("td", {}, h("code", {}, JSON.stringify(visible(token)))),
        h("td", { class: "n" }, percent(Math.exp(token.logprob))),
        others ? h("td", {}, instead(token)) : h("td", { class: "n" }, number(token.logprob)),
      );
    return table(heads, rows.map(row), { kind: "rare", caption: "Least likely tokens" });
  }

  return { render };
})();
