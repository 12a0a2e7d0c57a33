// A game at the other end of a WebSocket, in lines. Knows no game.
//
// Where the gate is: `?gate=ws://HOST:PORT` in the page's address, else port 8081 of the host that the page came from.
"use strict";

// Lines that are kept at most; half of them go at a time.
const TOLD_MAX = 8192;

class Gate {
  // `online` is called with each line, `onstate` with "open" or with why it is closed.
  constructor(online, onstate) {
    this.online = online;
    this.onstate = onstate;
    this.told = []; // The last lines; tests compare them.
    this.rest = "";
    this.connect();
  }

  static address() {
    const asked = new URLSearchParams(location.search).get("gate");
    if (asked) return asked;
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    return `${scheme}://${location.hostname || "127.0.0.1"}:8081`;
  }

  connect() {
    let socket;
    try {
      socket = new WebSocket(Gate.address());
    } catch (error) {
      this.onstate(`${Gate.address()} is no address of a gate: ${error.message}`);
      return;
    }
    this.socket = socket;
    socket.onopen = () => this.onstate("open");
    socket.onmessage = (event) => this.hear(event.data);
    socket.onclose = (event) => {
      const why = event.code === 1000 ? "the game ended the connection" : event.reason;
      this.onstate(why || `no connection to ${Gate.address()}`);
    };
  }

  // A cell says whole lines; a message may hold several.
  hear(text) {
    if (typeof text !== "string") return;
    const lines = (this.rest + text).split("\n");
    this.rest = lines.pop();
    for (const line of lines) {
      if (this.told.length >= TOLD_MAX) this.told.splice(0, TOLD_MAX / 2);
      this.told.push(line);
      this.online(line);
    }
  }

  get isOpen() {
    return this.socket && this.socket.readyState === WebSocket.OPEN;
  }

  say(text) {
    if (this.isOpen) this.socket.send(text + "\n");
  }
}
