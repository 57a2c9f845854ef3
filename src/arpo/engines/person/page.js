"use strict";
// A person plays: every gesture on the screen becomes one action, and each action one step of the episode.

const CLICK_MS = 260; // a second click within this time makes a double click
const WHEEL_MS = 250; // a gesture of the wheel ends after this time
const DRAG_PIXELS = 5; // of the page
const LOOK_MS = 700; // a second click on Done must not end an episode that nobody has seen
const KEYS = {
  Control: "", Shift: "", Alt: "", Meta: "", AltGraph: "", CapsLock: "", Dead: "", Unidentified: "", Process: "",
  Escape: "esc", ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down", " ": "space",
};
const DISCARD = { discard: true };
const CLICKS = ["Click", "DoubleClick", "TripleClick"];

const find = (id) => document.getElementById(id);
const screen_ = find("screen");
let state = { number: 0 };
let queue = []; // actions for this screen and the next ones
let typed = "";
let press = null;
let clicks = 0, clicked = null, clickTimer = 0, wheelTimer = 0, sending = false;

async function follow() {
  for (;;) {
    try {
      const reply = await fetch(`state?after=${state.number}`);
      if (!reply.ok) throw new Error();
      const next = await reply.json();
      if (next.number && next.number !== state.number) show(next);
      else if (!next.number && state.number) wait();
    } catch {
      find("step").textContent = "No connection. If `arpo collect` has ended, start it again and open its new address.";
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
}

function show(next) {
  if (next.step === 1) {
    queue = [];
    setTyped("");
    for (const id of ["done", "fail"]) {
      find(id).disabled = true;
      setTimeout(() => { find(id).disabled = false; }, LOOK_MS);
    }
  }
  find("fault").textContent = "";
  state = next;
  find("instruction").textContent = next.instruction;
  find("step").textContent = next.step === 1 ? "A new episode, step 1" : `step ${next.step}`;
  screen_.src = `screens/${next.number}`;
  const room = Math.min((Math.min(1200, innerWidth) - 40) / next.width, (innerHeight - 260) / next.height);
  const zoom = next.width <= 640 ? Math.floor(room) || 1 : 1;
  screen_.width = next.width * zoom;
  screen_.classList.toggle("small", zoom > 1);
  screen_.classList.remove("busy");
  screen_.hidden = false;
  sending = false;
  document.title = next.instruction;
  send();
}

function wait() {
  state = { ...state, number: 0 };
  screen_.classList.add("busy");
  find("step").textContent = "Waiting for the next screen …";
}

function act(action) {
  if (typed) {
    queue.push({ do: "Type", text: typed, submit: false });
    setTyped("");
  }
  queue.push(action);
  send();
}

async function send() {
  if (sending || !state.number || !queue.length) return;
  sending = true;
  screen_.classList.add("busy");
  const thought = find("thought"), action = queue.shift();
  const answer = action === DISCARD ? DISCARD : { actions: [action], thought: thought.value.trim() };
  const body = JSON.stringify({ number: state.number, ...answer });
  try {
    const reply = await fetch("act", { method: "POST", body });
    if (reply.ok) {
      thought.value = "";
      if (action === DISCARD) find("step").textContent = "Discarded. The task starts again …";
      return;
    }
    find("fault").textContent = (await reply.json()).error;
  } catch {
    find("fault").textContent = "Not sent: there is no connection.";
  }
  queue = [];
  sending = false;
  screen_.classList.remove("busy");
}

function setTyped(text) {
  typed = text;
  find("typed").textContent = text ? `typing: ${text}` : "";
}

function place(event) {
  const box = screen_.getBoundingClientRect();
  const inside = (value, size) => Math.min(Math.max(Math.floor(value), 0), size - 1);
  return {
    x: inside((event.clientX - box.left) / box.width * state.width, state.width),
    y: inside((event.clientY - box.top) / box.height * state.height, state.height),
  };
}

screen_.addEventListener("pointerdown", (event) => {
  event.preventDefault();
  document.activeElement?.blur?.();
  if (event.button === 0) press = { point: place(event), x: event.clientX, y: event.clientY };
});
addEventListener("pointerup", (event) => {
  if (!press || event.button !== 0) return;
  const start = press;
  press = null;
  if (Math.hypot(event.clientX - start.x, event.clientY - start.y) > DRAG_PIXELS) {
    act({ do: "Drag", start: start.point, end: place(event) });
    return;
  }
  if (clicked && Math.hypot(start.x - clicked.x, start.y - clicked.y) > DRAG_PIXELS) endClicks();
  clicks += 1;
  clicked = start;
  clearTimeout(clickTimer);
  clickTimer = setTimeout(endClicks, CLICK_MS);
});

function endClicks() {
  clearTimeout(clickTimer);
  if (!clicked) return;
  const action = { do: CLICKS[Math.min(clicks, 3) - 1], point: clicked.point };
  clicks = 0;
  clicked = null;
  act(action);
}

screen_.addEventListener("contextmenu", (event) => {
  event.preventDefault();
  act({ do: "RightClick", point: place(event) });
});
screen_.addEventListener("auxclick", (event) => {
  if (event.button === 1) act({ do: "MiddleClick", point: place(event) });
});
screen_.addEventListener("wheel", (event) => {
  event.preventDefault();
  const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
  const way = sideways ? (event.deltaX > 0 ? "right" : "left") : event.deltaY > 0 ? "down" : "up";
  const point = place(event);
  clearTimeout(wheelTimer);
  wheelTimer = setTimeout(() => act({ do: "Scroll", point, direction: way }), WHEEL_MS);
}, { passive: false });

addEventListener("keydown", (event) => {
  if (event.isComposing || event.target.closest("input, button")) return;
  endClicks();
  const held = [["ctrl", event.ctrlKey], ["alt", event.altKey], ["win", event.metaKey]].filter((one) => one[1]);
  const printable = [...event.key].length === 1;
  if (printable && (!held.length || event.getModifierState("AltGraph"))) {
    event.preventDefault();
    setTyped(typed + event.key);
    return;
  }
  const key = KEYS[event.key] ?? event.key.toLowerCase();
  if (!key) return;
  event.preventDefault();
  if (!held.length && typed && key === "backspace") return setTyped([...typed].slice(0, -1).join(""));
  if (!held.length && typed && key === "enter") {
    queue.push({ do: "Type", text: typed, submit: true });
    setTyped("");
    send();
    return;
  }
  const shift = event.shiftKey ? ["shift"] : [];
  act({ do: "Hotkey", keys: [...held.map((one) => one[0]), ...shift, key] });
});

for (const [id, action] of [["wait", { do: "Wait" }], ["done", { do: "Finished", content: "" }], ["fail", { do: "Fail" }]]) {
  find(id).addEventListener("click", () => {
    find(id).blur(); // keys go to the screen again
    endClicks();
    act(action);
  });
}
find("discard").addEventListener("click", () => {
  find("discard").blur();
  clearTimeout(clickTimer);
  clearTimeout(wheelTimer);
  clicks = 0;
  clicked = null;
  queue = [];
  setTyped("");
  act(DISCARD);
});
follow();
