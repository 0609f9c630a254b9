//! The FlyMQ functions of `_native.pyi` as Python sees them: arguments in, objects out, refusals as ValueError.
//!
//! The work is in `fly.rs` and `fly_reply.rs`; what appends is in `fly_append.rs`. No I/O, no clock, no state.

use crate::blip::MAX_U16;
use crate::fly::{self, Next, Stop};
use crate::fly_append::Found;
use crate::fly_reply::{self, Answer, Fetch, FetchWish, Request};
use crate::{Held, Part, Split, list_of, optional_bytes, range, refuse, topic_fits, unzeroed_array, unzeroed_bytes};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyMemoryView, PySlice, PyTuple};

/// A reply of this size is written without the interpreter lock; below, giving it up costs more than it gains.
const UNLOCKED_FILL_BYTES: usize = 64 * 1024;

pub fn frame_bounds(start: i64, max_frame: i64, length: usize, ceiling: usize) -> PyResult<(usize, usize)> {
    let (start, _) = range(start, length as i64, length)?;
    if max_frame < 1 || max_frame > ceiling as i64 {
        return Err(refuse("max_frame must be 1 byte to 32 MiB, or to 64 MiB for a client"));
    }
    Ok((start, max_frame as usize))
}

pub fn origin_fits(origin: &[u8]) -> PyResult<()> {
    if origin.len() > MAX_U16 {
        return Err(refuse("origin is over 65535 bytes"));
    }
    Ok(())
}

pub fn partitions_of(counts: &Bound<'_, PyDict>, topic: &[u8]) -> PyResult<Option<u32>> {
    let Some(count) = counts.get_item(PyBytes::new(counts.py(), topic))? else { return Ok(None) };
    let count: i64 = count.extract()?;
    if !(0..=i64::from(i32::MAX)).contains(&count) {
        return Err(refuse("a topic has 0 (refused) to 2**31 - 1 partitions"));
    }
    Ok(Some(count as u32))
}

/// items, consumed, fatal, unknown.
pub type ProduceSplit<'py> = (Bound<'py, PyList>, usize, u8, Option<Bound<'py, PyBytes>>);

pub fn now_fits(now: i64) -> PyResult<()> {
    if !(0..1 << 62).contains(&now) {
        return Err(refuse("now must be microseconds since 1970"));
    }
    Ok(())
}

#[pyfunction]
pub fn fly_split<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    start: i64,
    max_frame: i64,
    counts: &Bound<'py, PyDict>,
    origin: &[u8],
    now: i64,
) -> PyResult<ProduceSplit<'py>> {
    let held = Held::new(data)?;
    let d = held.bytes();
    let (start, max_frame) = frame_bounds(start, max_frame, d.len(), fly::MAX_FRAME_CEILING_BYTES)?;
    origin_fits(origin)?;
    now_fits(now)?;
    let partitions = |topic: &[u8]| partitions_of(counts, topic);
    let (run, pos, stop) = fly::produces(d, start, max_frame, partitions)?;
    let items = PyList::empty(py);
    let behind_run = run.records != 0;
    if behind_run {
        items.append(run_item(py, d, &Found::Run(run), origin)?)?;
    }
    let read = Rest { data, d, max_frame, origin, now };
    read.split(py, items, (pos, stop), behind_run, partitions)
}

/// What comes behind the PRODUCE frames of a read.
pub struct Rest<'a, 'py> {
    pub data: &'a Bound<'py, PyAny>,
    pub d: &'a [u8],
    pub max_frame: usize,
    pub origin: &'a [u8],
    pub now: i64,
}

impl<'py> Rest<'_, 'py> {
    /// The frame at `pos`, behind `items`, where collecting ended for the reason `stop`.
    pub fn split(
        &self,
        py: Python<'py>,
        items: Bound<'py, PyList>,
        (pos, stop): (usize, Stop<'_>),
        behind_run: bool,
        partitions: impl FnOnce(&[u8]) -> PyResult<Option<u32>>,
    ) -> PyResult<ProduceSplit<'py>> {
        match stop {
            Stop::Unknown(topic) => return Ok((items, pos, 0, Some(PyBytes::new(py, topic)))),
            Stop::Full => return Ok((items, pos, 0, None)),
            Stop::Other => {}
        }
        let (op, flags, end) = match fly::next_frame(self.d, pos, self.max_frame) {
            Next::Frame { op, flags, end } => (op, flags, end),
            Next::Wait => return Ok((items, pos, 0, None)),
            Next::Fatal(fatal) => return Ok((items, pos, fatal, None)),
        };
        if let Some((set, _)) = set_at(self.d, pos, self.max_frame)
            && let Some(count) = partitions(set.topic)?
            && set_fits(&set, count)
        {
            if behind_run {
                return Ok((items, pos, 0, None)); // a set is a run of its own
            }
            if let Some(found) = Found::set(set, count, self.now) {
                items.append(run_item(py, self.d, &found, self.origin)?)?;
                return Ok((items, end, 0, None));
            }
        }
        let payload = pos + fly::FRAME_BYTES;
        if end - payload > fly::LARGE_PAYLOAD_BYTES {
            let view = PyMemoryView::from(self.data)?.get_item(PySlice::new(py, payload as isize, end as isize, 1))?;
            items.append((op, flags, view))?;
        } else {
            items.append((op, flags, PyBytes::new(py, &self.d[payload..end])))?;
        }
        Ok((items, end, 0, None))
    }
}

/// The small record set whose frame is here, and where that ends. None: there is none, or Python looks at it.
pub fn set_at(d: &[u8], pos: usize, max_frame: usize) -> Option<(fly::RecordSet<'_>, usize)> {
    let Next::Frame { op: fly::PRODUCE_RECORDS, flags, end } = fly::next_frame(d, pos, max_frame) else { return None };
    let payload = &d[pos + fly::FRAME_BYTES..end];
    if flags & fly::COMPRESSION_BITS != 0 || payload.len() > fly::LARGE_PAYLOAD_BYTES {
        return None;
    }
    fly::parse_records(payload).map(|set| (set, end))
}

/// Is the partition there that it asks for?
pub fn set_fits(set: &fly::RecordSet<'_>, partitions: u32) -> bool {
    partitions != 0 && (-1..i64::from(partitions)).contains(&i64::from(set.partition))
}

/// A run or a set for Python: operation, groups, order.
pub fn run_item<'py>(py: Python<'py>, d: &[u8], found: &Found<'_>, origin: &[u8]) -> PyResult<Bound<'py, PyTuple>> {
    let groups = PyList::empty(py);
    for number in 0..found.group_count() {
        let (topic, partition, count) = found.group(number);
        groups.append((PyBytes::new(py, topic), partition, found.batch(py, d, number, origin)?, count))?;
    }
    (found.op(), groups, found.order(py)?).into_pyobject(py)
}

#[pyfunction]
pub fn fly_split_one<'py>(
    py: Python<'py>,
    payload: &Bound<'py, PyAny>,
    counts: &Bound<'py, PyDict>,
    origin: &[u8],
) -> PyResult<Option<Bound<'py, PyAny>>> {
    // Held: the buffer must stay where it is while the interpreter lock is given up; the caller promises not to write to it.
    let held = Held::new(payload)?;
    let d = held.bytes();
    if d.len() > fly::MAX_FRAME_CEILING_BYTES {
        return Err(refuse("a payload has at most 32 MiB"));
    }
    origin_fits(origin)?;
    let Some(one) = fly::One::new(d) else { return Ok(None) };
    let Some(partitions) = partitions_of(counts, one.topic())? else {
        return Ok(Some(PyBytes::new(py, one.topic()).into_any()));
    };
    let run = py.detach(|| one.run(partitions));
    let group = &run.groups[0];
    let plan = run.plan(group, origin).map_err(refuse)?;
    let batch = unzeroed_array(py, plan.0.length, |out| py.detach(|| run.fill(d, group, &plan, origin, out)))?;
    let groups = PyList::new(py, [(PyBytes::new(py, group.topic), group.partition, batch, group.records)])?;
    Ok(Some((groups, PyBytes::new(py, &[0, 0])).into_pyobject(py)?.into_any()))
}

#[pyfunction]
pub fn fnv1a(py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<u32> {
    let held = Held::new(key)?;
    let d = held.bytes();
    Ok(if d.len() < UNLOCKED_FILL_BYTES { fly::fnv1a(d) } else { py.detach(|| fly::fnv1a(d)) })
}

#[pyfunction]
pub fn fly_produced<'py>(
    py: Python<'py>,
    groups: &Bound<'py, PyAny>,
    order: &[u8],
    flags: u8,
) -> PyResult<Bound<'py, PyBytes>> {
    type GroupGiven<'py> = (Bound<'py, PyBytes>, i32, Option<Bound<'py, PyAny>>, Bound<'py, PyBytes>);
    let given = list_of(groups)?.iter().map(|one| one.extract()).collect::<PyResult<Vec<GroupGiven<'py>>>>()?;
    let batches = given
        .iter()
        .map(|group| group.2.clone().map(Part::new).transpose())
        .collect::<PyResult<Vec<Option<Part>>>>()?;
    let mut answers = Vec::with_capacity(given.len());
    for ((topic, partition, _, error), batch) in given.iter().zip(&batches) {
        topic_fits(topic.as_bytes())?;
        answers.push(match batch {
            Some(batch) => Answer::stored(topic.as_bytes(), *partition, batch.bytes(), flags).map_err(refuse)?,
            None => Answer::refused(error.as_bytes()),
        });
    }
    let total = fly_reply::measure_answers(&mut answers, order).map_err(refuse)?;
    unzeroed_bytes(py, total, |out| fly_reply::fill_answers(&mut answers, order, out))
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn fly_fetch<'py>(
    py: Python<'py>,
    batches: &Bound<'py, PyAny>,
    offset: i64,
    max_records: i64,
    max_bytes: i64,
    now: i64,
    op: u8,
    flags: u8,
    sdk: bool,
) -> PyResult<(Bound<'py, PyBytes>, usize, u64)> {
    if offset < 0 || max_records < 0 {
        return Err(refuse("offset and max_records must be at least 0"));
    }
    if max_bytes < 0 || max_bytes > fly::MAX_FETCH_CEILING_BYTES as i64 {
        return Err(refuse("max_bytes must be 0 to 1 GiB"));
    }
    let (offset, max_records, max_bytes) = (offset as u64, max_records as usize, max_bytes as usize);
    // Held, not Part: the buffers must stay where they are while the interpreter lock is given up.
    let held = list_of(batches)?.iter().map(|one| Held::new(&one)).collect::<PyResult<Vec<_>>>()?;
    let parts: Vec<&[u8]> = held.iter().map(Held::bytes).collect();
    let fetch =
        Fetch::new(&parts, FetchWish { offset, max_records, max_bytes, now, op, flags, sdk }).map_err(refuse)?;
    let reply = unzeroed_bytes(py, fetch.bytes, |out| {
        // Columns of a batch never change once a reader has it (only its checksum may be written), so reading them
        // without the lock gives what was measured with it.
        if fetch.bytes < UNLOCKED_FILL_BYTES { fetch.fill(out) } else { py.detach(|| fetch.fill(out)) }
    })?;
    Ok((reply, fetch.count, fetch.next_offset))
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
#[pyo3(signature = (topic, keys, values, partition, producer_id, first_sequence, flags))]
pub fn fly_produce<'py>(
    py: Python<'py>,
    topic: &[u8],
    keys: Option<&Bound<'py, PyAny>>,
    values: &Bound<'py, PyAny>,
    partition: i32,
    producer_id: i64,
    first_sequence: u32,
    flags: u8,
) -> PyResult<Bound<'py, PyBytes>> {
    topic_fits(topic)?;
    let producer_id = u64::try_from(producer_id).map_err(|_| refuse("producer_id must be 0 (none) to 2**63 - 1"))?;
    let values = list_of(values)?.iter().map(|one| Ok(one.cast_into::<PyBytes>()?)).collect::<PyResult<Vec<_>>>()?;
    let keys = keys.map(optional_bytes).transpose()?;
    if keys.as_ref().is_some_and(|keys| keys.len() != values.len()) {
        return Err(refuse("keys and values differ in length; give each record one entry in both"));
    }
    if producer_id != 0 && u64::from(first_sequence) + values.len() as u64 > 1 << 32 {
        return Err(refuse("sequences leave the unsigned 32-bit range"));
    }
    let request = Request { topic, partition, producer_id, flags };
    let key = |i: usize| keys.as_ref().and_then(|keys| keys[i].as_ref()).map_or(&[][..], |key| key.as_bytes());
    let mut total = 0;
    for (i, value) in values.iter().enumerate() {
        let length = request.fixed_bytes() + key(i).len() + value.as_bytes().len();
        if length > fly::MAX_FRAME_CEILING_BYTES {
            return Err(refuse("message too large: a frame is over 32 MiB"));
        }
        total += fly::FRAME_BYTES + length;
    }
    unzeroed_bytes(py, total, |out| {
        let mut at = 0;
        for (i, value) in values.iter().enumerate() {
            at = request.put(out, at, key(i), value.as_bytes(), first_sequence.wrapping_add(i as u32));
        }
    })
}

#[pyfunction]
pub fn fly_received<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    start: i64,
    max_frame: i64,
    sdk: bool,
) -> PyResult<Split<'py>> {
    let held = Held::new(data)?;
    let d = held.bytes();
    let (mut pos, max_frame) = frame_bounds(start, max_frame, d.len(), fly::MAX_REPLY_CEILING_BYTES)?;
    let items = PyList::empty(py);
    let mut run: Option<Bound<'py, PyList>> = None;
    let mut known: Option<(&[u8], Bound<'py, PyBytes>)> = None;
    loop {
        let (op, flags, end) = match fly::next_frame(d, pos, max_frame) {
            Next::Frame { op, flags, end } => (op, flags, end),
            Next::Wait => return Ok((items, pos, 0)),
            Next::Fatal(fatal) => return Ok((items, pos, fatal)),
        };
        let payload = &d[pos + fly::FRAME_BYTES..end];
        match op {
            fly::PRODUCE if flags & fly::COMPRESSION_BITS == 0 => {
                let Some((topic, partition, offset, timestamp)) = fly_reply::parse_metadata(payload) else {
                    return Ok((items, pos, fly::BAD_REPLY));
                };
                let name = match &known {
                    Some((same, name)) if *same == topic => name.clone(),
                    _ => PyBytes::new(py, topic),
                };
                let replies = match run.take() {
                    Some(replies) => replies,
                    None => {
                        let replies = PyList::empty(py);
                        items.append((op, &replies))?;
                        replies
                    }
                };
                replies.append((&name, partition, offset, timestamp))?;
                known = Some((topic, name));
                run = Some(replies);
            }
            fly::FETCH | fly::FETCH_BINARY if flags & fly::COMPRESSION_BITS == 0 => {
                run = None;
                let Some((records, next_offset)) = fly_reply::parse_fetch(payload, sdk) else {
                    return Ok((items, pos, fly::BAD_REPLY));
                };
                items.append((op, record_list(py, &records)?, next_offset))?;
            }
            _ => {
                run = None;
                items.append((op, flags, PyBytes::new(py, payload)))?;
            }
        }
        pos = end;
    }
}

fn record_list<'py>(py: Python<'py>, records: &fly_reply::Fetched<'_>) -> PyResult<Bound<'py, PyList>> {
    let rows = records
        .iter()
        .map(|(offset, key, value)| {
            let key = (!key.is_empty()).then(|| PyBytes::new(py, key));
            (offset, key, PyBytes::new(py, value)).into_pyobject(py)
        })
        .collect::<PyResult<Vec<Bound<'py, PyTuple>>>>()?;
    PyList::new(py, rows)
}
