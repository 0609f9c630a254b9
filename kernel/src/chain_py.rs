//! The audit chain for Python: one call gives a batch its place, its link and its checksum, another follows the links.
//!
//! Apart from `lib.rs` because it resizes what it is given, which nothing else does. The work is in `make.rs`; which link
//! came before, and whether there is a key, is the log's affair.

use crate::batch::LINK_BYTES;
use crate::{Held, make, range, refuse};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};

type Link = [u8; LINK_BYTES];

fn link_and_key(before: &[u8], key: &[u8]) -> PyResult<(Link, Option<Link>)> {
    let before = before.try_into().map_err(|_| refuse("the link before must have 32 bytes"))?;
    let keyed = match key.len() {
        0 => None,
        _ => Some(key.try_into().map_err(|_| refuse("the key of a chain has 32 bytes, or none for no key"))?),
    };
    Ok((before, keyed))
}

#[pyfunction]
pub fn chain<'py>(
    py: Python<'py>,
    batch: &Bound<'py, PyByteArray>,
    base_offset: i64,
    timestamp: i64,
    seed: u32,
    before: &[u8],
    key: &[u8],
) -> PyResult<Bound<'py, PyBytes>> {
    let (before, key) = link_and_key(before, key)?;
    let lacking = {
        // SAFETY: the interpreter lock is held and no Python code runs before the slice is gone, so nobody else reads,
        // writes or resizes the bytearray meanwhile.
        let d = unsafe { batch.as_bytes_mut() };
        let lacking = make::room_for_link(d).map_err(refuse)?;
        make::seal(d, Some((base_offset, timestamp)), None).map_err(refuse)?;
        lacking
    };
    if lacking > 0 {
        batch.resize(batch.len() + lacking)?;
    }
    // SAFETY: as above; the slice of before the resize is gone.
    let d = unsafe { batch.as_bytes_mut() };
    let link = make::link(d, seed, &before, key.as_ref());
    Ok(PyBytes::new(py, &link))
}

#[pyfunction]
pub fn follow<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    start: i64,
    stop: i64,
    before: &[u8],
    key: &[u8],
) -> PyResult<(usize, Bound<'py, PyBytes>)> {
    let (before, key) = link_and_key(before, key)?;
    let held = Held::new(data)?;
    let (start, stop) = range(start, stop, held.bytes().len())?;
    let (at, link) = make::follow(held.bytes(), start, stop, before, key.as_ref());
    Ok((at, PyBytes::new(py, &link)))
}
