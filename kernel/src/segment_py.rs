//! What a start reads of a small segment: one call checks its header, whose it is, and that nothing lies behind its end.
//!
//! A broker with 100,000 topics opens as many packed segments (docs/LOG_FORMAT.md), nearly all of them as they were left. Whatever
//! is unusual gives None, and Python, which can mend and tell, looks at it itself. The header is drawn in log/embedded/files/segment.py.

use crate::batch::{LINK_BYTES, crc32c, i64_at, u32_at};
use crate::{Held, range};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

const HEADER_BYTES: usize = 512;
const NAME_AT: usize = 48;
const CHAIN_AT: usize = 472;
const LINK_AT: usize = 480;
const CHAINED_VERSION: u32 = 2;

type Head<'py> = (u32, i64, u32, u32, Bound<'py, PyBytes>);

#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn segment_head<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    start: i64,
    stop: i64,
    end: i64,
    topic_id: u32,
    partition: u32,
    name: &[u8],
) -> PyResult<Option<Head<'py>>> {
    let held = Held::new(data)?;
    let (start, stop) = range(start, stop, held.bytes().len())?;
    let d = &held.bytes()[start..stop];
    let Ok(end) = usize::try_from(end) else { return Ok(None) };
    if d.len() < HEADER_BYTES || end < HEADER_BYTES || end > d.len() || !is_of(d, topic_id, partition, name) {
        return Ok(None);
    }
    if d[end..].iter().any(|&byte| byte != 0) {
        return Ok(None);
    }
    let (mut kind, mut key_id, mut link): (u32, u32, &[u8]) = (0, 0, &[]);
    if u32_at(d, 12) == CHAINED_VERSION {
        (kind, key_id) = (u32_at(d, CHAIN_AT), u32_at(d, CHAIN_AT + 4));
    }
    if kind != 0 {
        let at = if end >= HEADER_BYTES + LINK_BYTES { end - LINK_BYTES } else { LINK_AT };
        link = &d[at..at + LINK_BYTES];
    }
    Ok(Some((u32_at(d, 16), i64_at(d, 40), kind, key_id, PyBytes::new(py, link))))
}

/// Whether the header checks out, begins at offset 0 and names this owner.
fn is_of(d: &[u8], topic_id: u32, partition: u32, name: &[u8]) -> bool {
    let name_end = NAME_AT + name.len();
    d.starts_with(b"QNTSEG1\0")
        && u32_at(d, 8) == crc32c(&d[12..HEADER_BYTES], 0)
        && u32_at(d, 12) <= CHAINED_VERSION
        && u32_at(d, 16) != 0
        && u32_at(d, 20) == topic_id
        && u32_at(d, 24) == partition
        && u32_at(d, 28) as usize == name.len()
        && i64_at(d, 32) == 0
        && name_end <= CHAIN_AT
        && &d[NAME_AT..name_end] == name
}
