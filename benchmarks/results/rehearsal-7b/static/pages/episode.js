"use strict";
// Page "Episode": one screenshot at a time, the answer beside it, a film strip, and arrow keys.

arpo.episode = (() => {
  const { h } = arpo.dom;
  const { number, signed, seconds, count } = arpo.words;
  const { link } = arpo.app;

  const kept = { address: "", value: null }; // arrow keys ask for the same episode again

  async function load(context) {
    const address = `${context.source} ${context.parts[0]} ${context.info?.stamp}`;
    if (kept.address !== address) {
      kept.value = await arpo.api.get(["s", context.source, "episodes", context.parts[0]]);
      kept.address = address;
    }
    return kept.value;
  }

  // step=end is the newest one, also while the episode is played.
  const stepOf = (query, last) =>
    query.step === "end" ? last : Math.max(1, Math.min(last, Number.parseInt(query.step, 10) || 1));

  async function render(context) {
    const episode = await load(context);
    const frames = [...episode.steps_list];
    if (episode.final) frames.push({ shot: episode.final, final: true });
    const last = frames.length;
    const at = stepOf(context.query, last);
    Object.assign(context, {
      at,
      last,
      steps: episode.steps_list.length,
      previous: episode.previous,
      next: episode.next,
      group: episode.group,
    });
    const frame = frames[at - 1];
    const compared =
      context.query.difference === "1" && at > 1 && frame.shot?.url && frames[at - 2].shot?.url;
    if (at < last) arpo.screen.prefetch(frames[at].shot);
    const to = (name) => name && link(["s", context.source, "episode", name]);
    return [
      arpo.heading(episode.instruction || episode.task, to(episode.previous), to(episode.next), "episode"),
      facts(context, episode),
      h(
        "div",
        { class: "player" },
        h(
          "section",
          { class: "stage", "aria-label": "Screenshot" },
          compared
            ? await arpo.screen.difference(context.source, frames[at - 2].shot, frame.shot)
            : arpo.screen.screen(frame, {
                alt: frame.final ? "Final screenshot" : `Screenshot of step ${at}`,
                decoding: "sync",
              }),
          controls(context, frame, compared),
          strip(context, frames),
        ),
        h(
          "div",
          { class: "side" },
          h(
            "section",
            { class: "answer", "aria-label": "Answer" },
            frame.final ? ending(episode) : await answer(context, episode, frame),
          ),
          await transcript(context, episode),
          episode.judged.map(judgement),
        ),
      ),
    ];
  }

  const prompts = { address: "", value: null }; // of the first step, for arrow keys

  async function firstPrompt(context, episode) {
    const address = `${context.source} ${episode.episode}`;
    if (prompts.address !== address) {
      const found = await arpo.prompts.load(context, episode.episode, 1).catch(() => null);
      Object.assign(prompts, { address, value: found });
    }
    return prompts.value?.messages.length ? arpo.prompts.list(prompts.value.messages) : null;
  }

  // The prompt, and the thoughts and actions of all steps.
  async function transcript(context, episode) {
    const prompt = episode.steps_list.length ? await firstPrompt(context, episode) : null;
    const item = (step) =>
      h(
        "li",
        { "aria-current": step.step === context.at ? "step" : null },
        h("a", { href: context.withQuery(context, { step: step.step }) }, `Step ${step.step}`),
        h("p", {}, step.thought || (step.action_text ? "" : step.answer)),
        step.action_text && h("code", {}, step.action_text),
        step.error && h("p", { class: "bad" }, `Does not parse: ${step.error}`),
      );
    return h(
      "section",
      { class: "transcript", "aria-label": "Transcript" },
      h("h2", {}, "Transcript"),
      prompt && h("details", {}, h("summary", { "data-key": "first prompt" }, "Prompt of the first step"), prompt),
      h(
        "ol",
        { tabindex: 0, "aria-label": "All steps" },
        episode.steps_list.map(item),
        h("li", {}, h("b", {}, "End: "), episode.end),
      ),
    );
  }

  // The votes of a judge with their reasons (`arpo judge`).
  function judgement({ model, success, votes }) {
    const verdict = (value) => (known(value) ? (value ? "success" : "failure") : "missing");
    const agree = votes.filter((vote) => vote.success === success).length;
    return h(
      "section",
      { class: "judged", "aria-label": `Judge ${model}` },
      h("h2", {}, `Judge ${model}`),
      h(
        "p",
        { class: known(success) ? (success ? "good" : "bad") : "dim" },
        `${verdict(success)}${known(success) ? ` (${agree} of ${count(votes.length, "vote")})` : ""}`,
      ),
      h(
        "ul",
        {},
        votes.map((vote) => h("li", {}, h("b", {}, `${verdict(vote.success)}: `), vote.reason)),
      ),
    );
  }

  function facts(context, episode) {
    const { source } = context;
    const batches = (episode.replayed_in || []).map((batch) =>
      h("a", { href: link(["s", source, "batch", batch]) }, `batch ${batch}`),
    );
    const replaced = episode.replaced_by;
    return h(
      "div",
      { class: "line" },
      known(episode.score) &&
        h("span", { class: `badge ${episode.solved ? "good" : "bad"}` }, `score ${number(episode.score)}`),
      known(episode.reward) ? h("span", { class: "badge" }, `reward ${number(episode.reward)}`) : null,
      known(episode.advantage)
        ? h("span", { class: "badge" }, `advantage ${signed(episode.advantage)}`)
        : null,
      batches.length
        ? h(
            "span",
            { class: "badge accent" },
            "replayed in ",
            batches.map((one, index) => [index ? ", " : "", one]),
          )
        : null,
      h("span", {}, episode.end),
      h(
        "span",
        { class: "dim" },
        h("code", {}, episode.episode),
        ", ",
        h("a", { href: link(["s", source, "task", episode.task]) }, episode.task),
        episode.task_set ? ` (${episode.task_set})` : "",
        ", ",
        episode.batch
          ? h("a", { href: link(["s", source, "batch", episode.batch]) }, episode.phase_title)
          : episode.phase_title,
        episode.group
          ? [", ", h("a", { href: link(["s", source, "group", episode.group]) }, "its group")]
          : null,
      ),
      !arpo.api.exported &&
        arpo.dom.download(arpo.api.gifAddress(source, episode.episode), `${fileName(episode.episode)}.gif`, "Save as GIF"),
      replaced
        ? h(
            "span",
            { class: "accent" },
            "Replay replaced it by ",
            h("a", { href: link(["s", source, "episode", replaced.episode]) }, replaced.episode),
            ` in batch ${replaced.batch}.`,
          )
        : null,
    );
  }

  const fileName = (name) => name.replaceAll(/[^\w.-]+/g, "-");

  const known = (value) => value !== null && value !== undefined;

  function controls(context, frame, compared) {
    const { at, last } = context;
    const move = (to, sign, label) =>
      h(
        "button",
        {
          type: "button",
          "data-key": label,
          "aria-label": label,
          title: label,
          disabled: to < 1 || to > last,
          onclick: () => go(context, to),
        },
        sign,
      );
    return h(
      "div",
      { class: "controls" },
      h(
        "button",
        { type: "button", "data-key": "play", title: "Play or pause (p)", onclick: () => play(context) },
        player.timer ? "Pause" : "Play",
      ),
      move(at - 1, "←", "Previous step"),
      h("input", {
        type: "range",
        min: 1,
        max: last,
        value: at,
        id: "scrub",
        "aria-label": "Step",
        "aria-valuetext": frame.final ? "final screenshot" : `step ${at} of ${context.steps}`,
        oninput: (event) => go(context, Number(event.target.value)),
      }),
      move(at + 1, "→", "Next step"),
      h("span", { class: "where" }, frame.final ? "final screenshot" : `step ${at} of ${context.steps}`),
      h(
        "button",
        {
          type: "button",
          "data-key": "difference",
          "aria-pressed": compared ? "true" : "false",
          disabled: at === 1,
          title: "Difference to the previous screenshot (d)",
          onclick: () => toggle(context, "difference", "1"),
        },
        "Difference",
      ),
    );
  }

  const SECONDS = 1.2; // of a step
  const player = { timer: 0 };

  function setTimer(timer) {
    clearInterval(player.timer);
    player.timer = timer;
    const button = document.querySelector('[data-key="play"]');
    if (button) button.textContent = timer ? "Pause" : "Play";
  }

  // Show one step after the other, from the first one if the last one is shown.
  function play(context) {
    if (player.timer) return setTimer(0);
    const here = () => location.hash.split("?");
    const [place] = here();
    const next = () => {
      const [now, query = ""] = here();
      if (now !== place) return setTimer(0);
      const to = stepOf(Object.fromEntries(new URLSearchParams(query)), context.last) + 1;
      if (to >= context.last) setTimer(0);
      go(context, to);
    };
    setTimer(setInterval(next, 1000 * SECONDS));
    if (context.at < context.last) next();
    else go(context, 1);
  }

  function go(context, to) {
    context.setQuery(context, { step: Math.max(1, Math.min(context.last, to)) });
  }

  function toggle(context, name, value) {
    context.setQuery(context, { [name]: context.query[name] === value ? "" : value });
  }

  function strip(context, frames) {
    return h(
      "ol",
      { class: "strip", "aria-label": "Film strip" },
      frames.map((frame, index) =>
        h(
          "li",
          {},
          h(
            "a",
            {
              href: context.withQuery(context, { step: index + 1 }),
              "aria-current": index + 1 === context.at ? "step" : null,
              "aria-label": frame.final
                ? "Final screenshot"
                : `Step ${index + 1}${frame.error ? ", does not parse" : ""}`,
              class: frame.error ? "bad" : null,
            },
            arpo.screen.screen(frame, { width: 160, chips: false }),
            h("span", {}, frame.final ? "end" : index + 1),
          ),
        ),
      ),
    );
  }

  const VIEWS = { "": "Answer", raw: "Raw answer", prompt: "Prompt", tokens: "Tokens" };

  async function answer(context, episode, step) {
    const view = Object.hasOwn(VIEWS, context.query.view) ? context.query.view : "";
    const tab = ([name, label]) =>
      h(
        "button",
        {
          type: "button",
          "data-key": `view ${name}`,
          "aria-pressed": view === name ? "true" : "false",
          onclick: () => context.setQuery(context, { view: name }),
        },
        label,
      );
    const contents = { "": parsed, raw: raw, prompt: arpo.prompts.render, tokens: arpo.tokens.render };
    return [
      h("div", { class: "controls" }, Object.entries(VIEWS).map(tab)),
      step.error && h("p", { class: "warn", role: "note" }, `Does not parse: ${step.error}`),
      await contents[view](context, episode.episode, step),
      h("p", { class: "dim small" }, call(step).join(" · ")),
    ];
  }

  function parsed(context, episode, step) {
    return [
      h("h2", {}, "Thought"),
      h("p", { class: "thought" }, step.thought || "–"),
      h("h2", {}, "Action"),
      h("pre", {}, step.action_text || "–"),
    ];
  }

  function raw(context, episode, step) {
    return h("pre", {}, step.answer);
  }

  // Durations of the answer and of its actions, and the moment of the run at which they began.
  function timesOf(step) {
    if (!step.times) return [known(step.seconds) ? seconds(step.seconds) : "time per call not stored"];
    const { engine, step: action } = step.times;
    return [
      engine && `answer ${seconds(engine[1])}`,
      action && `action ${seconds(action[1])}`,
      engine && `began ${seconds(engine[0])} after the start of the run`,
    ];
  }

  // Facts about one call of the model.
  function call(step) {
    return [
      step.tokens && count(step.tokens, "token"),
      known(step.mean_logprob) && `mean log-probability ${number(step.mean_logprob)}`,
      ...timesOf(step),
      step.versions?.length && `version ${step.versions.join(", ")}`,
      step.finish === "length" && "cut by length",
    ].filter(Boolean);
  }

  // The film strip scrolls to the current step.
  function shown() {
    const now = document.querySelector(".strip [aria-current]"),
      strip = now?.closest(".strip");
    if (strip) strip.scrollLeft = now.offsetLeft - strip.clientWidth / 2;
    const said = document.querySelector(".transcript [aria-current]"),
      list = said?.closest("ol");
    if (list) list.scrollTop = said.offsetTop - list.offsetTop - list.clientHeight / 3;
  }

  function ending(episode) {
    return [
      h("h2", {}, "Final screenshot"),
      h("p", { class: episode.solved ? "good" : "bad" }, episode.end),
      episode.end_detail ? h("p", {}, episode.end_detail) : null,
      h("p", { class: "dim small" }, ends(episode.times || {}).join(" · ")),
    ];
  }

  // Durations of the calls before the first and after the last step.
  function ends({ start, evaluate }) {
    return [
      start && `start of the environment ${seconds(start[1])}`,
      evaluate && `evaluation ${seconds(evaluate[1])}`,
    ].filter(Boolean);
  }

  function keys(event, context) {
    if (!context.last || event.target.type === "range") return;
    const at = stepOf(context.query, context.last);
    const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 1, End: context.last };
    const views = {
      "[": ["episode", context.previous],
      "]": ["episode", context.next],
      g: ["group", context.group],
    };
    if (Object.hasOwn(moves, event.key)) go(context, moves[event.key]);
    else if (Object.hasOwn(views, event.key) && views[event.key][1])
      location.hash = link(["s", context.source, ...views[event.key]]);
    else if (event.key === "p") play(context);
    else if (event.key === "d") toggle(context, "difference", "1");
    else if (event.key === "t") toggle(context, "view", "tokens");
    else return;
    event.preventDefault();
  }

  arpo.app.pages.episode = {
    title: (context) => `Episode ${context.parts[0]}`,
    tab: "episodes",
    render,
    keys,
    shown,
  };
})();
