//! Felix frames, as much of them as a load needs, and a reader that hands out whole ones without copying them again.
//!
//!     u32 magic "FLX1" | u16 version 1 | u16 flags | u32 length | payload          all big-endian

use crate::Outcome;
use crate::options::Options;
use quinn::{Connection, RecvStream, SendStream};
use std::ops::Range;

pub const BATCH: u16 = 0x0001;
pub const BATCH_ACKED: u16 = 0x0009;
pub const BATCH_ACK: u16 = 0x0010;
pub const OFFSETS: u16 = 0x0020;
pub const EVENTS_OF_ONE: u16 = 0x0002; // begins with its subscription's id
pub const EVENTS_SHARED: u16 = 0x0004;
pub const PER_MESSAGE: u8 = 1;
pub const PER_BATCH: u8 = 2;
pub const HEAD_BYTES: usize = 12;
const MAGIC: u32 = 0x464c_5831;
const VERSION: u16 = 1;
const CLIENT_FLAGS: u16 = 63;
const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;
const READ_BYTES: usize = 1024 * 1024;

pub fn head(flags: u16, length: usize) -> [u8; HEAD_BYTES] {
    let mut bytes = [0; HEAD_BYTES];
    bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&VERSION.to_be_bytes());
    bytes[6..8].copy_from_slice(&flags.to_be_bytes());
    bytes[8..].copy_from_slice(&(length as u32).to_be_bytes());
    bytes
}

pub fn frame(flags: u16, payload: &[u8]) -> Vec<u8> {
    [&head(flags, payload.len()), payload].concat()
}

pub fn u32_at(bytes: &[u8], at: usize) -> Outcome<u32> {
    let found = bytes.get(at..at + 4).ok_or("a frame ends early")?;
    Ok(u32::from_be_bytes(found.try_into()?))
}

pub fn u64_at(bytes: &[u8], at: usize) -> Outcome<u64> {
    let found = bytes.get(at..at + 8).ok_or("a frame ends early")?;
    Ok(u64::from_be_bytes(found.try_into()?))
}

/// Who publishes where. The names are plain: nothing in them needs an escape in JSON.
#[derive(Clone)]
pub struct Scope {
    pub tenant: String,
    pub namespace: String,
    pub stream: String,
    token: String,
}

impl Scope {
    pub fn take(options: &mut Options) -> Outcome<Scope> {
        Ok(Scope {
            tenant: options.take("tenant", "bench".to_owned())?,
            namespace: options.take("namespace", "load".to_owned())?,
            stream: options.take("stream", "memory".to_owned())?,
            token: options.take("token", "bench".to_owned())?,
        })
    }

    /// The three names as binary batches carry them.
    pub fn binary(&self) -> Vec<u8> {
        let names = [&self.tenant, &self.namespace, &self.stream];
        names.iter().flat_map(|name| [&(name.len() as u16).to_be_bytes()[..], name.as_bytes()].concat()).collect()
    }

    pub fn json(&self, what: &str) -> String {
        format!(r#""tenant_id":"{}","namespace":"{}","{what}":"{}""#, self.tenant, self.namespace, self.stream)
    }

    /// A stream that is authenticated.
    pub async fn open(&self, connection: &Connection) -> Outcome<(SendStream, Reader)> {
        let (mut send, receive) = connection.open_bi().await?;
        let (tenant, token) = (&self.tenant, &self.token);
        let auth =
            format!(r#"{{"type":"auth","tenant_id":"{tenant}","token":"{token}","client_flags":{CLIENT_FLAGS}}}"#);
        send.write_all(&frame(0, auth.as_bytes())).await?;
        let mut reader = Reader::new(receive);
        reader.json("auth_ok").await?;
        Ok((send, reader))
    }
}

/// Frames of one stream. A frame is a range of `buffer` and good until the next call of `next`.
pub struct Reader {
    stream: RecvStream,
    pub buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Reader {
    pub fn new(stream: RecvStream) -> Reader {
        Reader { stream, buffer: Vec::new(), start: 0, end: 0 }
    }

    /// The next frame that is there whole: its flags, and where its payload lies.
    pub fn ready(&mut self) -> Outcome<Option<(u16, Range<usize>)>> {
        let bytes = &self.buffer[self.start..self.end];
        if bytes.len() < HEAD_BYTES {
            return Ok(None);
        }
        let (magic, length) = (u32_at(bytes, 0)?, u32_at(bytes, 8)? as usize);
        if magic != MAGIC || bytes[4..6] != VERSION.to_be_bytes() || length > FRAME_BYTES_MAX {
            return Err(format!("no Felix frame begins with {:02x?}", &bytes[..HEAD_BYTES]).into());
        }
        if bytes.len() < HEAD_BYTES + length {
            return Ok(None);
        }
        let flags = u16::from_be_bytes([bytes[6], bytes[7]]);
        let payload = self.start + HEAD_BYTES..self.start + HEAD_BYTES + length;
        self.start = payload.end;
        Ok(Some((flags, payload)))
    }

    /// Wait for more bytes. They go behind a frame that is not whole, which moves to the front if there is no room.
    pub async fn fill(&mut self) -> Outcome<()> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.buffer.len() == self.end || self.buffer.is_empty() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.buffer.len() - self.end < READ_BYTES / 2 {
                self.buffer.resize(self.end + READ_BYTES, 0);
            }
        }
        match self.stream.read(&mut self.buffer[self.end..]).await? {
            Some(count) => self.end += count,
            None => return Err("the server ended a stream".into()),
        }
        Ok(())
    }

    pub async fn next(&mut self) -> Outcome<(u16, Range<usize>)> {
        loop {
            if let Some(found) = self.ready()? {
                return Ok(found);
            }
            self.fill().await?;
        }
    }

    /// The next frame, which must be JSON of this type; its text.
    pub async fn json(&mut self, kind: &str) -> Outcome<&str> {
        let (flags, payload) = self.next().await?;
        let text = std::str::from_utf8(&self.buffer[payload])?;
        if flags != 0 || !text.contains(&format!(r#""type":"{kind}""#)) {
            return Err(format!("{kind} was due and {flags:#x} {text:?} came").into());
        }
        Ok(text)
    }
}

/// The digits behind `"name":` in compact JSON.
pub fn number(text: &[u8], name: &str) -> Outcome<u64> {
    let mark = format!("\"{name}\":");
    let at = text.windows(mark.len()).rposition(|part| part == mark.as_bytes()).ok_or("a number is missing")?;
    let digits = text[at + mark.len()..].iter().take_while(|byte| byte.is_ascii_digit());
    Ok(digits.fold(0, |sum, byte| sum * 10 + u64::from(byte - b'0')))
}

/// Standard base64 with padding.
pub fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for part in bytes.chunks(3) {
        let bits = part.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - part.len()));
        for place in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * place)) as usize & 63] as char;
            text.push(if place <= part.len() { letter } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_padded() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("hello", "aGVsbG8=")] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn a_number_ends_with_its_digits() {
        assert_eq!(number(br#"{"type":"publish_ok","request_id":1204}"#, "request_id").unwrap(), 1204);
        assert!(number(b"{}", "request_id").is_err());
    }
}
