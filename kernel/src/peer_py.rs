//! Objects of peerbus: the functions `peer_object`, `peer_split`, `peer_deliver` and `peer_frame` of `_native.pyi`. Read and write what is plain.
//!
//!     {"protocol_version":"v1","type":"ack","id":"KEY"}
//!     {"protocol_version":"v1","id":"S","from":"S","to":"S","ts":"S","source":"S","kind":"S","body":RAW,"hmac":"S"}
//!     {"protocol_version":"v1","type":"deliver","delivery_key":"KEY","envelope":ENVELOPE}
//!
//! Plain is what most clients write: these members in this order, no blanks between them, no escapes in their texts. Whatever else an
//! object may be is decided in Python, so nothing is ever refused here. The interpreter lock is held throughout; no I/O, no
//! clock, no state.

use crate::batch::Batch;
use crate::felix_json::is_sound;
use crate::ws_py::{Split, TEXT, head_bytes, put_head, split_with};
use crate::{Held, refuse, unzeroed_bytes};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

const ACK: &[u8] = b"{\"protocol_version\":\"v1\",\"type\":\"ack\",\"id\":\"";
const ENVELOPE: &[u8] = b"{\"protocol_version\":\"v1\",\"id\":\"";
const MEMBERS: [&[u8]; 5] =
    [b"\",\"from\":\"", b"\",\"to\":\"", b"\",\"ts\":\"", b"\",\"source\":\"", b"\",\"kind\":\""];
const BODY: &[u8] = b"\",\"body\":";
const HMAC: &[u8] = b",\"hmac\":";
const END: &[u8] = b"\"}";
const ID_BYTES_MAX: usize = 256;
const DEPTH_MAX: usize = 128; // of a body
const OWN_ID: &[u8] = b"q:"; // only the broker may give such ids, and this source
const OWN_SOURCE: &[u8] = b"quintet";
const EVERYONE: &[u8] = b"*";
const BROADCAST: &[u8] = b"broadcast";
const ORIGIN: &[u8] = b"peerbus:"; // of records that came in by this door
const DELIVER: &[u8] = b"{\"protocol_version\":\"v1\",\"type\":\"deliver\",\"delivery_key\":\"";
const MIDDLE: &[u8] = b"\",\"envelope\":";

fn is_plain(byte: u8) -> bool {
    byte >= 0x20 && byte != b'"' && byte != b'\\'
}

/// Printable ASCII that stands in a string of JSON as it is.
fn is_key(text: &[u8]) -> bool {
    text.iter().all(|byte| is_plain(*byte) && *byte < 0x7F)
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// The key of a plain acknowledgement.
fn ack(d: &[u8]) -> Option<&str> {
    let key = d.strip_prefix(ACK)?.strip_suffix(END)?;
    if key.iter().all(|byte| is_plain(*byte)) { text(key) } else { None }
}

/// id, from, to and ts of a plain envelope to one peer that nothing stands against.
fn envelope(d: &[u8]) -> Option<[&str; 4]> {
    let mut texts: [&[u8]; 6] = [b""; 6];
    let mut rest = d.strip_prefix(ENVELOPE)?;
    for (number, found) in texts.iter_mut().enumerate() {
        let end = rest.iter().position(|byte| !is_plain(*byte))?;
        *found = &rest[..end];
        rest = rest[end..].strip_prefix(*MEMBERS.get(number).unwrap_or(&BODY))?;
    }
    let [id, sender, to, ts, source, kind] = texts;
    rest = rest.strip_suffix(END)?;
    let hmac = rest.iter().rposition(|byte| !is_plain(*byte))?;
    if rest[hmac] != b'"' {
        return None;
    }
    let body = rest[..hmac].strip_suffix(HMAC)?;
    let is_id = (1..=ID_BYTES_MAX).contains(&id.len()) && is_key(id) && !id.contains(&b'|');
    if !is_id || id.starts_with(OWN_ID) || to.is_empty() || to == EVERYONE || source == OWN_SOURCE || kind == BROADCAST
    {
        return None;
    }
    let whole = text(d)?;
    if !is_sound(body, DEPTH_MAX) {
        return None;
    }
    let part = |found: &[u8]| {
        let start = found.as_ptr() as usize - d.as_ptr() as usize;
        &whole[start..start + found.len()]
    };
    Some([part(id), part(sender), part(to), part(ts)])
}

#[pyfunction]
pub fn peer_object<'py>(py: Python<'py>, data: &[u8]) -> PyResult<Option<Bound<'py, PyAny>>> {
    if let Some(key) = ack(data) {
        return Ok(Some(PyString::new(py, key).into_any()));
    }
    envelope(data).map(|texts| PyTuple::new(py, texts).map(Bound::into_any)).transpose()
}

#[pyfunction]
pub fn peer_split<'py>(data: &Bound<'py, PyAny>, start: i64, max_bytes: i64, frames_max: i64) -> PyResult<Split<'py>> {
    split_with(data, start, max_bytes, frames_max, |payload| {
        let py = payload.py();
        if let Some(key) = ack(payload.as_bytes()) {
            return Ok(PyString::new(py, key).into_any());
        }
        match envelope(payload.as_bytes()) {
            Some([id, sender, to, ts]) => (id, sender, to, ts, &payload).into_bound_py_any(py),
            None => Ok(payload.into_any()),
        }
    })
}

/// Does `"*"` stand anywhere in it? Then it may be a broadcast.
fn may_be_for_everyone(value: &[u8]) -> bool {
    let mut rest = value;
    while let Some(at) = rest.iter().position(|byte| *byte == b'*') {
        if at > 0 && rest[at - 1] == b'"' && rest.get(at + 1) == Some(&b'"') {
            return true;
        }
        rest = &rest[at + 1..];
    }
    false
}

/// Can this record stand in its deliver frame as it is, and is it for one peer?
fn stands(key: &[u8], value: &[u8], lines: bool) -> bool {
    is_key(key) && !may_be_for_everyone(value) && !(lines && value.contains(&b'\n'))
}

/// Of the object around this record, without what a frame or a line adds.
fn object_bytes(key: &[u8], value: &[u8]) -> usize {
    DELIVER.len() + key.len() + MIDDLE.len() + value.len() + 1
}

fn framed_bytes(size: usize, lines: bool) -> usize {
    size + if lines { 1 } else { head_bytes(size) }
}

/// Writes one deliver frame; how long it is.
fn put_frame(out: &mut [u8], key: &[u8], value: &[u8], lines: bool) -> usize {
    let mut at = if lines { 0 } else { put_head(out, TEXT, object_bytes(key, value)) };
    for piece in [DELIVER, key, MIDDLE, value, b"}", if lines { b"\n".as_slice() } else { b"" }] {
        out[at..at + piece.len()].copy_from_slice(piece);
        at += piece.len();
    }
    at
}

#[pyfunction]
pub fn peer_frame<'py>(
    py: Python<'py>,
    key: &[u8],
    value: &[u8],
    lines: bool,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    if !stands(key, value, lines) {
        return Ok(None);
    }
    unzeroed_bytes(py, framed_bytes(object_bytes(key, value), lines), |out| {
        put_frame(out, key, value, lines);
    })
    .map(Some)
}

#[pyfunction]
pub fn peer_deliver<'py>(
    py: Python<'py>,
    batch: &Bound<'py, PyAny>,
    first: i64,
    last: i64,
    lines: bool,
) -> PyResult<Option<(Bound<'py, PyList>, Bound<'py, PyBytes>)>> {
    let held = Held::new(batch)?;
    let batch = Batch::open(held.bytes(), 0).map_err(refuse)?;
    let (w, count) = (&batch.at, batch.head.count);
    if first < 0 || first > last || last > count as i64 {
        return Err(refuse("first and last must lie in the batch, in this order"));
    }
    if w.deltas != 0 || w.key_offsets == 0 {
        return Ok(None);
    }
    let (mut found, mut total) = (Vec::with_capacity((last - first) as usize), 0);
    for i in first as usize..last as usize {
        let key = batch.entry(w.key_offsets, w.key_data, count, i).map_err(refuse)?;
        let value = batch.entry(w.value_offsets, w.value_data, count, i).map_err(refuse)?;
        let origin = batch.origin(batch.origin_number(i)).map_err(refuse)?;
        let there = !batch.is_null(w.key_bitmap, i) && !batch.is_null(w.value_bitmap, i);
        if !there || !origin.starts_with(ORIGIN) || !stands(key, value, lines) {
            return Ok(None);
        }
        total += framed_bytes(object_bytes(key, value), lines);
        found.push((key, value));
    }
    let frames = unzeroed_bytes(py, total, |out| {
        let mut at = 0;
        for (key, value) in &found {
            at += put_frame(&mut out[at..], key, value, lines);
        }
    })?;
    let keys = PyList::new(py, found.iter().map(|(key, _)| text(key).unwrap_or_default()))?;
    Ok(Some((keys, frames)))
}
