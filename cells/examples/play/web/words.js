// Scrabble in a browser, against the edge (`scrabble`) or for two (`duel`): shows the board that the cell says, and says the moves.
// Words, tiles and turns are known elsewhere.
"use strict";

const $ = (id) => document.getElementById(id);
const SIZE = 15;
const VALUES = [1, 3, 3, 2, 1, 4, 2, 4, 1, 8, 5, 1, 3, 1, 1, 3, 10, 1, 1, 1, 1, 4, 4, 8, 4, 10];
const PREMIUMS = { "=": ["word3", "3W"], "-": ["word2", "2W"], '"': ["letter3", "3L"], "'": ["letter2", "2L"] };
const state = { isForTwo: false, wantsBoard: false, over: null };

const squares = [];
for (let row = 1; row <= SIZE; row += 1) {
  for (const column of "abcdefghijklmno") {
    const field = document.createElement("button");
    field.dataset.square = column + row;
    field.title = field.dataset.square;
    field.addEventListener("click", () => choose(field.dataset.square));
    squares.push(field);
    $("board").append(field);
  }
}

// The square where the word begins; one that is chosen already turns the word.
function choose(square) {
  if ($("square").value === square) $("way").selectedIndex = 1 - $("way").selectedIndex;
  $("square").value = square;
  $("word").focus();
}

// A tile: its letter, and what it counts unless it is a blank.
function tile(element, letter) {
  const isBlank = letter === "?" || letter !== letter.toLowerCase();
  element.className = isBlank ? "tile blank" : "tile";
  element.textContent = letter.toUpperCase();
  if (!isBlank) {
    const value = document.createElement("sub");
    value.textContent = VALUES[letter.charCodeAt(0) - 97];
    element.append(value);
  }
}

// A row: its number, and a space before each of its squares.
function show(line) {
  const first = (Number(line.slice(0, 3)) - 1) * SIZE;
  for (let column = 0; column < SIZE; column += 1) {
    const [field, look] = [squares[first + column], line[4 + 2 * column]];
    if (/[a-z]/i.test(look)) tile(field, look);
    else [field.className, field.textContent] = PREMIUMS[look] || ["", ""];
  }
}

function score([mine, theirs, , bag, , rack]) {
  $("points").textContent = `${mine} : ${theirs} · ${bag} in the bag`;
  $("rack").replaceChildren(
    ...(rack === "none" ? [] : [...rack]).map((letter) => {
      const element = document.createElement("span");
      tile(element, letter);
      return element;
    }),
  );
  if (state.wantsBoard) gate.say("board");
  state.wantsBoard = false;
}

// What can be done now: "start", "sit", "move" or nothing.
function offer(what) {
  $("play").hidden = what !== "start";
  $("sit").hidden = what !== "sit";
  $("move").hidden = what !== "move";
}

function begin() {
  $("moves").replaceChildren();
  Object.assign(state, { wantsBoard: true, over: null });
  $("what").textContent = "";
  offer("move");
}

function heard(line) {
  const words = line.split(" ");
  if (/^ *\d+ /.test(line) && line.length === 3 + 2 * SIZE) show(line);
  else if (words[0] === "scrabble" || words[0] === "scrabble:") {
    state.isForTwo = words[0] === "scrabble";
    $("what").textContent = "";
    offer(state.isForTwo ? "sit" : "start");
  } else if (words[0] === "score") score(words.slice(1));
  else if (words[0] === "wait") {
    $("what").textContent = `Waiting for another at ${words[2]}.`;
    offer(null);
  } else if (words[0] === "begin") {
    begin();
    $("what").textContent = words.slice(1).join(" ") + ".";
  } else if (["you", "edge", "other"].includes(words[0])) {
    const move = document.createElement("li");
    move.textContent = line;
    $("moves").prepend(move);
    state.wantsBoard = true;
    $("what").textContent = "";
    if (words[0] === "you") $("word").value = "";
  } else if (words[0] === "over") {
    state.over = words.slice(1).join(" ");
    $("what").textContent = state.over;
    offer(state.isForTwo ? "sit" : "start");
  } else if (words[0] === "error") {
    $("what").textContent = words.slice(1).join(" ") + ".";
    // A table that was not to be had.
    if ($("move").hidden) offer(state.isForTwo ? "sit" : "start");
  }
}

const gate = new Gate(heard, (what) => {
  $("what").textContent = what === "open" ? "" : what;
  if (what !== "open") offer(null);
});

$("play").addEventListener("click", () => {
  begin();
  gate.say("start");
});
$("sit").addEventListener("submit", (event) => {
  event.preventDefault();
  gate.say(`sit ${$("table").value.trim()}`);
});
$("move").addEventListener("submit", (event) => {
  event.preventDefault();
  gate.say(`play ${$("word").value.trim()} ${$("square").value.trim()} ${$("way").value}`);
});
$("move").elements.exchange.addEventListener("click", () => gate.say(`exchange ${$("word").value.trim()}`));
$("move").elements.pass.addEventListener("click", () => gate.say("pass"));
