//! What follows encryption: the proofs of the shared token, then the edge's word that the wire stands.
//!
//! Bytes in, bytes out: knows no socket.

use super::{
    error::WireError,
    outgoing::Outgoing,
    proof::{self, Binding, Side, Token},
    random,
};
use bytes::{Buf, BytesMut};

const REFUSED: u8 = 0;
const PROVED: u8 = 1;
/// The edge's word that all is well.
const STANDS: u8 = 0x2a;

/// What this side waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// An edge: for the agent's nonce.
    Nonce,
    /// An agent: for the edge's nonce and proof.
    EdgeProof,
    /// An edge: for the agent's proof.
    AgentProof,
    /// An agent: for the edge's word.
    Word,
    /// For nothing.
    Done,
}

/// One side of one handshake.
pub(crate) struct Handshake {
    token: Option<Token>,
    binding: Binding,
    step: Step,
}

impl Handshake {
    /// Begins right after encryption, or at once when plain; `exported` comes from TLS. Both sides know from the preamble
    /// whether there is a token.
    pub(crate) fn begin(
        side: Side,
        token: Option<Token>,
        exported: Option<[u8; 32]>,
        out: &mut Outgoing,
    ) -> Result<Self, WireError> {
        let nonce = random()?;
        let mut binding = Binding { exported, agent_nonce: [0; proof::SIZE], edge_nonce: [0; proof::SIZE] };
        let step = match (side, &token) {
            (Side::Agent, None) => Step::Word,
            (Side::Agent, Some(_)) => {
                binding.agent_nonce = nonce;
                out.push_bytes(&nonce);
                Step::EdgeProof
            }
            (Side::Edge, None) => {
                out.push_bytes(&[STANDS]);
                Step::Done
            }
            (Side::Edge, Some(_)) => {
                binding.edge_nonce = nonce;
                Step::Nonce
            }
        };
        Ok(Self { token, binding, step })
    }

    /// Takes what has arrived, and says whether the wire stands. What follows the handshake stays in `input`.
    pub(crate) fn advance(&mut self, input: &mut BytesMut, out: &mut Outgoing) -> Result<bool, WireError> {
        while self.step != Step::Done {
            let Some(next) = self.take_step(input, out)? else { return Ok(false) };
            self.step = next;
        }
        Ok(true)
    }

    /// One step, or `None` if more bytes are needed for it.
    fn take_step(&mut self, input: &mut BytesMut, out: &mut Outgoing) -> Result<Option<Step>, WireError> {
        let next = match (self.step, &self.token) {
            (Step::Nonce, Some(token)) => {
                let Some(nonce) = take(input) else { return Ok(None) };
                self.binding.agent_nonce = nonce;
                out.push_bytes(&self.binding.edge_nonce);
                out.push_bytes(&token.proof(Side::Edge, &self.binding));
                Step::AgentProof
            }
            (Step::EdgeProof, Some(token)) => {
                let Some(both) = take::<{ 2 * proof::SIZE }>(input) else { return Ok(None) };
                let (nonce, shown) = both.split_at(proof::SIZE);
                self.binding.edge_nonce.copy_from_slice(nonce);
                let shown = shown.try_into().map_err(|_| WireError::Garbage("a proof of another size"))?;
                if !token.verify(Side::Edge, &self.binding, shown) {
                    out.push_bytes(&[REFUSED]);
                    return Err(WireError::WrongToken);
                }
                out.push_bytes(&[PROVED]);
                out.push_bytes(&token.proof(Side::Agent, &self.binding));
                Step::Word
            }
            (Step::AgentProof, Some(token)) => {
                if input.first() == Some(&REFUSED) {
                    return Err(WireError::WrongToken);
                }
                let Some([word, shown @ ..]) = take::<{ 1 + proof::SIZE }>(input) else { return Ok(None) };
                if word != PROVED || !token.verify(Side::Agent, &self.binding, shown) {
                    return Err(WireError::WrongToken);
                }
                out.push_bytes(&[STANDS]);
                Step::Done
            }
            (Step::Word, _) => match take(input) {
                None => return Ok(None),
                Some([STANDS]) => Step::Done,
                Some(_) => return Err(WireError::Garbage("something else than the end of a handshake")),
            },
            (step, _) => step,
        };
        Ok(Some(next))
    }
}

fn take<const N: usize>(input: &mut BytesMut) -> Option<[u8; N]> {
    let taken = *input.first_chunk::<N>()?;
    input.advance(N);
    Some(taken)
}
