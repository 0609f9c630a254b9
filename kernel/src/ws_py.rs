//! WebSocket frames: the functions `ws_split` and `ws_frame` of `_native.pyi`. Splits what a client sent and takes the masks off; makes
//! the frames of a server, which have none.
//!
//!     0            1           2
//!     | F RRR op   | M length  | u16 if length is 126, u64 if it is 127 | u32 mask if M | payload, byte i XOR mask byte i mod 4
//!
//! What a frame means is decided in Python. The interpreter lock is held throughout; no I/O, no clock, no state.

use crate::{Held, range, refuse, unzeroed_bytes};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

pub const TEXT: u8 = 1;
const CONTROL: u8 = 8; // and above
const CONTROL_BYTES_MAX: u64 = 125;
const MAX_BYTES_CEILING: i64 = 1 << 30;
const MASK_BYTES: usize = 4;
const BROKEN: u8 = 1;
const TOO_BIG: u8 = 2;

/// A whole frame: what its first byte says, and where its mask and its payload begin.
struct Frame {
    opcode: u8,
    last: bool,
    mask: usize,
    end: usize,
}

enum Next {
    Frame(Frame),
    Wait,
    Fatal(u8),
}

/// The frame at `pos`, judged as soon as its bytes are in.
fn next(d: &[u8], pos: usize, max_bytes: u64) -> Next {
    if d.len() - pos < 2 {
        return Next::Wait;
    }
    let (first, second) = (d[pos], d[pos + 1]);
    let (opcode, last, mut size) = (first & 15, first >= 128, u64::from(second & 127));
    let control = opcode >= CONTROL;
    if !matches!(opcode, 0..=2 | 8..=10) || first & 0x70 != 0 || second < 128 {
        return Next::Fatal(BROKEN);
    }
    if control && (!last || size > CONTROL_BYTES_MAX) {
        return Next::Fatal(BROKEN);
    }
    let mut at = pos + 2;
    if size >= 126 {
        let more = if size == 126 { 2 } else { 8 };
        if d.len() - at < more {
            return Next::Wait;
        }
        size = d[at..at + more].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        at += more;
    }
    if size > max_bytes && !control {
        return Next::Fatal(TOO_BIG);
    }
    if ((d.len() - at) as u64) < MASK_BYTES as u64 + size {
        return Next::Wait;
    }
    Next::Frame(Frame { opcode, last, mask: at, end: at + MASK_BYTES + size as usize })
}

/// `to` = `from` XOR the mask, over and over.
fn unmask(from: &[u8], mask: [u8; MASK_BYTES], to: &mut [u8]) {
    let wide = u64::from_ne_bytes([mask[0], mask[1], mask[2], mask[3], mask[0], mask[1], mask[2], mask[3]]);
    let whole = from.len() / 8 * 8;
    for (target, source) in to[..whole].chunks_exact_mut(8).zip(from[..whole].chunks_exact(8)) {
        let word = u64::from_ne_bytes(source.try_into().expect("chunks of eight")) ^ wide;
        target.copy_from_slice(&word.to_ne_bytes());
    }
    for (index, (target, source)) in to[whole..].iter_mut().zip(&from[whole..]).enumerate() {
        *target = source ^ mask[index % MASK_BYTES];
    }
}

/// Items, how much was consumed, and what is fatal.
pub type Split<'py> = (Bound<'py, PyList>, usize, u8);

/// As `ws_split`; `text` makes the item of a whole text message.
pub fn split_with<'py>(
    data: &Bound<'py, PyAny>,
    start: i64,
    max_bytes: i64,
    frames_max: i64,
    text: impl Fn(Bound<'py, PyBytes>) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Split<'py>> {
    let py = data.py();
    let held = Held::new(data)?;
    let d = held.bytes();
    let (mut pos, _) = range(start, d.len() as i64, d.len())?;
    if !(1..=MAX_BYTES_CEILING).contains(&max_bytes) || frames_max < 0 {
        return Err(refuse("max_bytes must be 1 byte to 1 GiB, frames_max 0 or more"));
    }
    let items = PyList::empty(py);
    while frames_max == 0 || (items.len() as i64) < frames_max {
        let frame = match next(d, pos, max_bytes as u64) {
            Next::Frame(frame) => frame,
            Next::Wait => break,
            Next::Fatal(fatal) => return Ok((items, pos, fatal)),
        };
        let body = frame.mask + MASK_BYTES;
        let mask = d[frame.mask..body].try_into().expect("four bytes");
        let payload = PyBytes::new_with(py, frame.end - body, |out| {
            unmask(&d[body..frame.end], mask, out);
            Ok(())
        })?;
        if frame.opcode == TEXT && frame.last {
            items.append(text(payload)?)?;
        } else {
            items.append((frame.opcode, frame.last, payload))?;
        }
        pos = frame.end;
    }
    Ok((items, pos, 0))
}

#[pyfunction]
pub fn ws_split<'py>(data: &Bound<'py, PyAny>, start: i64, max_bytes: i64, frames_max: i64) -> PyResult<Split<'py>> {
    split_with(data, start, max_bytes, frames_max, |payload| Ok(payload.into_any()))
}

/// How many bytes stand before a payload of this size.
pub fn head_bytes(size: usize) -> usize {
    if size < 126 {
        2
    } else if size < 1 << 16 {
        4
    } else {
        10
    }
}

/// Writes the head of a whole message from the server; how long it is.
pub fn put_head(out: &mut [u8], opcode: u8, size: usize) -> usize {
    out[0] = 0x80 | opcode;
    let used = head_bytes(size);
    match used {
        2 => out[1] = size as u8,
        4 => {
            out[1] = 126;
            out[2..4].copy_from_slice(&(size as u16).to_be_bytes());
        }
        _ => {
            out[1] = 127;
            out[2..10].copy_from_slice(&(size as u64).to_be_bytes());
        }
    }
    used
}

#[pyfunction]
pub fn ws_frame<'py>(py: Python<'py>, opcode: u8, payload: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    if opcode > 15 {
        return Err(refuse("an opcode has four bits"));
    }
    unzeroed_bytes(py, head_bytes(payload.len()) + payload.len(), |out| {
        let used = put_head(out, opcode, payload.len());
        out[used..].copy_from_slice(payload);
    })
}
