//! The mode `http`: an intermediary between one client's connection and one server's connection. Heads are parsed, checked and
//! written again, so that they cannot be read in two ways; bodies pass unchanged, or are decoded or encoded as they arrive.
//!
//! Requests are passed on as they arrive, pipelined or not. A queue holds what must be known of each when its response arrives.
//! Since each client's connection has one server's connection to itself, their keep-alive fields pass unchanged.

mod body;
mod forwarded;
mod head;
mod list;
mod negotiate;
mod pump;
mod write;

use crate::config::Config;
use crate::pipe::{Inbox, Out, Pipe, Side};
use body::Framing;
use forwarded::Teller;
use head::{FIELDS_MAX, HEAD_BYTES_MAX, Request, Response, Scan};
use negotiate::{Asked, Change};
use pump::{Codecs, Pump, Pumped, Wrap};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Most requests that wait for their responses; further requests are not read before.
const PIPELINE_MAX: usize = 256;

/// The intermediary.
pub struct Mediator {
    config: Config,
    teller: Teller,
    /// Input from the client, then from the server.
    requests: Inbox,
    responses: Inbox,
    asking: Asking,
    answering: Answering,
    /// Requests without a complete response, in order.
    queue: VecDeque<Exchange>,
    request_scan: Scan,
    response_scan: Scan,
    request_codecs: Codecs,
    response_codecs: Codecs,
    is_server_told: bool,
    is_over: bool,
}

/// State of the client's stream.
enum Asking {
    Head,
    Body {
        pump: Pump,
        then: Then,
    },
    /// An upgrade was requested: the bytes after it may be HTTP or not.
    Held,
    Tunnel,
    /// Further input is ignored.
    Deaf,
}

/// What follows a request.
#[derive(Clone, Copy)]
enum Then {
    Head,
    Held,
    Deaf,
}

impl From<Then> for Asking {
    fn from(then: Then) -> Self {
        match then {
            Then::Head => Self::Head,
            Then::Held => Self::Held,
            Then::Deaf => Self::Deaf,
        }
    }
}

/// State of the server's stream.
enum Answering {
    Head,
    /// `ends`: the connection is closed after the body.
    Body {
        pump: Pump,
        ends: bool,
    },
    Tunnel,
}

/// A request, and the source of its response.
enum Exchange {
    /// The server responds.
    Asked(Asked),
    /// The cell refuses it; the server may not have received it.
    Refused { status: u16, reason: String },
}

impl Mediator {
    /// An intermediary with this configuration.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let [request_codecs, response_codecs] = [0, 1].map(|_| Codecs::new(config.level));
        Self {
            teller: Teller::new(config.forwarded),
            config,
            requests: Inbox::default(),
            responses: Inbox::default(),
            asking: Asking::Head,
            answering: Answering::Head,
            queue: VecDeque::new(),
            request_scan: Scan::default(),
            response_scan: Scan::default(),
            request_codecs,
            response_codecs,
            is_server_told: false,
            is_over: false,
        }
    }

    /// Ends everything.
    fn end_all(&mut self, out: &mut Out, reason: Option<String>) {
        self.is_over = true;
        self.requests.clear();
        self.responses.clear();
        out.end(reason);
    }

    /// Processes the client's input; returns whether there is more to do.
    fn ask(&mut self, out: &mut Out) -> bool {
        match &mut self.asking {
            Asking::Head => return self.ask_head(out),
            Asking::Body { pump, then } => {
                match pump.step(&mut self.requests, &mut self.request_codecs, &mut out.server) {
                    Ok(Pumped::More) => return true,
                    Ok(Pumped::Done) => {
                        self.asking = Asking::from(*then);
                        return true;
                    }
                    Ok(Pumped::Waits) => self.tell_server(out),
                    Err(reason) => self.refuse_body(out, reason),
                }
            }
            Asking::Held => self.tell_server(out),
            Asking::Tunnel => {
                out.server.extend_from_slice(self.requests.rest());
                self.requests.clear();
                self.tell_server(out);
            }
            Asking::Deaf => {
                self.requests.clear();
                self.tell_server(out);
            }
        }
        false
    }

    /// The client has ended its stream, and all of it was passed on.
    fn tell_server(&mut self, out: &mut Out) {
        let holds = matches!(self.asking, Asking::Held) && !self.requests.rest().is_empty();
        if self.requests.is_ended && !holds && !self.is_server_told {
            self.is_server_told = true;
            out.closes_server = true;
        }
    }

    fn ask_head(&mut self, out: &mut Out) -> bool {
        // An empty line before a request is ignored.
        while self.requests.rest().starts_with(b"\r\n") {
            self.requests.take(2);
            self.request_scan = Scan::default();
        }
        if self.queue.len() >= PIPELINE_MAX {
            return false;
        }
        let end = match self.request_scan.end(self.requests.rest()) {
            Ok(Some(end)) if end <= HEAD_BYTES_MAX => end,
            Ok(None) if self.requests.rest().len() <= HEAD_BYTES_MAX => {
                self.tell_server(out);
                return false;
            }
            Ok(_) => {
                self.refuse(431, format!("the head of a request is longer than {HEAD_BYTES_MAX} bytes"));
                return true;
            }
            Err(reason) => {
                self.refuse(400, reason.to_owned());
                return true;
            }
        };
        let mut room = [httparse::EMPTY_HEADER; FIELDS_MAX];
        match Request::parse(&self.requests.rest()[..end], &mut room) {
            Ok(request) if request.method == "CONNECT" => {
                self.refuse(405, "CONNECT is for proxies".to_owned());
            }
            Ok(request) => {
                let asked = Asked::of(&request);
                let change = negotiate::of_request(&self.config, &request);
                write::request(&request, &asked, change, &self.teller, &mut out.server);
                let then = match (asked.upgrade, request.is_last()) {
                    (true, _) => Then::Held,
                    (false, true) => Then::Deaf,
                    (false, false) => Then::Head,
                };
                let framing = request.framing;
                let wrap = wrap_of(framing, change);
                self.queue.push_back(Exchange::Asked(asked));
                self.asking = if framing == Framing::Length(0) {
                    then.into()
                } else {
                    Asking::Body { pump: Pump::new(framing, change, wrap, &mut self.request_codecs), then }
                };
            }
            Err(reason) => self.refuse(400, reason.to_owned()),
        }
        self.requests.take(end);
        true
    }

    /// Stops reading from the client; after the responses to its earlier requests, it gets this error.
    fn refuse(&mut self, status: u16, reason: String) {
        self.queue.push_back(Exchange::Refused { status, reason });
        self.asking = Asking::Deaf;
    }

    /// As [`Mediator::refuse`], for a request that the server has already received in part.
    fn refuse_body(&mut self, out: &mut Out, reason: String) {
        self.asking = Asking::Deaf;
        match self.queue.back_mut() {
            // Its response has not begun.
            Some(exchange @ Exchange::Asked(_)) => *exchange = Exchange::Refused { status: 400, reason },
            _ => self.end_all(out, Some(reason)),
        }
    }

    /// Processes the server's input; returns whether there is more to do.
    fn answer(&mut self, out: &mut Out) -> bool {
        match &mut self.answering {
            Answering::Head => return self.answer_head(out),
            Answering::Body { pump, ends } => {
                match pump.step(&mut self.responses, &mut self.response_codecs, &mut out.client) {
                    Ok(Pumped::More) => return true,
                    Ok(Pumped::Done) if *ends => self.end_all(out, None),
                    Ok(Pumped::Done) => {
                        self.answering = Answering::Head;
                        return true;
                    }
                    Ok(Pumped::Waits) if self.responses.is_ended => {
                        self.end_all(out, Some("the server left in the middle of a body".to_owned()));
                    }
                    Ok(Pumped::Waits) => {}
                    // The client detects it: the last chunk is missing, or there are too few bytes.
                    Err(reason) => self.end_all(out, Some(format!("what the server said: {reason}"))),
                }
            }
            Answering::Tunnel => {
                out.client.extend_from_slice(self.responses.rest());
                self.responses.clear();
                out.closes_client |= self.responses.is_ended;
            }
        }
        false
    }

    fn answer_head(&mut self, out: &mut Out) -> bool {
        if let Some(Exchange::Refused { status, reason }) = self.queue.front() {
            write::refusal(*status, reason, &mut out.client);
            let reason = format!("refused with {status}: {reason}");
            self.end_all(out, Some(reason));
            return false;
        }
        let rest = self.responses.rest();
        if rest.is_empty() && self.responses.is_ended {
            self.end_all(out, None);
            return false;
        }
        let Some(Exchange::Asked(asked)) = self.queue.front() else {
            // Some servers send a response before they close, such as 408; it belongs to no request.
            if !rest.is_empty() {
                self.end_all(out, Some("the server spoke unasked".to_owned()));
            }
            return false;
        };
        let asked = *asked;
        let end = match self.response_scan.end(rest) {
            Ok(Some(end)) if end <= HEAD_BYTES_MAX => end,
            Ok(None) if rest.len() <= HEAD_BYTES_MAX => {
                if self.responses.is_ended {
                    self.end_all(out, Some("the server left in the middle of a head".to_owned()));
                }
                return false;
            }
            Ok(_) => return self.bad_gateway(out, "its head is too long"),
            Err(reason) => return self.bad_gateway(out, reason),
        };
        let mut room = [httparse::EMPTY_HEADER; FIELDS_MAX];
        match Response::parse(&rest[..end], &mut room) {
            Ok(response)
                if response.status == 101 && !(asked.upgrade && matches!(self.asking, Asking::Held)) =>
            {
                return self.bad_gateway(out, "it switches protocols unasked");
            }
            Ok(response) if response.status < 200 => {
                // HTTP/1.0 has no interim responses.
                if asked.version == 1 {
                    write::interim(&response, &mut out.client);
                }
                if response.status == 101 {
                    self.queue.pop_front();
                    (self.asking, self.answering) = (Asking::Tunnel, Answering::Tunnel);
                }
            }
            Ok(response) => {
                let change = negotiate::of_response(&self.config, &asked, &response);
                let framing = response.framing(asked.is_head);
                let (wrap, ends) = wrap_of_response(framing, change, &asked);
                write::response(&response, &asked, change, wrap, ends, &mut out.client);
                self.queue.pop_front();
                // Responses to earlier requests do not decide about the upgrade.
                match &mut self.asking {
                    Asking::Held if asked.upgrade => self.asking = Asking::Head,
                    Asking::Body { then: then @ Then::Held, .. } if asked.upgrade => *then = Then::Head,
                    _ => {}
                }
                // The response to HEAD has only a head, whatever its fields announce.
                let (change, wrap) = if asked.is_head { (Change::Pass, Wrap::Bare) } else { (change, wrap) };
                let pump = Pump::new(framing, change, wrap, &mut self.response_codecs);
                self.answering = Answering::Body { pump, ends };
            }
            Err(reason) => return self.bad_gateway(out, reason),
        }
        self.responses.take(end);
        true
    }

    fn bad_gateway(&mut self, out: &mut Out, reason: &str) -> bool {
        write::refusal(502, "the server's answer makes no sense", &mut out.client);
        self.end_all(out, Some(format!("what the server said is no answer: {reason}")));
        false
    }
}

/// The framing of a body that is passed on, given its framing on arrival.
fn wrap_of(framing: Framing, change: Change) -> Wrap {
    match (framing, change) {
        (Framing::Chunked, _) | (_, Change::Encode | Change::Decode) => Wrap::Chunked,
        _ => Wrap::Bare,
    }
}

/// The same for a response, and whether the connection must be closed after it.
fn wrap_of_response(framing: Framing, change: Change, asked: &Asked) -> (Wrap, bool) {
    match wrap_of(framing, change) {
        // HTTP/1.0 has no chunks.
        Wrap::Chunked if asked.version == 0 => (Wrap::Bare, !asked.is_head),
        wrap => (wrap, framing == Framing::UntilClose),
    }
}

impl Pipe for Mediator {
    fn meet(&mut self, client: Option<SocketAddr>) {
        self.teller.meet(client);
    }

    fn receive(&mut self, side: Side, bytes: &[u8], out: &mut Out) {
        if self.is_over {
            return;
        }
        let inbox = match side {
            Side::Client => &mut self.requests,
            Side::Server => &mut self.responses,
        };
        if let Err(reason) = inbox.push(bytes) {
            self.end_all(out, Some(reason));
        }
    }

    fn end(&mut self, side: Side) {
        match side {
            Side::Client => self.requests.is_ended = true,
            Side::Server => self.responses.is_ended = true,
        }
    }

    fn step(&mut self, out: &mut Out) -> bool {
        if self.is_over {
            return false;
        }
        let asks = self.ask(out);
        let answers = !self.is_over && self.answer(out);
        // A response may allow input to be read that had to wait.
        !self.is_over && (asks || answers)
    }
}
