//! A protocol that is dictated: what to send when a connection opens and how long the answers are, the bytes of one round,
//! and what its answer begins with. For doors whose bytes are made in Python (bench/dialogues.py), one message a round.
//!
//!     --opening HEX:N,HEX:N   sent one behind the other, each answered by N bytes
//!     --request HEX           one round
//!     --answer N              bytes of its answer
//!     --starts HEX            what every answer begins with; anything else is a refusal
//!     --now-at P --last-at P  where the number of the round, and that of the one before, stands: 16 hexadecimal digits

use crate::wire::{Item, shown};

const DIGITS: usize = 16;

#[derive(Default, PartialEq, Eq)]
pub struct Script {
    pub opening: Vec<(Vec<u8>, usize)>,
    pub request: Vec<u8>,
    pub answer_bytes: usize,
    pub starts: Vec<u8>,
    pub now_at: Option<usize>,
    pub last_at: Option<usize>,
}

pub fn hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    if digits.len().is_multiple_of(2) { digits.chunks_exact(2).map(byte).collect() } else { None }
}

impl Script {
    /// Take one option; false if it is none of a script's.
    pub fn option(&mut self, name: &str, value: &str) -> Option<bool> {
        match name {
            "--opening" => {
                for part in value.split(',') {
                    let (sent, bytes) = part.split_once(':')?;
                    self.opening.push((hex(sent)?, bytes.parse().ok()?));
                }
            }
            "--request" => self.request = hex(value)?,
            "--answer" => self.answer_bytes = value.parse().ok()?,
            "--starts" => self.starts = hex(value)?,
            "--now-at" => self.now_at = Some(value.parse().ok()?),
            "--last-at" => self.last_at = Some(value.parse().ok()?),
            _ => return Some(false),
        }
        Some(true)
    }

    /// Whether rounds can be sent and their answers told apart.
    pub fn sane(&self) -> bool {
        let fits = |place: Option<usize>| place.is_none_or(|at| at + DIGITS <= self.request.len());
        !self.request.is_empty()
            && (1..=self.answer_bytes).contains(&self.starts.len())
            && fits(self.now_at)
            && fits(self.last_at)
    }

    pub fn answered(&self, data: &[u8]) -> Item {
        let seen = data.len().min(self.starts.len());
        if data[..seen] != self.starts[..seen] {
            return Err(format!("the server did not answer as it did before but: {}", shown(data)));
        }
        Ok((data.len() >= self.answer_bytes).then_some((1, self.answer_bytes)))
    }

    /// Write the number of this round, and that of the one before, where they belong.
    pub fn number(&self, request: &mut [u8], round: u64) {
        for (place, number) in [(self.now_at, round), (self.last_at, round.wrapping_sub(1))] {
            if let Some(at) = place {
                request[at..at + DIGITS].copy_from_slice(format!("{number:016x}").as_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made() -> Script {
        let mut script = Script::default();
        let options = [("--opening", "00ff:3,01:0"), ("--request", &"30".repeat(40)), ("--answer", "3")];
        for (name, value) in [&options[..], &[("--starts", "4f4b"), ("--now-at", "2"), ("--last-at", "20")]].concat() {
            assert_eq!(script.option(name, value), Some(true));
        }
        script
    }

    #[test]
    fn options_are_taken_or_refused() {
        let mut script = made();
        assert!(script.sane());
        assert!(script.opening == [(vec![0, 255], 3), (vec![1], 0)]);
        assert_eq!(script.option("--rate", "1"), Some(false));
        assert_eq!(script.option("--request", "0"), None);
        script.last_at = Some(25);
        assert!(!script.sane());
    }

    #[test]
    fn answers_are_told_from_refusals() {
        let script = made();
        assert!(matches!(script.answered(b"OK1"), Ok(Some((1, 3)))));
        assert!(matches!(script.answered(b"O"), Ok(None)));
        assert!(script.answered(b"NO1").is_err());
    }

    #[test]
    fn rounds_are_numbered_in_place() {
        let script = made();
        let mut request = script.request.clone();
        script.number(&mut request, 0x1f);
        assert_eq!(&request[..38], b"00000000000000001f00000000000000001e00");
    }
}
