//! Which batches that wait together become one: small ones of one kind, in their order. What merging does to bytes is in `make.rs`.

use crate::batch::{self, SPARSE};
use crate::tail::bytes_of;
use crate::{make, zeroed_array};
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

const MERGE_INPUT_BYTES_MAX: usize = 64 * 1024; // a larger batch goes as it is: copying it would cost more than it saves
const MERGE_OUTPUT_BYTES_MAX: usize = 1024 * 1024;

/// Where the run of small batches of one kind that begins with `first` ends: they may become one batch.
pub fn group_end(py: Python<'_>, pending: &[&Py<PyByteArray>], first: usize) -> usize {
    let kind = |one: &Py<PyByteArray>| {
        let d = bytes_of(py, one);
        let columns = batch::u16_at(d, 14);
        let producer = d[48..56].iter().any(|byte| *byte != 0);
        let mergeable = d.len() <= MERGE_INPUT_BYTES_MAX && columns & SPARSE == 0 && !producer;
        (mergeable, batch::u16_at(d, 12), d.len())
    };
    let (mergeable, flags, mut size) = kind(pending[first]);
    let mut last = first + 1;
    while mergeable && last < pending.len() {
        let (fits, same, more) = kind(pending[last]);
        if !fits || same != flags || size + more > MERGE_OUTPUT_BYTES_MAX {
            break;
        }
        size += more;
        last += 1;
    }
    last
}

/// One batch of several; None: there is only one, or they have more origins than a batch can name.
pub fn merged(py: Python<'_>, group: &[&Py<PyByteArray>], now: i64) -> Option<Py<PyByteArray>> {
    if group.len() == 1 {
        return None;
    }
    let parts: Vec<&[u8]> = group.iter().map(|one| bytes_of(py, one)).collect();
    let merge = make::Merge::new(&parts, now).ok()?;
    Some(zeroed_array(py, merge.head.length, |d| merge.fill(d)).ok()?.unbind())
}

/// Batches of several appends, in their order: merged as far as they may be, with the numbers of those that were.
pub fn merge_all(
    py: Python<'_>,
    parts: &[&Py<PyByteArray>],
    time: i64,
    buffers: &mut Vec<Py<PyByteArray>>,
    fresh: &mut Vec<usize>,
) {
    let mut first = 0;
    while first < parts.len() {
        let last = group_end(py, parts, first);
        match merged(py, &parts[first..last], time) {
            Some(batch) => {
                fresh.push(buffers.len());
                buffers.push(batch);
            }
            None => buffers.extend(parts[first..last].iter().map(|one| one.clone_ref(py))),
        }
        first = last;
    }
}
