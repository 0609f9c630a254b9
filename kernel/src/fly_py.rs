//! The FlyMQ functions of `_native.pyi` as Python sees them: arguments in, objects out, refusals as ValueError.
//!
//! The work is in `fly.rs` and `fly_reply.rs`. No I/O, no clock, no state.

use crate::batch::Batch;
use crate::blip::MAX_U16;
use crate::fly::{self, Answer, Next, Stop};
use crate::fly_reply::{self, Fetch, FetchWish, Request};
use crate::held::Holding;
use crate::records;
use crate::routes::{Route, Routes};
use crate::tails::Tails;
use crate::{Held, Part, Split, list_of, optional_bytes, range, refuse, topic_fits, unzeroed_array, unzeroed_bytes};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyList, PyMemoryView, PySlice, PyTuple};

/// A reply of this size is written without the interpreter lock; below, giving it up costs more than it gains.
const UNLOCKED_FILL_BYTES: usize = 64 * 1024;

/// Record sets that one call appends: behind so much, the session looks at the time.
const SETS_BYTES_MAX: usize = 1024 * 1024;

fn frame_bounds(start: i64, max_frame: i64, length: usize, ceiling: usize) -> PyResult<(usize, usize)> {
    let (start, _) = range(start, length as i64, length)?;
    if max_frame < 1 || max_frame > ceiling as i64 {
        return Err(refuse("max_frame must be 1 byte to 32 MiB, or to 64 MiB for a client"));
    }
    Ok((start, max_frame as usize))
}

fn origin_fits(origin: &[u8]) -> PyResult<()> {
    if origin.len() > MAX_U16 {
        return Err(refuse("origin is over 65535 bytes"));
    }
    Ok(())
}

fn partitions_of(counts: &Bound<'_, PyDict>, topic: &[u8]) -> PyResult<Option<u32>> {
    let Some(count) = counts.get_item(PyBytes::new(counts.py(), topic))? else { return Ok(None) };
    let count: i64 = count.extract()?;
    if !(0..=i64::from(i32::MAX)).contains(&count) {
        return Err(refuse("a topic has 0 (refused) to 2**31 - 1 partitions"));
    }
    Ok(Some(count as u32))
}

type ProduceSplit<'py> = (Bound<'py, PyList>, usize, u8, Option<Bound<'py, PyBytes>>);

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
    if !(0..1 << 62).contains(&now) {
        return Err(refuse("now must be microseconds since 1970"));
    }
    let (run, pos, stop) = fly::produces(d, start, max_frame, |topic: &[u8]| partitions_of(counts, topic))?;
    let items = PyList::empty(py);
    if run.records != 0 {
        let groups = PyList::empty(py);
        for group in &run.groups {
            let plan = run.plan(group, origin).map_err(refuse)?;
            let batch = unzeroed_array(py, plan.0.length, |out| run.fill(d, group, &plan, origin, out))?;
            groups.append((PyBytes::new(py, group.topic), group.partition, batch, group.records))?;
        }
        let order = unzeroed_bytes(py, 2 * run.records, |out| run.fill_order(out))?;
        items.append((fly::PRODUCE, groups, order))?;
    }
    match stop {
        Stop::Unknown(topic) => return Ok((items, pos, 0, Some(PyBytes::new(py, topic)))),
        Stop::Full => return Ok((items, pos, 0, None)),
        Stop::Other => {}
    }
    match fly::next_frame(d, pos, max_frame) {
        Next::Frame { op, flags, end } => {
            let payload = pos + fly::FRAME_BYTES;
            if op == fly::PRODUCE_RECORDS
                && flags & fly::COMPRESSION_BITS == 0
                && let Some((found, partitions)) = known_set(counts, &d[payload..end])?
            {
                if run.records != 0 {
                    return Ok((items, pos, 0, None)); // a set is a run of its own
                }
                if let Some((groups, order)) = split_set(py, &found, partitions, origin, now)? {
                    items.append((op, groups, order))?;
                    return Ok((items, end, 0, None));
                }
            }
            if end - payload > fly::LARGE_PAYLOAD_BYTES {
                let view = PyMemoryView::from(data)?.get_item(PySlice::new(py, payload as isize, end as isize, 1))?;
                items.append((op, flags, view))?;
            } else {
                items.append((op, flags, PyBytes::new(py, &d[payload..end])))?;
            }
            Ok((items, end, 0, None))
        }
        Next::Wait => Ok((items, pos, 0, None)),
        Next::Fatal(fatal) => Ok((items, pos, fatal, None)),
    }
}

/// A small record set whose topic is known, with how many partitions that has. None: Python looks at it.
fn known_set<'a>(counts: &Bound<'_, PyDict>, payload: &'a [u8]) -> PyResult<Option<(fly::RecordSet<'a>, u32)>> {
    if payload.len() > fly::LARGE_PAYLOAD_BYTES {
        return Ok(None);
    }
    let Some(found) = fly::parse_records(payload) else { return Ok(None) };
    let partitions = partitions_of(counts, found.topic)?.unwrap_or(0);
    let there = partitions != 0 && (-1..i64::from(partitions)).contains(&i64::from(found.partition));
    Ok(there.then_some((found, partitions)))
}

type SetSplit<'py> = (Bound<'py, PyList>, Bound<'py, PyBytes>);

/// Its groups and order, as those of a run. None: it is refused, and Python says why.
fn split_set<'py>(
    py: Python<'py>,
    found: &fly::RecordSet<'_>,
    partitions: u32,
    origin: &[u8],
    now: i64,
) -> PyResult<Option<SetSplit<'py>>> {
    let Ok(set) = records::Split::new(found.set, found.partition, partitions, now) else { return Ok(None) };
    if found.producer_id != 0 && set.group_count() > 1 {
        return Ok(None);
    }
    let (groups, topic) = (PyList::empty(py), PyBytes::new(py, found.topic));
    for number in 0..set.group_count() {
        let mut plan = set.plan(number, origin, 0).map_err(refuse)?;
        if found.producer_id != 0 {
            (plan.0.producer_id, plan.0.sequence) = (found.producer_id, found.sequence);
        }
        let batch = unzeroed_array(py, plan.0.length, |out| set.fill(number, &plan, origin, out))?;
        let (partition, count) = set.group(number);
        groups.append((&topic, partition, batch, count))?;
    }
    let order = unzeroed_bytes(py, 2 * set.record_count(), |out| set.fill_order(out))?;
    Ok(Some((groups, order)))
}

/// Topic, partition, batch and records of a group.
type GroupOf<'py> = (Bound<'py, PyBytes>, i32, Bound<'py, PyByteArray>, u64);
/// A run of PRODUCE frames, or one record set, as `fly_split` gives it.
type RunGiven<'py> = (u8, Vec<GroupOf<'py>>, Bound<'py, PyBytes>);
type Appended<'py> = (Bound<'py, PyAny>, Bound<'py, PyList>, usize, u8, Option<Bound<'py, PyBytes>>, Option<Py<PyAny>>);
/// A group that was appended, or that is left for Python: topic, partition, batch, no error.
type Placed<'py> = (Bound<'py, PyBytes>, i32, Bound<'py, PyByteArray>, Bound<'py, PyBytes>);

/// Does one of its groups go to a partition in files, without a decision?
fn any_lent(tails: &Tails, routes: &Routes, run: &RunGiven<'_>) -> bool {
    run.1
        .iter()
        .any(|one| route_of(routes, one).is_some_and(|route| tails.takes_lent(route.handle, one.1, one.2.len())))
}

/// Appends the groups of such a run that go to partitions in files, or to memory, and need no decision: (ticket, groups, order,
/// [(number, records) of those that are left], ways, op), and the topic appended to last.
fn append_lent<'py>(
    py: Python<'py>,
    tails: &mut Tails,
    routes: &Routes,
    (op, groups, order): &RunGiven<'py>,
    now: i64,
) -> PyResult<(Bound<'py, PyAny>, Option<Py<PyAny>>)> {
    let nothing = PyBytes::new(py, &[]);
    let mut placed: Vec<Placed<'py>> = Vec::with_capacity(groups.len());
    let (mut holding, mut rest, mut last) = (Holding::default(), Vec::new(), None);
    for (number, one) in groups.iter().enumerate() {
        let (topic, partition, batch, count) = one;
        let (given, mut chosen) = (batch.clone().unbind(), None);
        if let Some(route) = route_of(routes, one) {
            if tails.takes_lent(route.handle, *partition, batch.len()) {
                chosen = Some(holding.append(py, tails, route.handle, *partition, *count, &given, now, number)?);
                last = Some(route.topic.clone_ref(py));
            } else if tails.takes(route.handle, *partition) {
                chosen = Some(tails.publish_at(py, route.handle, *partition, *count, &given, now)?);
            }
        }
        if chosen.is_none() {
            rest.push((number, *count));
        }
        placed.push((topic.clone(), chosen.unwrap_or(*partition), batch.clone(), nothing.clone()));
    }
    let held = (holding.ticket, placed, order, rest, holding.ways, *op);
    Ok((held.into_pyobject(py)?.into_any(), last))
}

/// Where a group goes, if it is to be kept and of no idempotent producer.
fn route_of<'a>(routes: &'a Routes, (topic, _, batch, _): &GroupOf<'_>) -> Option<&'a Route> {
    // SAFETY: the lock is held and no Python code runs while the slice lives.
    let idempotent = unsafe { batch.as_bytes() }[48..56].iter().any(|byte| *byte != 0);
    routes.find(topic.as_bytes()).filter(|route| route.keeps && !idempotent)
}

/// Where the groups of a run go, if Python needs to look at none of them.
fn routes_of<'a>(tails: &Tails, routes: &'a Routes, run: &RunGiven<'_>) -> Option<Vec<&'a Route>> {
    let taken = |one| route_of(routes, one).filter(|route| tails.takes(route.handle, one.1));
    run.1.iter().map(taken).collect()
}

fn bytes_of<'a>(py: Python<'a>, batch: &'a Py<PyByteArray>) -> &'a [u8] {
    // SAFETY: the lock is held and no Python code runs while the slice lives; until `seal` nobody but the tails has the batch.
    unsafe { batch.bind(py).as_bytes() }
}

/// Appends a run whose routes are known. Its answers; that of a set goes behind those in `answered`.
fn append_run<'py>(
    py: Python<'py>,
    tails: &mut Tails,
    known: &[&Route],
    run: &RunGiven<'py>,
    now: i64,
    flags: u8,
    answered: &mut Vec<u8>,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let (op, groups, order) = run;
    let mut placed = Vec::with_capacity(groups.len());
    for (route, (topic, partition, batch, count)) in known.iter().zip(groups) {
        let batch = batch.clone().unbind();
        let chosen = tails.publish_at(py, route.handle, *partition, *count, &batch, now)?;
        placed.push((topic, chosen, batch));
    }
    if *op == fly::PRODUCE_RECORDS {
        let heads =
            placed.iter().map(|(_, partition, batch)| Ok((*partition, Batch::open(bytes_of(py, batch), 0)?.head)));
        let heads = heads.collect::<Result<Vec<_>, _>>().map_err(refuse)?;
        fly_reply::put_set_answer(answered, &heads, order.as_bytes(), flags);
        return Ok(None);
    }
    let mut made = Vec::with_capacity(placed.len());
    for (topic, partition, batch) in &placed {
        made.push(Answer::stored(topic.as_bytes(), *partition, bytes_of(py, batch), flags).map_err(refuse)?);
    }
    let total = fly::measure_answers(&mut made, order.as_bytes()).map_err(refuse)?;
    unzeroed_bytes(py, total, |out| fly::fill_answers(&mut made, order.as_bytes(), out)).map(Some)
}

#[pyfunction]
#[pyo3(signature = (tails, routes, data, start, max_frame, counts, origin, now, flags, append_sets=true))]
#[allow(clippy::too_many_arguments)]
pub fn fly_append<'py>(
    py: Python<'py>,
    tails: &Bound<'py, Tails>,
    routes: &Bound<'py, Routes>,
    data: &Bound<'py, PyAny>,
    start: i64,
    max_frame: i64,
    counts: &Bound<'py, PyDict>,
    origin: &[u8],
    now: i64,
    flags: u8,
    append_sets: bool,
) -> PyResult<Appended<'py>> {
    let (mut answers, mut answered) = (None, Vec::new()); // of a run, or of the sets before
    let mut last = None;
    let mut at = start;
    loop {
        let (items, end, fatal, unknown) = fly_split(py, data, at, max_frame, counts, origin, now)?;
        if let Ok(Ok(run)) = items.get_item(0).map(|item| item.extract::<RunGiven<'py>>())
            && (append_sets || run.0 != fly::PRODUCE_RECORDS)
        {
            let (mut tails, routes) = (tails.try_borrow_mut()?, routes.try_borrow()?);
            if any_lent(&tails, &routes, &run) {
                if at != start {
                    // The sets before it are answered now, and it is not: it is for the next call.
                    let answers = PyBytes::new(py, &answered).into_any();
                    return Ok((answers, PyList::empty(py), at as usize, 0, None, last));
                }
                let (held, topic) = append_lent(py, &mut tails, &routes, &run, now)?;
                items.del_item(0)?;
                return Ok((held, items, end, fatal, unknown, topic));
            }
            if let Some(known) = routes_of(&tails, &routes, &run) {
                answers = append_run(py, &mut tails, &known, &run, now, flags, &mut answered)?;
                last = known.last().map(|route| route.topic.clone_ref(py));
                items.del_item(0)?;
                // Sets often come one behind the other, as small frames.
                if run.0 == fly::PRODUCE_RECORDS && end - (start as usize) < SETS_BYTES_MAX && is_set(data, end)? {
                    at = end as i64;
                    continue;
                }
            }
        }
        let answers = answers.unwrap_or_else(|| PyBytes::new(py, &answered));
        return Ok((answers.into_any(), items, end, fatal, unknown, last));
    }
}

/// Does a PRODUCE_RECORDS begin here, as far as is known?
fn is_set(data: &Bound<'_, PyAny>, at: usize) -> PyResult<bool> {
    Ok(Held::new(data)?.bytes().get(at + 2) == Some(&fly::PRODUCE_RECORDS))
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
    let total = fly::measure_answers(&mut answers, order).map_err(refuse)?;
    unzeroed_bytes(py, total, |out| fly::fill_answers(&mut answers, order, out))
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
