//! `gather` and `scatter` of `_native.pyi` as Python sees them: arguments in, objects out, refusals as ValueError.
//!
//! The work is in `arrow.rs` and `scatter.rs`, and is done without the interpreter lock: what is passed in must not be
//! changed meanwhile. No I/O, no clock, no state.

use crate::arrow::{self, Gather, Wish};
use crate::batch::{KNOWN_FLAGS, MAX_BATCH_BYTES};
use crate::scatter::{Lists, MAX_PARTITIONS, Refused, Rows, Scatter, Var};
use crate::{Held, range, refuse, unzeroed_array, unzeroed_bytes};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

/// A batch of this size is filled without the interpreter lock; below, giving it up costs more than it gains.
const UNLOCKED_FILL_BYTES: usize = 64 * 1024;

type Gathered<'py> = (usize, Bound<'py, PyTuple>, usize, u64, i64);

#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn gather<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    start: i64,
    stop: i64,
    seed: i64,
    first: i64,
    last: i64,
    rows_max: i64,
    bytes_max: i64,
    columns: i64,
    now: i64,
) -> PyResult<Gathered<'py>> {
    let held = Held::new(data)?;
    let d = held.bytes();
    let (start, stop) = range(start, stop, d.len())?;
    if first < 0 || last < first {
        return Err(refuse("first and last must be offsets, in this order"));
    }
    if !(1..=arrow::ROWS_CEILING).contains(&rows_max) || !(1..=arrow::BYTES_CEILING).contains(&bytes_max) {
        return Err(refuse("rows_max must be 1 to 2**24, and bytes_max 1 byte to 1 GiB"));
    }
    if !(0..=arrow::ALL_COLUMNS).contains(&columns) {
        return Err(refuse("unknown column; known are bits 0 to 5"));
    }
    if !(-1..1 << 32).contains(&seed) || now < 0 {
        return Err(refuse("seed must be -1 or an unsigned 32-bit number, and now at least 0"));
    }
    let wish = Wish {
        seed: u32::try_from(seed).ok(),
        first: first as u64,
        last: last as u64,
        rows_max: rows_max as usize,
        bytes_max: bytes_max as usize,
        columns: columns as u8,
        now,
    };
    let found = py.detach(|| Gather::new(d, start, stop, &wish));
    let mut buffers = [const { None }; arrow::BUFFERS];
    let mut out: [&mut [u8]; arrow::BUFFERS] = std::array::from_fn(|_| &mut [][..]);
    for (i, length) in found.lengths().into_iter().enumerate() {
        let Some(length) = length else { continue };
        let bytes = unzeroed_bytes(py, length, |_| ())?;
        // SAFETY: the object was made above, is in nobody else's hands before the tuple is made, and lives in `buffers` as
        // long as the slice; the one shared empty object gives an empty slice. `fill` writes and never reads first.
        out[i] = unsafe { std::slice::from_raw_parts_mut(bytes.as_bytes().as_ptr().cast_mut(), length) };
        buffers[i] = Some(bytes);
    }
    py.detach(|| found.fill(out));
    let buffers: [Option<Bound<'py, PyBytes>>; arrow::BUFFERS] = buffers;
    Ok((found.count, PyTuple::new(py, buffers)?, found.position, found.next_offset, found.reason))
}

type VarGiven<'py> = (Option<Bound<'py, PyAny>>, Bound<'py, PyAny>, Bound<'py, PyAny>);
type AnyBuffer<'py> = Bound<'py, PyAny>;
type ListsGiven<'py> =
    (AnyBuffer<'py>, AnyBuffer<'py>, AnyBuffer<'py>, AnyBuffer<'py>, AnyBuffer<'py>, Option<AnyBuffer<'py>>);

struct VarHeld(Option<Held>, Held, Held);

impl VarHeld {
    fn new(given: &VarGiven<'_>) -> PyResult<VarHeld> {
        Ok(VarHeld(given.0.as_ref().map(Held::new).transpose()?, Held::new(&given.1)?, Held::new(&given.2)?))
    }

    fn var(&self, count: usize) -> PyResult<Var<'_>> {
        Var::new(self.0.as_ref().map(Held::bytes), self.1.bytes(), self.2.bytes(), count).map_err(refuse)
    }
}

fn fixed(held: Option<&Held>, bytes: usize) -> PyResult<Option<&[u8]>> {
    match held {
        Some(held) if held.bytes().len() < bytes => Err(refuse("a column is shorter than its rows need")),
        other => Ok(other.map(Held::bytes)),
    }
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
#[pyo3(signature = (count, value, key, headers, timestamps, chosen, partitions, turn, origin, flags, batch_bytes_max))]
pub fn scatter<'py>(
    py: Python<'py>,
    count: i64,
    value: VarGiven<'py>,
    key: Option<VarGiven<'py>>,
    headers: Option<ListsGiven<'py>>,
    timestamps: Option<Bound<'py, PyAny>>,
    chosen: Option<Bound<'py, PyAny>>,
    partitions: i64,
    turn: i64,
    origin: &[u8],
    flags: i64,
    batch_bytes_max: i64,
) -> PyResult<Bound<'py, PyList>> {
    if !(0..i64::from(i32::MAX)).contains(&count) {
        return Err(refuse("count must be 0 to 2**31 - 2"));
    }
    if !(1..=MAX_PARTITIONS).contains(&partitions) || turn < 0 {
        return Err(refuse("partitions must be 1 to 65536, and turn at least 0"));
    }
    if !(0..=i64::from(KNOWN_FLAGS)).contains(&flags) {
        return Err(refuse("unknown batch flag; known are bits 0 to 2"));
    }
    if !(1..=MAX_BATCH_BYTES as i64).contains(&batch_bytes_max) {
        return Err(refuse("batch_bytes_max must be 1 byte to 64 MiB"));
    }
    let count = count as usize;
    // Held, not Part: the buffers must stay where they are while the interpreter lock is given up.
    let value = VarHeld::new(&value)?;
    let key = key.as_ref().map(VarHeld::new).transpose()?;
    let headers = match &headers {
        Some((a, b, c, d, e, bitmap)) => Some((
            [Held::new(a)?, Held::new(b)?, Held::new(c)?, Held::new(d)?, Held::new(e)?],
            bitmap.as_ref().map(Held::new).transpose()?,
        )),
        None => None,
    };
    let timestamps = timestamps.as_ref().map(Held::new).transpose()?;
    let chosen = chosen.as_ref().map(Held::new).transpose()?;
    let lists = headers
        .as_ref()
        .map(|(held, bitmap)| Lists::new(held.each_ref().map(Held::bytes), bitmap.as_ref().map(Held::bytes), count));
    let rows = Rows {
        count,
        value: value.var(count)?,
        key: key.as_ref().map(|key| key.var(count)).transpose()?,
        headers: lists.transpose().map_err(refuse)?,
        timestamps: fixed(timestamps.as_ref(), 8 * count)?,
        chosen: fixed(chosen.as_ref(), 4 * count)?,
        partitions: partitions as u32,
        turn: (turn % partitions) as u32,
        origin,
        flags: flags as u16,
        batch_bytes_max: batch_bytes_max as usize,
    };
    let scatter = py.detach(|| Scatter::new(&rows)).map_err(|refused| match refused {
        Refused::Row(row, partition) => {
            PyValueError::new_err(format!("row {row}: partition {partition} is not one of 0 to {}", partitions - 1))
        }
        Refused::Other(why) => refuse(why),
    })?;
    let out = PyList::empty(py);
    for part in &scatter.parts {
        let length = part.head.length;
        let batch = unzeroed_array(py, length, |d| {
            if length < UNLOCKED_FILL_BYTES {
                scatter.fill(&rows, part, d);
            } else {
                py.detach(|| scatter.fill(&rows, part, d));
            }
        })?;
        out.append((part.partition, batch, part.rows.len()))?;
    }
    Ok(out)
}
