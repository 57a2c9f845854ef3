"use strict";
// The prompt of a step as the model saw it: messages with roles, texts and screenshots.

arpo.prompts = (() => {
  const { h } = arpo.dom;
  const { number, count } = arpo.words;

  const load = (context, episode, step) => arpo.api.get(["s", context.source, "episodes", episode, "prompts", step]);

  async function render(context, episode, step) {
    const answer = await load(context, episode, step.step).catch((error) => ({ note: error.message, messages: [] }));
    return [
      answer.note ? h("p", { class: "dim" }, answer.note) : null,
      answer.tokens
        ? h(
            "p",
            { class: "dim" },
            `What the model saw before its answer: ${count(answer.tokens, "token")}`,
            answer.first > 1 ? `. It begins with step ${number(answer.first)}: earlier ones have left the window` : "",
            ".",
          )
        : null,
      list(answer.messages),
    ];
  }

  function list(messages) {
    const message = (one) =>
      h(
        "div",
        { class: "message" },
        h("b", {}, one.role || "text", one.step ? ` (step ${number(one.step)})` : ""),
        one.images ? h("span", { class: "badge" }, count(one.images, "screenshot")) : null,
        one.text ? h("pre", {}, one.text) : null,
      );
    return h("div", { class: "messages" }, messages.map(message));
  }

  return { render, load, list };
})();
