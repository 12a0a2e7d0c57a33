//! The handshake after encryption: the agent proves its identity and its token; the edge proves that it knows that token too.
//!
//! ```text
//! edge  -> agent   nonce (32)
//! agent -> edge    flags (1: bit 0 a proof follows) | key (32) | nonce (32) | signature (64) | [proof (32)] | frames, without a token
//! edge  -> agent   with a token: 1 | proof (32) | frames,   or 0 if it is not the edge's
//! agent -> edge    with a token: frames
//! ```
//!
//! Bytes in, bytes out: knows no socket.
//!
//! The order protects the token: the edge reveals its proof only after the agent's, so that a
//! program which merely connects obtains nothing to guess tokens from. The agent may send frames
//! behind its answer if it has no token; otherwise it would send them to an edge that has not
//! proved itself.

use super::{
    credentials::{Credentials, Shown},
    error::WireError,
    key::{AgentKey, PUBLIC_SIZE, SIGNATURE_SIZE},
    outgoing::Outgoing,
    proof::{self, Binding, Token, WireSide},
    random,
};
use bytes::{Buf, BytesMut};
use marram_wire::{
    frame::{Frame, Goodbye},
    id::HostId,
    rights::Verified,
};
use std::sync::Arc;

/// Flag of an agent's answer: it has a token.
const WITH_PROOF: u8 = 1;
/// The edge does not know the token.
const REFUSED: u8 = 0;
/// The edge's own proof follows.
const PROVED: u8 = 1;
/// The size of an agent's answer with its flags and without its proof.
const ANSWER_SIZE: usize = 1 + PUBLIC_SIZE + proof::SIZE + SIGNATURE_SIZE;

/// The secrets of one side.
pub(crate) enum Party {
    /// Dials.
    Agent {
        /// Identifies the agent.
        key: AgentKey,
        /// The agent proves it, and requires the edge's proof of it, if there is one.
        token: Option<Token>,
    },
    /// Listens.
    Edge(Arc<Credentials>),
}

/// What the handshake waits for.
enum Step {
    /// An agent: the edge's nonce.
    Nonce { key: AgentKey, token: Option<Token> },
    /// An agent: the edge's proof of this token.
    EdgeProof(Token),
    /// An edge: the agent's answer.
    Answer(Arc<Credentials>),
    /// Nothing.
    Done,
}

/// One side of one handshake.
pub(crate) struct Handshake {
    binding: Binding,
    /// An edge: the names in the agent's certificate, if it showed one.
    certificate: Option<Vec<String>>,
    step: Step,
    verified: Option<Box<Verified>>,
}

impl Handshake {
    /// Starts after encryption, or at once without TLS. `exported` comes from TLS; `certificate` holds the names in the
    /// certificate that the agent presented there.
    ///
    /// # Errors
    /// If the operating system has no random bytes.
    pub(crate) fn begin(
        party: Party,
        exported: Option<[u8; 32]>,
        certificate: Option<Vec<String>>,
        out: &mut Outgoing,
    ) -> Result<Self, WireError> {
        let nonce = random()?;
        let mut binding = Binding {
            exported,
            key: [0; PUBLIC_SIZE],
            agent_nonce: [0; proof::SIZE],
            edge_nonce: [0; proof::SIZE],
        };
        let step = match party {
            Party::Agent { key, token } => {
                (binding.key, binding.agent_nonce) = (key.public(), nonce);
                Step::Nonce { key, token }
            }
            Party::Edge(credentials) => {
                binding.edge_nonce = nonce;
                out.push_bytes(&nonce);
                Step::Answer(credentials)
            }
        };
        Ok(Self { binding, certificate, step, verified: None })
    }

    /// Handles received bytes, and returns whether the handshake is complete. Bytes after it stay in `input`.
    ///
    /// # Errors
    /// If the peer's proof or signature is wrong or its bytes are of another protocol. `out` may
    /// then hold the reason for the peer (`REFUSED` or `Goodbye`); the caller should flush it
    /// before it closes.
    pub(crate) fn advance(&mut self, input: &mut BytesMut, out: &mut Outgoing) -> Result<bool, WireError> {
        while !matches!(self.step, Step::Done) {
            let Some(next) = self.take_step(input, out)? else { return Ok(false) };
            self.step = next;
        }
        Ok(true)
    }

    /// An edge: the verified facts about the agent, after the handshake.
    pub(crate) fn take_verified(&mut self) -> Option<Box<Verified>> {
        self.verified.take()
    }

    /// One step, or `None` if it needs more bytes.
    fn take_step(&mut self, input: &mut BytesMut, out: &mut Outgoing) -> Result<Option<Step>, WireError> {
        match &self.step {
            Step::Nonce { key, token } => {
                let Some(nonce) = take(input) else { return Ok(None) };
                self.binding.edge_nonce = nonce;
                out.push_bytes(&answer(key, token.as_ref(), &self.binding));
                Ok(Some(token.clone().map_or(Step::Done, Step::EdgeProof)))
            }
            Step::EdgeProof(token) => match input.first() {
                None => Ok(None),
                Some(&REFUSED) => Err(WireError::WrongToken),
                Some(&PROVED) => {
                    let Some([_, shown @ ..]) = take::<{ 1 + proof::SIZE }>(input) else { return Ok(None) };
                    if !token.verify(WireSide::Edge, &self.binding, shown) {
                        return Err(WireError::WrongToken);
                    }
                    Ok(Some(Step::Done))
                }
                Some(_) => Err(WireError::Garbage("something other than an edge's proof")),
            },
            Step::Answer(credentials) => {
                let credentials = Arc::clone(credentials);
                self.take_answer(&credentials, input, out)
            }
            Step::Done => Ok(Some(Step::Done)),
        }
    }

    /// An edge: the agent's answer, once it is complete.
    fn take_answer(
        &mut self,
        credentials: &Credentials,
        input: &mut BytesMut,
        out: &mut Outgoing,
    ) -> Result<Option<Step>, WireError> {
        let with_proof = match input.first() {
            None => return Ok(None),
            Some(0) => false,
            Some(&WITH_PROOF) => true,
            Some(_) => return Err(WireError::Garbage("something other than an agent's answer")),
        };
        let proof_size = if with_proof { proof::SIZE } else { 0 };
        if input.len() < ANSWER_SIZE + proof_size {
            return Ok(None);
        }
        let answer: [u8; ANSWER_SIZE] = take(input).expect("its size was compared");
        let (key, rest) = answer[1..].split_at(PUBLIC_SIZE);
        let (nonce, signature) = rest.split_at(proof::SIZE);
        self.binding.key.copy_from_slice(key);
        self.binding.agent_nonce.copy_from_slice(nonce);
        let shown: Option<[u8; proof::SIZE]> = if with_proof { take(input) } else { None };
        if !self.binding.is_signed(signature) {
            return Err(WireError::WrongSignature);
        }
        let token = match shown {
            None => None,
            Some(shown) => {
                let Some(token) = credentials.known(&self.binding, shown) else {
                    out.push_bytes(&[REFUSED]);
                    return Err(WireError::WrongToken);
                };
                out.push_bytes(&[PROVED]);
                out.push_bytes(&token.proof(WireSide::Edge, &self.binding));
                Some(token)
            }
        };
        let shown = Shown { token: token.map(|token| token.name), certificate: self.certificate.as_deref() };
        match credentials.admit(&shown) {
            Ok((credential, rights)) => {
                let certificate = self.certificate.take().and_then(|names| names.into_iter().next());
                let host = HostId::of_key(&self.binding.key);
                self.verified = Some(Box::new(Verified { host, rights, credential, certificate }));
                Ok(Some(Step::Done))
            }
            Err(reason) => {
                out.push(Frame::from(Goodbye { reason: reason.clone() }));
                Err(WireError::NoCredential(reason))
            }
        }
    }
}

/// An agent's answer to an edge's nonce.
fn answer(key: &AgentKey, token: Option<&Token>, binding: &Binding) -> Vec<u8> {
    let mut bytes = vec![if token.is_some() { WITH_PROOF } else { 0 }];
    bytes.extend_from_slice(&binding.key);
    bytes.extend_from_slice(&binding.agent_nonce);
    bytes.extend_from_slice(&binding.sign(key));
    bytes.extend(token.iter().flat_map(|token| token.proof(WireSide::Agent, binding)));
    bytes
}

/// The answer of an agent with this key on a wire without TLS: for tests that talk to an edge byte by byte.
#[must_use]
pub fn plain_answer(key: &AgentKey, token: Option<&str>, edge_nonce: [u8; 32]) -> Vec<u8> {
    let binding = Binding { exported: None, key: key.public(), agent_nonce: [7; proof::SIZE], edge_nonce };
    answer(key, token.map(Token::new).as_ref(), &binding)
}

fn take<const N: usize>(input: &mut BytesMut) -> Option<[u8; N]> {
    let taken = *input.first_chunk::<N>()?;
    input.advance(N);
    Some(taken)
}
