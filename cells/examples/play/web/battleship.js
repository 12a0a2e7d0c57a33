// Battleship in a browser: shows the board that the cell says, and says where to fire. The fleets are at the edge.
"use strict";

const $ = (id) => document.getElementById(id);
const SIZE = 10;
const LOOKS = { o: "ship", "~": "miss", x: "hit", "#": "sunk" };
const state = { isOn: false, over: null, row: 0, shots: 0 };

// A square's name, as lines have it.
const square = (column, row) => "abcdefghij"[column] + (row + 1);

function sea(id, isTarget) {
  for (let row = 0; row < SIZE; row += 1) {
    for (let column = 0; column < SIZE; column += 1) {
      const field = document.createElement(isTarget ? "button" : "span");
      field.dataset.square = square(column, row);
      field.title = field.dataset.square;
      if (isTarget) field.addEventListener("click", () => fire(field.dataset.square));
      $(id).append(field);
    }
  }
  return [...$(id).children];
}
const seas = { edge: sea("edge", true), yours: sea("yours", false) };

function fire(at) {
  if (state.isOn) gate.say(`fire ${at}`);
}

// One row of both seas: number, 10 squares with a space before each, three spaces, and the same again.
function show(line) {
  for (const [id, start] of [["edge", 3], ["yours", 29]]) {
    for (let column = 0; column < SIZE; column += 1) {
      const look = LOOKS[line[start + 1 + 2 * column]] || "";
      seas[id][(Number(line.slice(0, 3)) - 1) * SIZE + column].className = look;
    }
  }
}

function tell(what, button) {
  $("what").textContent = what;
  $("play").hidden = !button;
}

function heard(line) {
  const words = line.split(" ");
  if (/^ *\d+ [ .o~x#]/.test(line) && line.length > 40) show(line);
  else if (words[0] === "place") gate.say("place all");
  else if (words[0] === "ready") {
    Object.assign(state, { isOn: true, over: null, shots: 0 });
    tell("Fire.", false);
    gate.say("board");
  } else if (words[0] === "over") {
    Object.assign(state, { isOn: false, over: words.slice(1).join(" ") });
    tell(state.over, true);
    gate.say("board");
  } else if (words[0] === "edge") {
    $("what").textContent += ` The edge fires at ${words[1]}: ${words.slice(2).join(" ")}.`;
    gate.say("board");
  } else if (/^[a-j]\d+$/.test(words[0])) {
    state.shots += 1;
    $("points").textContent = `${state.shots} shots`;
    $("what").textContent = `${words[0]}: ${words.slice(1).join(" ")}.`;
  } else if (words[0] === "error") {
    $("what").textContent = `${words.slice(1).join(" ")}.`;
  }
}

const gate = new Gate(heard, (what) => (what === "open" ? tell("The fleets are laid by chance.", true) : tell(what, false)));
$("play").addEventListener("click", () => {
  $("points").textContent = "";
  gate.say("start");
});
