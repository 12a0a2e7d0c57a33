//! The mode `http`: a mediator between one client's connection and one to a server. Heads are read, checked and written anew, so
//! that what follows cannot be understood in two ways; bodies pass, or are decoded or encoded as they come.
//!
//! Requests go on as they come, pipelined or not; what must be known of each when it is answered waits in a queue. Since each
//! client's connection has one server's connection to itself, what they say about keeping it open passes.

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

/// Requests that may wait for their answers; further ones are not read before.
const PIPELINE_MAX: usize = 256;

/// The mediator.
pub struct Mediator {
    config: Config,
    teller: Teller,
    /// From the client, from the server.
    requests: Inbox,
    responses: Inbox,
    asking: Asking,
    answering: Answering,
    /// Requests that are not answered, in order.
    queue: VecDeque<Exchange>,
    request_scan: Scan,
    response_scan: Scan,
    request_codecs: Codecs,
    response_codecs: Codecs,
    is_server_told: bool,
    is_over: bool,
}

/// Where we are in what the client says.
enum Asking {
    Head,
    Body {
        pump: Pump,
        then: Then,
    },
    /// An upgrade was asked for: what comes behind it may be HTTP or not.
    Held,
    Tunnel,
    /// What comes is not read.
    Deaf,
}

/// What comes behind a request.
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

/// Where we are in what the server says.
enum Answering {
    Head,
    /// `ends`: the connection is to be closed behind it.
    Body {
        pump: Pump,
        ends: bool,
    },
    Tunnel,
}

/// A request, and what is to be said to it.
enum Exchange {
    /// What the server says.
    Asked(Asked),
    /// That it is refused; the server may not even know of it.
    Refused { status: u16, reason: String },
}

impl Mediator {
    /// As the configuration says.
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

    /// Goes on with what the client says; whether there is more to do.
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

    /// The client will say no more, and all that it said has passed.
    fn tell_server(&mut self, out: &mut Out) {
        let holds = matches!(self.asking, Asking::Held) && !self.requests.rest().is_empty();
        if self.requests.is_ended && !holds && !self.is_server_told {
            self.is_server_told = true;
            out.closes_server = true;
        }
    }

    fn ask_head(&mut self, out: &mut Out) -> bool {
        // An empty line before a request is none.
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

    /// Nothing more is read from the client; once its earlier requests are answered, it is told why.
    fn refuse(&mut self, status: u16, reason: String) {
        self.queue.push_back(Exchange::Refused { status, reason });
        self.asking = Asking::Deaf;
    }

    /// As [`Mediator::refuse`], for a request of which the server knows.
    fn refuse_body(&mut self, out: &mut Out, reason: String) {
        self.asking = Asking::Deaf;
        match self.queue.back_mut() {
            // It is not answered yet, nor is its answer under way.
            Some(exchange @ Exchange::Asked(_)) => *exchange = Exchange::Refused { status: 400, reason },
            _ => self.end_all(out, Some(reason)),
        }
    }

    /// Goes on with what the server says; whether there is more to do.
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
                    // The client notices: there is no last chunk, or too few bytes.
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
            // Some servers say why before they hang up, as 408; there is no request that this could answer.
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
                // HTTP/1.0 has none of these.
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
                // Answers to what was asked before say nothing of the upgrade.
                match &mut self.asking {
                    Asking::Held if asked.upgrade => self.asking = Asking::Head,
                    Asking::Body { then: then @ Then::Held, .. } if asked.upgrade => *then = Then::Head,
                    _ => {}
                }
                // The answer to HEAD is a head alone, whatever it says.
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

/// How a body goes on that came so.
fn wrap_of(framing: Framing, change: Change) -> Wrap {
    match (framing, change) {
        (Framing::Chunked, _) | (_, Change::Encode | Change::Decode) => Wrap::Chunked,
        _ => Wrap::Bare,
    }
}

/// The same for a response, and whether the connection must end behind it.
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
        // An answer may have made room for what was not to be read before.
        !self.is_over && (asks || answers)
    }
}
