// Snake and pong in a browser: draws the lines that the cell says, and says the keys that are pressed. The world and its rules are
// at the edge; nothing here decides anything.
"use strict";

const ASK = new URLSearchParams(location.search);
const $ = (id) => document.getElementById(id);
const COLOURS = { snake: "#8ed081", head: "#d9f2c4", food: "#e76f51", ball: "#f4f1de", paddle: "#e9c46a", net: "#24453c" };

// Each game: its size in squares, and what a line of it comes to.
const GAMES = {
  snake: {
    columns: 40,
    rows: 20,
    help: "Arrows or <kbd>w</kbd> <kbd>a</kbd> <kbd>s</kbd> <kbd>d</kbd> steer.",
    // `head X Y food X Y length N`: the body is where the head was.
    take(world, words) {
      const [x, y, foodX, foodY, length] = [1, 2, 4, 5, 7].map((at) => Number(words[at]));
      if (words[0] !== "head") return null;
      let body = world && world.body;
      if (!body) {
        body = [];
        for (let back = length - 1; back > 0; back -= 1) body.push([x - back, y]);
      }
      body = [...body, [x, y]].slice(-length);
      return { body, food: [foodX, foodY], points: `length ${length}` };
    },
    draw(brush, world) {
      const [x, y] = world.food;
      brush.round(x + 0.15, y + 0.15, 0.7, 0.7, 0.35, COLOURS.food);
      world.body.forEach(([x, y], at) => {
        const isHead = at === world.body.length - 1;
        brush.round(x + 0.06, y + 0.06, 0.88, 0.88, 0.3, isHead ? COLOURS.head : COLOURS.snake);
      });
    },
  },
  pong: {
    columns: 60,
    rows: 20,
    help: "<kbd>↑</kbd> and <kbd>↓</kbd> run, <kbd>←</kbd> or <kbd>→</kbd> stops. You are on the left.",
    // `ball X Y paddles TOP TOP points N N`
    take(_, words) {
      const [x, y, left, right, mine, theirs] = [1, 2, 4, 5, 7, 8].map((at) => Number(words[at]));
      if (words[0] !== "ball") return null;
      return { ball: [x, y], tops: [left, right], points: `${mine} : ${theirs}` };
    },
    draw(brush, world) {
      for (let y = 0.25; y < 20; y += 1) brush.round(29.9, y, 0.2, 0.5, 0.1, COLOURS.net);
      brush.round(1.1, world.tops[0], 0.8, 4, 0.3, COLOURS.paddle);
      brush.round(58.1, world.tops[1], 0.8, 4, 0.3, COLOURS.paddle);
      brush.round(world.ball[0], world.ball[1], 1, 1, 0.5, COLOURS.ball);
    },
  },
};

const name = Object.hasOwn(GAMES, ASK.get("game")) ? ASK.get("game") : "snake";
const game = GAMES[name];
const canvas = $("field");
const state = { world: null, tick: -1, isOn: false, over: null };

const brush = {
  context: canvas.getContext("2d"),
  unit: 1,
  round(x, y, width, height, radius, colour) {
    const { context, unit } = this;
    context.fillStyle = colour;
    context.beginPath();
    context.roundRect(x * unit, y * unit, width * unit, height * unit, radius * unit);
    context.fill();
  },
};

function fit() {
  // All of it is to be seen at once.
  $("stage").style.maxWidth = `calc((100vh - 8rem) * ${game.columns / game.rows})`;
  canvas.style.aspectRatio = `${game.columns} / ${game.rows}`;
  canvas.width = Math.round(canvas.clientWidth * devicePixelRatio);
  canvas.height = Math.round((canvas.width * game.rows) / game.columns);
  brush.unit = canvas.width / game.columns;
  draw();
}

function draw() {
  brush.context.clearRect(0, 0, canvas.width, canvas.height);
  if (state.world) game.draw(brush, state.world);
  $("points").textContent = state.world ? state.world.points : "";
}

// What stands over the field; nothing while a game is on.
function veil(what, button) {
  $("veil").hidden = what === null;
  $("what").textContent = what || "";
  $("play").hidden = !button;
  $("play").textContent = button || "";
}

function heard(line) {
  const words = line.split(" ");
  if (words[0] === "over") {
    state.isOn = false;
    state.over = words.slice(1).join(" ");
    veil(state.over, "Play again");
  } else if (words[0] === "error") {
    $("help").textContent = `${words.slice(1).join(" ")}.`;
  } else if (/^\d+$/.test(words[0])) {
    const tick = Number(words[0]);
    const world = game.take(tick === 0 ? null : state.world, words.slice(1));
    if (!world) return;
    Object.assign(state, { world, tick, isOn: true, over: null });
    veil(null);
    requestAnimationFrame(draw);
  }
}

const gate = new Gate(heard, (what) => {
  if (what === "open") veil("", "Play");
  else veil(what, null);
});

function play() {
  if (!state.isOn && gate.isOpen) gate.say("start");
}

function press(key) {
  if (state.isOn) gate.say(key);
  else if (key === " ") play();
}

const KEYS = { ArrowUp: "up", ArrowDown: "down", ArrowLeft: "left", ArrowRight: "right", w: "up", s: "down", a: "left", d: "right" };
addEventListener("keydown", (event) => {
  const key = KEYS[event.key];
  if (key) press(key);
  else if (event.key === " " && !state.isOn) play();
  else return;
  event.preventDefault();
});
$("play").addEventListener("click", play);

// A swipe counts as soon as it is one, so that a finger can steer without being lifted.
let from = null;
canvas.addEventListener("pointerdown", (event) => { from = [event.clientX, event.clientY]; });
canvas.addEventListener("pointermove", (event) => {
  if (!from) return;
  const [x, y] = [event.clientX - from[0], event.clientY - from[1]];
  if (Math.max(Math.abs(x), Math.abs(y)) < 24) return;
  press(Math.abs(x) > Math.abs(y) ? (x > 0 ? "right" : "left") : y > 0 ? "down" : "up");
  from = [event.clientX, event.clientY];
});
for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => { from = null; });

const other = name === "snake" ? "pong" : "snake";
$("name").innerHTML = `${name}<a href="?${new URLSearchParams({ ...Object.fromEntries(ASK), game: other })}">${other}</a>`;
$("help").innerHTML = game.help;
addEventListener("resize", fit);
fit();
