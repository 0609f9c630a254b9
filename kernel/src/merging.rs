//! Which batches that wait together become one: small ones of one kind, in their order. What merging does to bytes is in `make.rs`.

use crate::batch::{self, SPARSE};
use crate::tail::bytes_of;
use crate::{make, unzeroed_array};
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

const MERGE_INPUT_BYTES_MAX: usize = 64 * 1024; // a larger batch goes as it is: copying it would cost more than it saves
const MERGE_OUTPUT_BYTES_MAX: usize = 1024 * 1024;

/// Where the run of small batches of one kind that begins with `first` ends: they may become one batch.
pub fn group_end(pending: &[&[u8]], first: usize) -> usize {
    let kind = |d: &[u8]| {
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

/// A merge that is possible. Most batches have one origin and nothing but values.
pub enum Merged<'a> {
    Plain(make::PlainMerge<'a>),
    Any(Box<make::Merge<'a>>),
}

impl Merged<'_> {
    pub fn length(&self) -> usize {
        match self {
            Merged::Plain(merge) => merge.head.length,
            Merged::Any(merge) => merge.head.length,
        }
    }

    /// Fills every byte of `out`, which is so long.
    pub fn fill(&self, out: &mut [u8]) {
        match self {
            Merged::Plain(merge) => merge.fill(out),
            Merged::Any(merge) => {
                out.fill(0);
                merge.fill(out);
            }
        }
    }

    pub fn array(&self, py: Python<'_>) -> PyResult<Py<PyByteArray>> {
        Ok(unzeroed_array(py, self.length(), |out| self.fill(out))?.unbind())
    }
}

/// One batch of several; None: there is only one, or they have more origins than a batch can name.
pub fn merged<'a>(group: &'a [&'a [u8]], now: i64) -> Option<Merged<'a>> {
    if group.len() == 1 {
        return None;
    }
    match make::PlainMerge::new(group) {
        Some(merge) => Some(Merged::Plain(merge)),
        None => Some(Merged::Any(Box::new(make::Merge::new(group, now).ok()?))),
    }
}

/// Batches of several appends, in their order: merged as far as they may be, with the numbers of those that were.
pub fn merge_all(
    py: Python<'_>,
    parts: &[&Py<PyByteArray>],
    time: i64,
    buffers: &mut Vec<Py<PyByteArray>>,
    fresh: &mut Vec<usize>,
) -> PyResult<()> {
    let slices: Vec<&[u8]> = parts.iter().map(|one| bytes_of(py, one)).collect();
    let mut first = 0;
    while first < parts.len() {
        let last = group_end(&slices, first);
        match merged(&slices[first..last], time) {
            Some(merge) => {
                fresh.push(buffers.len());
                buffers.push(merge.array(py)?);
            }
            None => buffers.extend(parts[first..last].iter().map(|one| one.clone_ref(py))),
        }
        first = last;
    }
    Ok(())
}
